"""A timeout for calls to a provider, so that a call to a backend that hangs is retried.

Invariant: a call that exceeds its timeout is cancelled before the caller receives Unavailable, so no two calls of one caller overlap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from vkubelet.clock import Clock
from vkubelet.errors import Unavailable

T = TypeVar("T")

LIMIT = 30.0
"""Seconds for a call that only forwards a request, or reads existing state."""


async def answered(call: Awaitable[T], what: str, *, clock: Clock, within: float = LIMIT) -> T:
    """Returns what `call` returns. Raises Unavailable, naming `what`, when it takes longer than `within` seconds of `clock`."""
    scope = asyncio.timeout(None)
    try:
        async with scope, asyncio.TaskGroup() as group:
            limit = group.create_task(_expire(scope, clock, within))
            try:
                return await call
            finally:
                limit.cancel()
    except ExceptionGroup as errors:
        # The timeout itself never fails: this is what the call raised, which includes its own TimeoutError.
        raise errors.exceptions[0] from None
    except TimeoutError as error:
        raise Unavailable(f"{what} did not answer within {within:g} s") from error
    raise AssertionError("a task group neither returned nor raised")


async def _expire(scope: asyncio.Timeout, clock: Clock, seconds: float) -> None:
    await clock.sleep(seconds)
    scope.reschedule(asyncio.get_running_loop().time())
