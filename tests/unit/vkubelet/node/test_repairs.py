"""How often one and the same write of a node is repeated."""

from vkubelet.node.repairs import CALM, LIMIT, Repairs
from vkubelet.testing.clock import ManualClock

COLOR = {"metadata": {"labels": {"color": "red"}}}


async def writes_within(seconds: float, repairs: Repairs, clock: ManualClock) -> int:
    """How often COLOR is written to a node that never keeps it."""
    end, count = clock.monotonic() + seconds, 0
    while clock.monotonic() < end:
        wait = repairs.wait("n", COLOR)
        if wait == 0:
            repairs.wrote("n", COLOR)
            count += 1
        await clock.advance(wait or 0.1)
    return count


async def test_write_that_is_undone_each_time_is_repeated_ever_more_rarely() -> None:
    clock = ManualClock()
    repairs = Repairs(clock)
    assert 6 <= await writes_within(60, repairs, clock) <= 8
    assert await writes_within(3600, repairs, clock) <= 3600 / LIMIT / 0.9 + 4


async def test_another_difference_another_node_and_a_heartbeat_go_out_at_once() -> None:
    repairs = Repairs(ManualClock())
    repairs.wrote("n", COLOR)
    assert repairs.wait("n", COLOR) > 0
    assert repairs.wait("n", {"metadata": {"labels": {"color": "blue"}}}) == 0
    assert repairs.wait("m", COLOR) == 0
    assert repairs.wait("n", {}) == 0


async def test_repair_after_a_long_calm_counts_as_the_first() -> None:
    clock = ManualClock()
    repairs = Repairs(clock)
    await writes_within(300, repairs, clock)
    await clock.advance(CALM + LIMIT)
    repairs.wrote("n", COLOR)
    assert repairs.wait("n", COLOR) <= 1


async def test_heartbeat_between_two_repairs_changes_nothing() -> None:
    repairs = Repairs(ManualClock())
    repairs.wrote("n", COLOR)
    repairs.wrote("n", {})
    assert repairs.wait("n", COLOR) > 0
