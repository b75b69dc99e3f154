"""How long one turn of the event loop takes: what leases, probes and the leadership have to wait for.

Invariant: it counts the CPU time of the loop's own thread, so other processes of the machine do not make a turn longer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import define

MOST = 0.05
"""Seconds that one turn may take at 1,000 nodes with 20 pods each."""


@define
class Stall:
    """`longest` in seconds of CPU; `turns` of the loop while it was measured."""

    longest: float = 0.0
    turns: int = 0


@asynccontextmanager
async def stall_meter() -> AsyncIterator[Stall]:
    """Measures what runs inside of the `with`."""
    found = Stall()
    async with asyncio.TaskGroup() as group:
        ticker = group.create_task(_tick(found))
        await asyncio.sleep(0)
        try:
            yield found
            # The turn that ends here counts as well.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        finally:
            ticker.cancel()


async def _tick(found: Stall) -> None:
    last = time.thread_time()
    while True:
        await asyncio.sleep(0)
        now = time.thread_time()
        found.longest, found.turns, last = max(found.longest, now - last), found.turns + 1, now
