"""The brake on mass steps (rule `unknown-is-not-gone`)."""

from vkubelet.control.guard import MassGuard
from vkubelet.testing.clock import ManualClock


def passed(guard: MassGuard, names: list[str], total: int) -> list[str]:
    return [name for name in names if guard.allow(name, total)]


NODES = [f"n{number}" for number in range(20)]


def test_a_tenth_passes_and_the_next_one_trips_it() -> None:
    guard = MassGuard(clock=ManualClock())
    assert passed(guard, NODES[:2], 20) == ["n0", "n1"]
    assert not guard.refused
    assert not guard.allow("n2", 20)
    assert guard.refused


def test_one_always_passes_however_few_there_are() -> None:
    guard = MassGuard(clock=ManualClock())
    assert passed(guard, ["a", "b"], 2) == ["a"]


def test_asking_again_for_the_same_key_counts_once() -> None:
    guard = MassGuard(clock=ManualClock())
    assert [guard.allow("a", 5) for _ in range(3)] == [True, True, True]
    assert not guard.refused


def test_refusals_of_an_earlier_process_hold_until_each_pod_has_been_admitted_again() -> None:
    guard = MassGuard(clock=ManualClock())
    guard.trip()
    assert passed(guard, NODES[:3], 20) == []
    assert guard.release() and not guard.release()
    assert guard.refused == {"n0", "n1", "n2"} and not guard.allow("n3", 20)
    guard.confirm()
    assert passed(guard, NODES[:3], 20) == NODES[:3]


def test_nothing_waits_when_nothing_was_refused_again() -> None:
    guard = MassGuard(clock=ManualClock())
    guard.trip()
    guard.release()
    assert not guard.refused and guard.allow("n0", 20)


async def test_slow_retirement_never_trips() -> None:
    clock = ManualClock()
    guard = MassGuard(clock=clock)
    for name in NODES:
        assert guard.allow(name, 5)
        await clock.advance(60)


async def test_tripped_stays_tripped_after_the_span() -> None:
    clock = ManualClock()
    guard = MassGuard(clock=clock)
    passed(guard, NODES, 20)
    await clock.advance(3600)
    assert guard.refused
    assert not guard.allow("another", 20)


def test_confirmation_lets_pass_what_waited_and_nothing_else_for_free() -> None:
    guard = MassGuard(clock=ManualClock())
    passed(guard, NODES, 20)
    assert guard.refused == frozenset(NODES[2:])
    guard.confirm()
    assert not guard.refused
    assert passed(guard, NODES[2:], 20) == NODES[2:]
    assert not guard.allow("another", 20)


def test_confirmation_counts_once_per_key() -> None:
    guard = MassGuard(clock=ManualClock())
    passed(guard, NODES, 20)
    guard.confirm()
    assert guard.allow("n5", 20)
    assert not guard.allow("n5", 20)


def test_brake_opens_when_all_causes_vanish() -> None:
    guard = MassGuard(clock=ManualClock())
    passed(guard, NODES[:4], 20)
    guard.forget("n2")
    assert guard.refused
    guard.forget("n3")
    assert not guard.refused
