"""Rules of a backend that fails, loses responses or hangs, and of a provider that is restarted.

Invariant: faults are injected around the provider, which need not know of them; a rule that runs beside others fails only calls for its own
pod. Every pod that was bound to the node before a restart runs afterwards; a backend may have dropped it, but must report that.
"""

from vkubelet.api.objects import JsonView
from vkubelet.provider import SupportsPolling
from vkubelet.testing.conformance.faults import CONTAINER_CALLS, POD_CALLS, Fault
from vkubelet.testing.conformance.judge import running
from vkubelet.testing.conformance.pods import Incarnation, expect_same, incarnations
from vkubelet.testing.conformance.rules import Phase, expect, rule
from vkubelet.testing.conformance.stand import Made, Stand

STARTS = ("sync_pod", "prepare_pod", "start_container")
ENDS = ("delete_pod", "stop_container", "remove_pod")

SETTLE = 1.5
"""Seconds in which a repeated call would show a double effect."""

AWAY = 2.5
"""Seconds without the backend: longer than the grace period of the pod that is deleted meanwhile."""

REPORTED = 1.0
"""Seconds in which a provider reports the state of its containers."""

HUNG = 0.5


@rule()
async def call_fails(stand: Stand) -> None:
    """Calls that fail before they take effect are retried: the pod runs, and it terminates."""
    await _lives_and_ends(stand, "refused", Fault.BEFORE)


@rule()
async def answer_lost(stand: Stand) -> None:
    """A call that took effect although it failed is repeated and changes nothing: each container is started once, and the pod
    terminates."""
    await _lives_and_ends(stand, "unanswered", Fault.AFTER)


@rule()
async def call_hangs(stand: Stand) -> None:
    """A call that hangs can be cancelled or fails when the backend is back: the pod runs, and it terminates."""
    name = "hung"
    stand.faults.plan(*STARTS, fault=Fault.HANGS, pod=name, times=1)
    (pod,) = await stand.create(name)
    while not running(stand.pods.known[pod.uid]):
        await stand.clock.sleep(HUNG)
        stand.faults.release(pod=name)
    stand.faults.plan(*ENDS, fault=Fault.HANGS, pod=name, times=1)
    await stand.delete(name)
    while stand.recording.gone_at(pod.uid) is None:
        await stand.clock.sleep(HUNG)
        stand.faults.release(pod=name)
    await stand.ended(pod)


async def _lives_and_ends(stand: Stand, name: str, fault: Fault) -> None:
    stand.faults.plan(*STARTS, fault=fault, pod=name, times=2)
    (pod,) = await stand.running(name)
    before = incarnations(stand.pods.known[pod.uid])
    await stand.clock.sleep(SETTLE)
    expect_same(await stand.shown(pod), before)
    _expect_steady(stand, pod)
    stand.faults.plan(*ENDS, fault=fault, pod=name, times=1)
    await stand.delete(name)
    await stand.ended(pod)


def _expect_steady(stand: Stand, pod: Made) -> None:
    flapped = stand.pods.flapped.get(pod.uid)
    expect(not flapped, f"container {flapped} of pod {pod.name} was shown as waiting after it had run, and no run of it had ended")


@rule(phase=Phase.ALONE)
async def backend_away(stand: Stand) -> None:
    """While the backend fails every call, a deleted pod waits and others are not affected; when it is back the pod terminates, and
    polling continues at its interval."""
    kept, deleted = await stand.running("kept-away", "deleted-away")
    before = incarnations(stand.pods.known[kept.uid])
    stand.faults.plan(*CONTAINER_CALLS, *POD_CALLS, fault=Fault.BEFORE)
    try:
        await stand.delete("deleted-away", grace=1)
        await stand.clock.sleep(AWAY)
    finally:
        stand.faults.clear()
    back = stand.clock.monotonic()
    await stand.ended(deleted)
    expect_same(await stand.shown(kept), before)
    _expect_steady(stand, kept)
    if isinstance(stand.provider, SupportsPolling):
        await _polled_since(stand, back, stand.provider.poll_interval)
    await stand.delete("kept-away")
    await stand.ended(kept)


async def _polled_since(stand: Stand, moment: float, interval: float) -> None:
    """Waits for a list after `moment`; it comes within an interval, or as soon as the machine allows."""

    def listed() -> list[float]:
        return [call.began for call in stand.recording.of("list_pods", "") if call.began >= moment and not call.error]

    what = f"list_pods is polled every {interval:g} s after an outage"
    await stand.recording.changes.until(listed, what, seconds=2 * interval + 5.0)


@rule(phase=Phase.ALONE)
async def run_again(stand: Stand) -> None:
    """run() that was cancelled can be called again: the nodes are declared again, and every pod continues or is reported as restarted."""
    pods = await stand.running("cut-off-1", "cut-off-2")
    before = {pod.uid: incarnations(stand.pods.known[pod.uid]) for pod in pods}
    runs, syncs = stand.recording.runs, {pod.uid: len(stand.recording.of("sync_pod", pod.uid)) for pod in pods}
    stand.recording.cut_off()
    await stand.recording.changes.until(lambda: stand.recording.runs > runs, "run() is called again", seconds=stand.patience)
    await stand.nodes_ready()
    for pod in pods:
        await _synced_anew(stand, pod, syncs[pod.uid])
    await stand.clock.sleep(REPORTED)
    for pod in pods:
        await stand.pods.until(pod.name, running, "is Running and Ready", seconds=stand.patience)
        _expect_honest(await stand.shown(pod), before[pod.uid])
    await stand.delete(*(pod.name for pod in pods))
    await stand.ended(*pods)


@rule(phase=Phase.ALONE)
async def new_process(stand: Stand) -> str:
    """After a restart of the process a pod that list_pods contains runs on unaffected, one that is missing is started again, and a pod
    that was deleted meanwhile terminates."""
    kept, deleted = await stand.running("survivor", "deleted-meanwhile")
    before = incarnations(stand.pods.known[kept.uid])
    await stand.stop()
    await stand.delete("deleted-meanwhile", grace=1)
    syncs = len(stand.recording.of("sync_pod", kept.uid))
    stand.recording.held_before = {}
    await stand.start()
    await stand.nodes_ready()
    await _synced_anew(stand, kept, syncs)
    held, stand.recording.held_before = stand.recording.held_before.get(kept.uid, False), None
    if held:
        await stand.clock.sleep(REPORTED)
        expect_same(await stand.shown(kept), before)
    elif any(was.id for was in before.values()):
        what = "runs in containers with other ids, as list_pods did not show it before it was synced"
        await stand.pods.until(kept.name, lambda pod: running(pod) and _all_new(before, pod), what, seconds=stand.patience)
    await stand.pods.until(kept.name, running, "is Running and Ready", seconds=stand.patience)
    expect(stand.recording.gone_at(kept.uid) is None, "host.pod_gone was called for a pod that was not deleted")
    await stand.ended(deleted)
    await stand.delete("survivor")
    await stand.ended(kept)
    return "pods are kept" if held else "pods are lost and started again"


async def _synced_anew(stand: Stand, pod: Made, before: int) -> None:
    def done() -> bool:
        return any(call.ended is not None and not call.error for call in stand.recording.of("sync_pod", pod.uid)[before:])

    await stand.recording.changes.until(done, f"sync_pod of {pod.name} once more", seconds=stand.patience)


def _all_new(before: dict[str, Incarnation], shown: JsonView) -> bool:
    after = incarnations(shown)
    return all(name in after and after[name].id != was.id for name, was in before.items())


def _expect_honest(shown: JsonView, before: dict[str, Incarnation]) -> None:
    """Checks that a container with another start time has another id, or counts one more restart."""
    for name, now in incarnations(shown).items():
        was = before.get(name)
        if was is None or now.started == was.started:
            continue
        told = now.restarts > was.restarts or now.id != was.id or not now.id
        expect(told, f"container {name} runs since {now.started}, before since {was.started}, with the same id and no more restarts")


RULES = (call_fails, answer_lost, call_hangs)
ALONE = (backend_away, run_again, new_process)
