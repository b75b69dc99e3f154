"""Times as Kubernetes writes them, and times that others write."""

import asyncio
from datetime import UTC, datetime

import pytest

from vkubelet.clock import parse_rfc3339, steps
from vkubelet.testing.clock import ManualClock


@pytest.mark.parametrize(
    "text",
    ["", "now", "2026-01-01", "2026-01-01T00:00:00", "2026-01-01T00:00:00.Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"],
)
def test_what_is_no_time_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_rfc3339(text)


def test_nanoseconds_are_cut_to_microseconds_and_zones_become_utc() -> None:
    assert parse_rfc3339("2026-01-01T01:00:00.123456789+01:00") == datetime(2026, 1, 1, 0, 0, 0, 123456, UTC)


async def test_a_wall_clock_that_is_set_is_noticed_and_one_that_drifts_is_not() -> None:
    clock, seen = ManualClock(), list[float]()

    async def follow() -> None:
        async for by in steps(clock):
            seen.append(by)

    async with asyncio.TaskGroup() as group:
        following = group.create_task(follow())
        await clock.advance(10.0)
        for by in (3600.0, -7200.0):
            clock.set(by)
            await clock.advance(1.0)
        for _ in range(100):
            clock.set(0.0005)
            await clock.advance(1.0)
        following.cancel()
    assert seen == pytest.approx([3600.0, -7200.0])
