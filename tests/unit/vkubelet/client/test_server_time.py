"""Tests of vkubelet.client.server_time."""

from datetime import UTC, datetime, timedelta

import pytest

from vkubelet.client.server_time import ServerTime
from vkubelet.testing.clock import ManualClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def header(moment: datetime) -> str:
    return moment.strftime("%a, %d %b %Y %H:%M:%S GMT")


async def test_it_is_that_of_the_server_whatever_our_clock_does() -> None:
    clock = ManualClock()
    time = ServerTime(clock)
    assert time.now() == clock.now()
    time.observe(header(NOON), took=0.1)
    await clock.advance(5.0)
    clock.set(-3600)
    assert time.now() == NOON + timedelta(seconds=5)


@pytest.mark.parametrize("text", ["", "yesterday", "Thu, 01 Jan 2026 09:00:00"])
def test_a_header_that_cannot_be_read_is_replaced_by_our_time(text: str) -> None:
    time = ServerTime(clock := ManualClock())
    time.observe(text, took=0.0)
    assert time.now() == clock.now()


async def test_whole_seconds_of_headers_never_take_it_back() -> None:
    """A response late in a second, then one early in another: the second header shows less than the time that has passed."""
    clock = ManualClock()
    time, last = ServerTime(clock), NOON
    for step in range(200):
        await clock.advance(0.37)
        time.observe(header(NOON + timedelta(seconds=0.37 * step)), took=0.0)
        assert last <= time.now() <= NOON + timedelta(seconds=0.37 * step)
        last = time.now()
    assert NOON + timedelta(seconds=0.37 * 199) - time.now() < timedelta(seconds=0.1)


async def test_a_slow_response_does_not_take_it_back() -> None:
    clock = ManualClock()
    time = ServerTime(clock)
    time.observe(header(NOON), took=0.0)
    await clock.advance(20.0)
    time.observe(header(NOON + timedelta(seconds=5)), took=15.0)
    assert time.now() == NOON + timedelta(seconds=20)


@pytest.mark.parametrize("seconds", [-3600, -3, 3, 3600])
async def test_it_follows_a_clock_that_was_set(seconds: int) -> None:
    clock = ManualClock()
    time = ServerTime(clock)
    time.observe(header(NOON), took=0.0)
    await clock.advance(10.0)
    time.observe(header(NOON + timedelta(seconds=10 + seconds)), took=0.5)
    assert time.now() == NOON + timedelta(seconds=10 + seconds)
