"""How long to wait, and how often to try: exponential back-off, rate limits, retries of one call, and time limits of one call.

Invariant: delays double up to a limit and never exceed it; a success resets them. Only errors marked `retryable` are retried, and never
sooner than the server requested. A call that exceeds its time limit is cancelled before its caller continues, so no two calls overlap.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

from attrs import frozen
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from vkubelet.api.objects import Json
from vkubelet.clock import Clock, SystemClock
from vkubelet.errors import Unavailable, VKubeletError

T = TypeVar("T")

CALL_LIMIT = 30.0
"""Seconds for a call that only forwards a request, or reads existing state."""

_RETRY_FIRST, _RETRY_LIMIT, _RETRY_JITTER = 0.2, 5.0, 0.1

REPAIR_FIRST, REPAIR_LIMIT = 1.0, 300.0
"""Seconds before the second and before a much later repetition of a write that is reverted."""

REPAIR_CALM = 600.0
"""Seconds without a repetition after which the next one counts as the first."""


class Backoff:
    """Doubling delays per key, in seconds; up to the share `jitter` of each is subtracted at random, so that crowds disperse."""

    def __init__(self, *, first: float = 0.2, limit: float = 60.0, jitter: float = 0.1, rng: Callable[[], float] = random.random) -> None:
        self._first = first
        self._limit = limit
        self._jitter = jitter
        self._rng = rng
        self._failures: dict[Hashable, int] = {}

    def next(self, key: Hashable = None) -> float:
        """Records a failure; returns the seconds to wait."""
        before = self._failures.get(key, 0)
        self._failures[key] = before + 1
        return min(self._limit, self._first * 2.0 ** min(before, 30)) * (1 - self._jitter * self._rng())

    def failures(self, key: Hashable = None) -> int:
        """Returns the number of failures since the last success."""
        return self._failures.get(key, 0)

    def reset(self, key: Hashable = None) -> None:
        """Records a success."""
        self._failures.pop(key, None)


class TokenBucket:
    """Token bucket: at most `burst` at once and `rate` per second in the long run."""

    def __init__(self, rate: float, burst: float, *, clock: Clock) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._filled_at = clock.monotonic()

    def take(self) -> bool:
        """Takes a token if there is one."""
        self._fill()
        # Sums of fractions rarely make exactly one token.
        if self._tokens < 1 - 1e-6:
            return False
        self._tokens = max(0.0, self._tokens - 1)
        return True

    async def wait(self) -> None:
        """Waits for a token and takes it."""
        while not self.take():
            await self._clock.sleep((1 - self._tokens) / self._rate)

    def _fill(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now


@frozen
class _Write:
    difference: Json
    at: float
    again: float


class RepairBackoff:
    """Delays of a write that has to be repeated because another client, or the API server itself, reverts it.

    A write that differs from the previous one of the same object is due at once; an equal one waits twice as long each time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._backoff = Backoff(first=REPAIR_FIRST, limit=REPAIR_LIMIT)
        self._last: dict[str, _Write] = {}

    def wait(self, name: str, difference: Json) -> float:
        """Returns the seconds until this may be written; 0: now."""
        last = self._last.get(name)
        if last is None or not difference or last.difference != difference:
            return 0.0
        return max(0.0, last.again - self._clock.monotonic())

    def record_write(self, name: str, difference: Json) -> None:
        """Records that this was written now; an empty difference is never a repetition."""
        if not difference:
            return
        now, last = self._clock.monotonic(), self._last.get(name)
        if last is None or last.difference != difference or now - last.at > REPAIR_CALM:
            self._backoff.reset(name)
        self._last[name] = _Write(difference, now, now + self._backoff.next(name))

    def remove(self, name: str) -> None:
        """Drops a deleted object."""
        self._last.pop(name, None)
        self._backoff.reset(name)


async def with_retry(call: Callable[[], Awaitable[T]], *, attempts: int = 4, clock: Clock | None = None) -> T:
    """Returns the result of the first call that succeeds; raises the last error when `attempts` are used up or it is not retryable.

    Waits 0.2, 0.4, 0.8 … s, or `retry_after` when that is longer.
    """
    policy = AsyncRetrying(
        stop=stop_after_attempt(attempts),
        wait=_retry_delay,
        retry=retry_if_exception(_retryable),
        sleep=(clock or SystemClock()).sleep,
        reraise=True,
    )

    async def attempt() -> T:
        # tenacity awaits only what it recognises as a coroutine function, which a lambda or a partial is not.
        return await call()

    return await policy(attempt)


def _retryable(error: BaseException) -> bool:
    return isinstance(error, VKubeletError) and error.retryable


def _retry_delay(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = getattr(error, "retry_after", None) or 0.0
    own = min(_RETRY_LIMIT, _RETRY_FIRST * 2.0 ** (state.attempt_number - 1))
    return max(own * random.uniform(1.0, 1.0 + _RETRY_JITTER), asked)


async def with_timeout(call: Awaitable[T], what: str, *, clock: Clock, within: float = CALL_LIMIT) -> T:
    """Returns what `call` returns. Raises Unavailable, naming `what`, when it takes longer than `within` seconds of `clock`."""
    scope, failure = asyncio.timeout(None), None
    try:
        async with scope, asyncio.TaskGroup() as group:
            limit = group.create_task(_expire(scope, clock, within))
            try:
                return await call
            except Exception as error:
                # Not raised here: a task group and the exceptions it raises are reference cycles. Those of thousands of pods of an
                # unreachable worker would block the event loop when the garbage collector frees them.
                failure = error
            finally:
                limit.cancel()
    except TimeoutError as error:
        raise Unavailable(f"{what} did not answer within {within:g} s") from error
    try:
        assert failure is not None
        raise failure
    finally:
        # Its traceback refers to this frame.
        failure = None


async def _expire(scope: asyncio.Timeout, clock: Clock, seconds: float) -> None:
    await clock.sleep(seconds)
    scope.reschedule(asyncio.get_running_loop().time())
