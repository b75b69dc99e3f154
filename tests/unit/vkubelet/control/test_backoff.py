"""Delays between attempts, and token buckets."""

from vkubelet.control.backoff import Backoff, TokenBucket
from vkubelet.testing.clock import ManualClock


def test_delay_doubles_up_to_the_limit_and_stays_there() -> None:
    backoff = Backoff(first=0.5, limit=4, jitter=0)
    assert [backoff.next("a") for _ in range(6)] == [0.5, 1, 2, 4, 4, 4]


def test_success_starts_over() -> None:
    backoff = Backoff(first=1, jitter=0)
    backoff.next("a")
    backoff.next("a")
    backoff.forget("a")
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
