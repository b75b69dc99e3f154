"""Rules of a backend that fails, loses responses or hangs.

Invariant: faults are injected around the provider, which need not know of them; a rule that runs beside others fails only calls for its own
pod.
"""

from __future__ import annotations

from vkubelet.provider import SupportsPolling
from vkubelet.testing.conformance.faults import CONTAINER_CALLS, POD_CALLS, Fault
from vkubelet.testing.conformance.judge import running
from vkubelet.testing.conformance.pods import expect_same, incarnations
from vkubelet.testing.conformance.rules import Phase, expect, rule
from vkubelet.testing.conformance.stand import Made, Stand

STARTS = ("sync_pod", "prepare_pod", "start_container")
ENDS = ("delete_pod", "stop_container", "remove_pod")

SETTLE = 1.5
"""Seconds in which a repeated call would show a double effect."""

AWAY = 2.5
"""Seconds without the backend: longer than the grace period of the pod that is deleted meanwhile."""

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


RULES = (call_fails, answer_lost, call_hangs)
ALONE = (backend_away,)
