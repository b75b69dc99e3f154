"""Rules of pods that terminate.

Invariant: a pod has terminated when the provider reported it and the backend does not list it any more; nothing of it may follow then.
"""

import uuid
from collections.abc import Iterator

from vkubelet.api.objects import PodRef
from vkubelet.errors import NoSuchPod
from vkubelet.provider import SupportsPolling
from vkubelet.testing.conformance.observed import Call, containers_of
from vkubelet.testing.conformance.rules import Broken, Phase, expect, rule
from vkubelet.testing.conformance.stand import Made, Stand

GRACE = 2
MARGIN = 10.0
"""Seconds beyond the grace period for a container to be killed and for that to be reported."""

CANCEL_SECONDS = 5.0
"""Seconds in which a cancelled sync_pod has to return, so that delete_pod can be called."""

SETTLE = 1.5
"""Seconds in which an operation that continues in the background would become visible."""


@rule()
async def delete_ends(stand: Stand) -> str:
    """delete_pod terminates a pod: within its grace period and a little, host.pod_gone is called, list_pods omits it, and the cluster
    removes it."""
    (pod,) = await stand.running("ends", grace=GRACE)
    await stand.delete("ends")
    began = (await _called(stand, "delete_pod", pod)).began
    await stand.ended(pod)
    seconds = (stand.recording.gone_at(pod.uid) or began) - began
    expect(seconds <= GRACE + MARGIN, f"with a grace of {GRACE} s the end took {seconds:.1f} s")
    await stand.not_listed(pod.uid)
    return f"{seconds:.1f} s"


@rule()
async def delete_again(stand: Stand) -> None:
    """delete_pod may be repeated with a shorter grace, and again for a terminated pod; each time the termination is reported or known."""
    (pod,) = await stand.running("twice", grace=120)
    await stand.delete("twice")
    await stand.delete("twice", grace=1)
    await stand.ended(pod)
    await _deleted_directly(stand, pod.ref)


@rule()
async def delete_unknown(stand: Stand) -> None:
    """delete_pod of a pod the backend never had results in host.pod_gone, or NoSuchPod; it is called like this after a restart."""
    await _deleted_directly(stand, PodRef(stand.judge.namespace, "never-was", str(uuid.uuid4()), stand.node))


async def _deleted_directly(stand: Stand, ref: PodRef) -> None:
    began = stand.clock.monotonic()
    try:
        await stand.provider.delete_pod(ref, 0.0)
    except NoSuchPod:
        return

    def reported() -> bool:
        return any(report.pod.uid == ref.uid and report.containers is None and report.at >= began for report in stand.recording.reports)

    if isinstance(stand.provider, SupportsPolling):
        # Its next list shows it.
        await stand.listed()
    await stand.recording.changes.until(reported, f"host.pod_gone for {ref.name}, which the backend does not have", seconds=stand.patience)


@rule()
async def delete_during_sync(stand: Stand) -> None:
    """A pod that is deleted during sync_pod terminates like any other: the sync can be cancelled, so delete_pod is not late."""
    for number in range(3):
        (pod,) = await stand.create(f"hasty-{number}")
        await _called(stand, "sync_pod", pod)
        await stand.delete(pod.name, grace=1)
        asked = stand.clock.monotonic()
        late = (await _called(stand, "delete_pod", pod)).began - asked
        expect(late < CANCEL_SECONDS, f"sync_pod went on for {late:.1f} s after the pod was deleted; it must return when it is cancelled")
        await stand.ended(pod)


async def _called(stand: Stand, method: str, pod: Made) -> Call:
    """Waits for the first call of that method for the pod."""
    calls = await stand.recording.changes.until(
        lambda: stand.recording.of(method, pod.uid), f"{method} of {pod.name} is called", seconds=stand.patience
    )
    return calls[0]


@rule()
async def uid_respected(stand: Stand) -> None:
    """A pod with the name of an earlier one is another pod: the termination of the old UID is reported as its own, and does not affect
    the new one, also when delete_pod of the old one is repeated."""
    (old,) = await stand.running("twin")
    await stand.delete("twin", grace=0)
    await stand.pods.gone("twin", old.uid, seconds=stand.patience)
    (new,) = await stand.running("twin")
    await stand.told_gone(old.uid, "host.pod_gone with the uid of the first pod of that name")
    await _deleted_directly(stand, old.ref)
    await stand.clock.sleep(SETTLE)
    expect(stand.recording.gone_at(new.uid) is None, "host.pod_gone was called for the second pod, which was not deleted")
    listed = {report.pod.uid for report in await stand.listed() if report.pod.name == "twin"}
    expect(old.uid not in listed, "list_pods still shows the first pod")
    expect(listed, "list_pods does not show the second pod, although only the first one was deleted")
    shown = stand.pods.pods.get("twin", {}).get("status", {}).get("phase")
    expect(shown == "Running", f"the second pod is {shown or 'gone'}")
    await stand.delete("twin")
    await stand.ended(new)


@rule(phase=Phase.LAST)
async def reports_known(stand: Stand) -> None:
    """host.report and host.pod_gone name pods that were handed over, by the very PodRef, and only containers that they have."""
    for report in stand.recording.reports:
        pod = stand.pods.known.get(report.pod.uid)
        if report.pod.namespace != stand.judge.namespace or report.pod.name == "never-was":
            continue
        expect(pod is not None, f"{report.pod} was reported, but no pod has this uid")
        assert pod is not None
        meta, node = pod["metadata"], pod["spec"].get("nodeName", "")
        true = PodRef(meta["namespace"], meta["name"], meta["uid"], node)
        expect(report.pod == true, f"{report.pod} was reported; the pod of that uid is {true}")
        strange = (report.containers or frozenset()) - containers_of(pod)
        expect(not strange, f"pod {report.pod.name} was reported with containers it does not have: {sorted(strange)}")


@rule(phase=Phase.LAST)
async def calls_never_overlap(stand: Stand) -> None:
    """No operation for a UID continues beside or after a later call: sync_pod is over when it returns, and after pod_gone nothing is
    reported."""
    await stand.clock.sleep(SETTLE)
    by_uid: dict[str, list[Call]] = {}
    for call in stand.recording.calls:
        if call.method in ("sync_pod", "delete_pod"):
            by_uid.setdefault(call.uid, []).append(call)
    for calls in by_uid.values():
        for before, after in zip(calls, calls[1:], strict=False):
            expect(before.ended is not None and before.ended <= after.began, f"{after.method} of {after.subject} beside {before.method}")
    for uid, gone in _gone(stand):
        late = [
            report for report in stand.recording.reports if report.pod.uid == uid and report.containers is not None and report.at > gone
        ]
        expect(not late, f"pod {late[0].pod.name if late else ''} was reported after host.pod_gone was called for it")
    ghosts = {report.pod.uid: report.pod.name for report in await stand.listed()}
    back = [ghosts[uid] for uid, _ in _gone(stand) if uid in ghosts]
    expect(not back, f"list_pods shows pods for which host.pod_gone was called: {', '.join(back)}")


def _gone(stand: Stand) -> Iterator[tuple[str, float]]:
    for uid in {report.pod.uid for report in stand.recording.reports}:
        gone = stand.recording.gone_at(uid)
        if gone is not None:
            yield uid, gone


@rule(phase=Phase.LAST)
async def nothing_left(stand: Stand) -> None:
    """When every pod is deleted the backend has nothing left."""
    await stand.judge.ok("delete", "pods", "--all", "--grace-period=1", "--wait=false")
    for name, pod in list(stand.pods.pods.items()):
        await stand.pods.gone(name, pod["metadata"]["uid"], seconds=stand.patience)
    end = stand.clock.monotonic() + stand.patience
    while left := [report.pod.name for report in await stand.listed()]:
        if stand.clock.monotonic() > end:
            raise Broken(f"list_pods still shows {', '.join(left)}")
        await stand.clock.sleep(0.3)


RULES = (delete_ends, delete_again, delete_unknown, delete_during_sync, uid_respected)
LAST = (nothing_left, calls_never_overlap, reports_known)
