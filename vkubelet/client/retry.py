"""The policy for retrying one call a few times within seconds; longer retries are left to the workqueue.

Invariant: only errors marked `retryable` are retried, and never sooner than the server requested.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from vkubelet.clock import Clock, SystemClock
from vkubelet.errors import VKubeletError

T = TypeVar("T")

_FIRST, _LONGEST, _JITTER = 0.2, 5.0, 0.1


async def with_retry(call: Callable[[], Awaitable[T]], *, attempts: int = 4, clock: Clock | None = None) -> T:
    """Returns the result of the first call that succeeds; raises the last error when `attempts` are used up or it is not retryable.

    Waits 0.2, 0.4, 0.8 … s, or `retry_after` when that is longer.
    """
    policy = AsyncRetrying(
        stop=stop_after_attempt(attempts),
        wait=_wait,
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


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = getattr(error, "retry_after", None) or 0.0
    own = min(_LONGEST, _FIRST * 2.0 ** (state.attempt_number - 1))
    return max(own * random.uniform(1.0, 1.0 + _JITTER), asked)
