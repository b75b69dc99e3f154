"""Rules of pods that run.

Invariant: the provider's reports are compared with what kubectl shows of the pod.
"""

import json

from attrs import frozen

from vkubelet.api.objects import JsonView
from vkubelet.provider import SupportsPolling
from vkubelet.testing.conformance.judge import running
from vkubelet.testing.conformance.observed import status_names
from vkubelet.testing.conformance.rules import Broken, expect, rule
from vkubelet.testing.conformance.stand import Made, Stand

MANY = 20

EPHEMERAL_SHARE = 1 / 3
"""Part of the patience after which an ephemeral container without any report counts as not supported."""


@frozen
class Incarnation:
    """One start of a container, as its status shows it."""

    id: str
    started: str
    restarts: int


def incarnations(shown: JsonView) -> dict[str, Incarnation]:
    """Returns the starts of the app containers of a running pod, by name."""
    return {
        entry["name"]: Incarnation(
            entry.get("containerID", ""), entry.get("state", {}).get("running", {}).get("startedAt", ""), entry.get("restartCount", 0)
        )
        for entry in shown.get("status", {}).get("containerStatuses") or ()
    }


@rule()
async def pod_runs(stand: Stand) -> None:
    """A pod is reported Running and Ready, with the containers of its spec and no others."""
    (pod,) = await stand.running("runs")
    names = sorted(status_names(stand.pods.known[pod.uid]["status"]))
    expect(names == ["main"], f"the pod has the container main, its status has {names or 'none'}")
    await stand.delete("runs")
    await stand.ended(pod)


@rule()
async def many_at_once(stand: Stand) -> str:
    """Pods that are created together all run, however their sync_pods and reports interleave."""
    began = stand.clock.monotonic()
    names = [f"many-{number}" for number in range(MANY)]
    pods = await stand.running(*names)
    seconds = stand.clock.monotonic() - began
    await stand.delete(*names)
    await stand.ended(*pods)
    return f"{MANY} pods in {seconds:.1f} s"


@rule()
async def sync_again(stand: Stand) -> None:
    """sync_pod of a pod that runs already changes nothing: no container is restarted, and it stays one pod."""
    (pod,) = await stand.running("again")
    before = incarnations(stand.pods.known[pod.uid])
    for number in range(3):
        await synced_by(stand, pod, "annotate", "pod", pod.name, "--overwrite", f"vkubelet.io/conformance-round={number}")
    expect_same(await stand.shown(pod), before)
    count = sum(report.pod.uid == pod.uid for report in await stand.listed())
    expect(count <= 1, f"list_pods shows the pod {count} times")
    await stand.delete("again")
    await stand.ended(pod)


@rule()
async def list_complete(stand: Stand) -> None:
    """list_pods contains every pod the backend has for the node exactly once, by its UID, name and node, and no deleted one."""
    names = [f"listed-{number}" for number in range(5)]
    pods = await stand.running(*names)
    reports = await stand.listed()
    for pod in pods:
        mine = [report for report in reports if report.pod.uid == pod.uid]
        expect(len(mine) == 1, f"list_pods shows pod {pod.name} (uid {pod.uid}), which runs, {len(mine)} times")
        expect(mine[0].pod == pod.ref, f"list_pods shows {mine[0].pod} for {pod.ref}")
    await stand.delete(*names)
    await stand.ended(*pods)
    left = {report.pod.uid for report in await stand.listed()} & {pod.uid for pod in pods}
    expect(not left, f"list_pods still shows {len(left)} of {len(pods)} pods for which host.pod_gone was called")


@rule()
async def missing_reference(stand: Stand) -> str:
    """A pod whose mandatory ConfigMap does not exist waits until it does, where references are checked by host.resolve or the backend;
    where they are not, it runs."""
    name = "refers"
    env = [{"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": name, "key": "greeting"}}}]
    (pod,) = await stand.create(name, container={"env": env})
    what = "runs, or waits for its ConfigMap"
    shown = await stand.pods.until(name, lambda pod: running(pod) or _waits_for_config(pod), what, seconds=stand.patience)
    checked = not running(shown)
    if checked:
        await stand.judge.ok("create", "configmap", name, "--from-literal=greeting=hello")
        await stand.pods.until(name, running, "is Running and Ready once its ConfigMap exists", seconds=stand.patience)
    await stand.delete(name)
    await stand.ended(pod)
    return "references are checked" if checked else "not checked: pods run without what they refer to"


def _waits_for_config(pod: JsonView) -> bool:
    states = [entry.get("state") or {} for entry in pod.get("status", {}).get("containerStatuses") or ()]
    return any((state.get("waiting") or {}).get("reason") == "CreateContainerConfigError" for state in states)


@rule(needs=SupportsPolling)
async def polling_tells(stand: Stand) -> str:
    """list_pods, called every poll_interval seconds, shows the states of a pod's containers, so that nothing else need report them."""
    interval = stand.capability(SupportsPolling).poll_interval
    expect(interval > 0, f"poll_interval is {interval}, it must be more than 0")
    patience = stand.patience + 3 * interval
    (pod,) = await stand.running("polled")
    recording, before = stand.recording, len(stand.recording.of("list_pods", ""))
    await recording.changes.until(lambda: len(recording.of("list_pods", "")) >= before + 2, "list_pods is polled", seconds=patience)
    mine = [report for report in await stand.listed() if report.pod.uid == pod.uid]
    expect(mine and mine[0].containers, "list_pods shows the running pod without its containers, or not at all")
    await stand.delete("polled")
    await stand.pods.gone(pod.name, pod.uid, seconds=patience)
    return f"every {interval:g} s"


@rule()
async def ephemeral_container(stand: Stand) -> str:
    """An ephemeral container added to a running pod does not affect the others, whether the backend runs it or not."""
    (pod,) = await stand.running("ephemeral")
    before = incarnations(stand.pods.known[pod.uid])
    added = {"name": "debugger", "image": stand.options.image, "command": ["sh", "-c", "sleep 60"]}
    change = json.dumps({"spec": {"ephemeralContainers": [added]}})
    await synced_by(stand, pod, "patch", "pod", pod.name, "--subresource=ephemeralcontainers", f"--patch={change}")
    try:
        shown = await stand.pods.until(pod.name, _debugger, "shows its ephemeral container", seconds=EPHEMERAL_SHARE * stand.patience)
        seen = "reported " + _debugger(shown)
    except Broken:
        seen = "not supported"
    expect_same(await stand.shown(pod), before)
    await stand.delete("ephemeral")
    await stand.ended(pod)
    return seen


def _debugger(shown: JsonView) -> str:
    """Returns the state of the ephemeral container, once it has one."""
    for entry in shown.get("status", {}).get("ephemeralContainerStatuses") or ():
        kinds = [kind for kind in entry.get("state") or () if kind != "waiting"]
        return str(kinds[0]) if kinds else ""
    return ""


async def synced_by(stand: Stand, pod: Made, *change: str) -> None:
    """Changes the pod by kubectl, and waits until a sync_pod that started afterwards has returned."""
    recording, before = stand.recording, len(stand.recording.of("sync_pod", pod.uid))
    await stand.judge.ok(*change)

    def ended() -> bool:
        return any(call.ended is not None for call in recording.of("sync_pod", pod.uid)[before:])

    await recording.changes.until(ended, f"a sync_pod of {pod.name} after it was changed", seconds=stand.patience)


def expect_same(shown: JsonView, before: dict[str, Incarnation]) -> None:
    """Compares two states; an id that was not known before may appear, and with it the time of the start as the backend has it."""
    after = incarnations(shown)
    same = before.keys() == after.keys() and all(_same(was, after[name]) for name, was in before.items())
    expect(same, f"a container was started again: {_shown(before)} became {_shown(after)}")


def _same(was: Incarnation, now: Incarnation) -> bool:
    late = not was.id and now.id != ""
    return was.restarts == now.restarts if late else was == now


def _shown(found: dict[str, Incarnation]) -> str:
    return ", ".join(f"{name} {each.id or 'without id'} since {each.started or '?'}" for name, each in found.items()) or "none"


RULES = (pod_runs, ephemeral_container, missing_reference, many_at_once, sync_again, list_complete, polling_tells)
