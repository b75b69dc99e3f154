"""Delays between attempts, and token buckets."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from vkubelet.control.backoff import CALL_LIMIT, REPAIR_CALM, REPAIR_LIMIT, Backoff, RepairBackoff, TokenBucket, with_retry, with_timeout
from vkubelet.errors import NotFound, ServerError, TooManyRequests, Unavailable, VKubeletError
from vkubelet.testing.clock import ManualClock


def test_delay_doubles_up_to_the_limit_and_stays_there() -> None:
    backoff = Backoff(first=0.5, limit=4, jitter=0)
    assert [backoff.next("a") for _ in range(6)] == [0.5, 1, 2, 4, 4, 4]


def test_success_starts_over() -> None:
    backoff = Backoff(first=1, jitter=0)
    backoff.next("a")
    backoff.next("a")
    backoff.reset("a")
    assert backoff.failures("a") == 0
    assert backoff.next("a") == 1


def test_keys_do_not_share_their_failures() -> None:
    backoff = Backoff(first=1, jitter=0)
    backoff.next("a")
    backoff.next("a")
    assert backoff.next("b") == 1


def test_jitter_only_shortens_so_the_limit_holds() -> None:
    shortest = Backoff(first=10, limit=10, jitter=0.1, rng=lambda: 1.0)
    longest = Backoff(first=10, limit=10, jitter=0.1, rng=lambda: 0.0)
    assert (shortest.next(), longest.next()) == (9, 10)


def test_a_year_of_failures_does_not_overflow() -> None:
    backoff = Backoff(limit=60, jitter=0)
    assert {backoff.next() for _ in range(5000)} >= {60.0}


async def test_bucket_gives_its_burst_then_its_rate() -> None:
    clock = ManualClock()
    bucket = TokenBucket(0.5, 3, clock=clock)
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    await clock.advance(2)
    assert [bucket.take() for _ in range(2)] == [True, False]


async def test_bucket_does_not_collect_more_than_its_burst() -> None:
    clock = ManualClock()
    bucket = TokenBucket(10, 2, clock=clock)
    await clock.advance(3600)
    assert [bucket.take() for _ in range(3)] == [True, True, False]


async def test_waiting_for_tokens_takes_as_long_as_the_rate_says() -> None:
    clock = ManualClock(autojump=True)
    bucket = TokenBucket(10, 1, clock=clock)
    for _ in range(21):
        await bucket.wait()
    assert abs(clock.monotonic() - 2.0) < 1e-6


COLOR = {"metadata": {"labels": {"color": "red"}}}


async def writes_within(seconds: float, repairs: RepairBackoff, clock: ManualClock) -> int:
    """How often COLOR is written to a node that never keeps it."""
    end, count = clock.monotonic() + seconds, 0
    while clock.monotonic() < end:
        wait = repairs.wait("n", COLOR)
        if wait == 0:
            repairs.record_write("n", COLOR)
            count += 1
        await clock.advance(wait or 0.1)
    return count


async def test_write_that_is_undone_each_time_is_repeated_ever_more_rarely() -> None:
    clock = ManualClock()
    repairs = RepairBackoff(clock)
    assert 6 <= await writes_within(60, repairs, clock) <= 8
    assert await writes_within(3600, repairs, clock) <= 3600 / REPAIR_LIMIT / 0.9 + 4


async def test_another_difference_another_node_and_a_heartbeat_go_out_at_once() -> None:
    repairs = RepairBackoff(ManualClock())
    repairs.record_write("n", COLOR)
    assert repairs.wait("n", COLOR) > 0
    assert repairs.wait("n", {"metadata": {"labels": {"color": "blue"}}}) == 0
    assert repairs.wait("m", COLOR) == 0
    assert repairs.wait("n", {}) == 0


async def test_repair_after_a_long_calm_counts_as_the_first() -> None:
    clock = ManualClock()
    repairs = RepairBackoff(clock)
    await writes_within(300, repairs, clock)
    await clock.advance(REPAIR_CALM + REPAIR_LIMIT)
    repairs.record_write("n", COLOR)
    assert repairs.wait("n", COLOR) <= 1


async def test_heartbeat_between_two_repairs_changes_nothing() -> None:
    repairs = RepairBackoff(ManualClock())
    repairs.record_write("n", COLOR)
    repairs.record_write("n", {})
    assert repairs.wait("n", COLOR) > 0


@pytest.fixture
def autojump() -> ManualClock:
    return ManualClock(autojump=True)


class Flaky:
    """Raises the given errors, one a call, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def failing() -> ServerError:
    return ServerError("get pods x", "broken", status=500)


async def test_retryable_errors_are_repeated_with_growing_pauses(autojump: ManualClock) -> None:
    call = Flaky(failing(), failing(), failing())
    assert await with_retry(call, clock=autojump) == "done"
    assert call.calls == 4
    assert 1.4 <= autojump.monotonic() <= 1.4 * 1.1


async def test_last_error_is_raised_when_the_attempts_are_used_up(autojump: ManualClock) -> None:
    call = Flaky(*(failing() for _ in range(9)))
    with pytest.raises(ServerError, match="broken"):
        await with_retry(call, attempts=3, clock=autojump)
    assert call.calls == 3


@pytest.mark.parametrize("error", [NotFound("get pods x", "gone"), VKubeletError("no"), ValueError("bug")])
async def test_other_errors_are_raised_at_once(autojump: ManualClock, error: Exception) -> None:
    call = Flaky(error)
    with pytest.raises(type(error)):
        await with_retry(call, clock=autojump)
    assert call.calls == 1
    assert autojump.monotonic() == 0


async def test_pause_is_never_shorter_than_the_server_asked(autojump: ManualClock) -> None:
    await with_retry(Flaky(TooManyRequests("get pods x", "slow", retry_after=7.0)), clock=autojump)
    assert autojump.monotonic() == 7.0


async def test_answer_and_error_of_the_call_pass_unchanged() -> None:
    async def fail(error: Exception) -> None:
        raise error

    clock = ManualClock()
    assert await with_timeout(asyncio.sleep(0, "answer"), "call", clock=clock) == "answer"
    for error in (KeyError("key"), TimeoutError("its own"), ExceptionGroup("two", [ValueError(), OSError()])):
        with pytest.raises(type(error)) as raised:
            await with_timeout(fail(error), "call", clock=clock)
        assert raised.value is error
    assert clock.sleepers == 0


async def test_call_that_hangs_is_cancelled_and_unavailable() -> None:
    ended: list[float] = []
    clock = ManualClock(autojump=True)

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(clock.monotonic())

    with pytest.raises(Unavailable, match="^stop_container did not answer within 30 s$"):
        await with_timeout(hang(), "stop_container", clock=clock)
    assert ended == [CALL_LIMIT]


async def test_cancellation_from_outside_ends_the_call_and_stays_one() -> None:
    clock, hung = ManualClock(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(with_timeout(hung.wait(), "call", clock=clock))
        await clock.settle()
        task.cancel()
    assert task.cancelled()
    assert clock.sleepers == 0


async def test_error_of_a_call_is_freed_without_the_garbage_collector() -> None:
    class Failed(Exception):
        pass

    async def fail() -> None:
        raise Failed

    gc.collect()
    gc.disable()
    try:
        with pytest.raises(Failed) as raised:
            await with_timeout(fail(), "call", clock=ManualClock())
        seen = weakref.ref(raised.value)
        del raised
        await asyncio.sleep(0)
        assert seen() is None
    finally:
        gc.enable()
