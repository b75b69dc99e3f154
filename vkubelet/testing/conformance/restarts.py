"""Rules of providers that are restarted.

Invariant: every pod that was bound to the node before runs afterwards; a backend may have dropped it, but must report that.
"""

from __future__ import annotations

from vkubelet.api.objects import JsonView
from vkubelet.testing.conformance.judge import running
from vkubelet.testing.conformance.pods import Incarnation, expect_same, incarnations
from vkubelet.testing.conformance.rules import Phase, expect, rule
from vkubelet.testing.conformance.stand import Made, Stand

SETTLE = 1.0
"""Seconds in which a provider reports the state of its containers."""


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
    await stand.clock.sleep(SETTLE)
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
        await stand.clock.sleep(SETTLE)
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


RULES = (run_again, new_process)
