"""Shows the progress of long steps, with and without a terminal.

Invariant: while a step runs, a line is printed at least every `TICK_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from vkubelet.clock import Clock

TICK_SECONDS = 10.0
T = TypeVar("T")


async def told(work: Awaitable[T], text: str, *, say: Callable[[str], None], clock: Clock) -> T:
    """Awaits `work`, printing `text` at once and with the seconds passed from then on."""
    started = clock.monotonic()
    say(f"{text} …")

    async def tick() -> None:
        while True:
            await clock.sleep(TICK_SECONDS)
            say(f"{text} … {clock.monotonic() - started:.0f} s")

    try:
        async with asyncio.TaskGroup() as group:
            ticker = group.create_task(tick())
            try:
                return await work
            finally:
                ticker.cancel()
    except ExceptionGroup as failures:
        # The caller does not know the ticker and expects the error of `work`.
        raise failures.exceptions[0] from None
