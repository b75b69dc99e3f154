"""How long one turn of the event loop takes: what leases, probes and the leadership have to wait for.

Invariant: it counts the CPU time of the loop's own thread, so other processes of the machine do not make a turn longer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attrs import define

MOST = 0.05
"""Seconds that one turn may take at 1,000 nodes with 20 pods each."""


@define
class Stall:
    """`longest` in seconds of CPU; `turns` of the loop while it was measured."""

    longest: float = 0.0
    turns: int = 0


@contextmanager
def stall_meter() -> Iterator[Stall]:
    """Measures the whole turns inside of the `with`: neither the one that enters it nor the one that leaves it."""
    found = Stall()
    loop: Any = asyncio.get_running_loop()
    turn = loop._run_once

    def measured() -> None:
        began = time.thread_time()
        turn()
        # The turn in which the `with` is left goes on with what comes after it.
        if loop._run_once is measured:
            found.longest, found.turns = max(found.longest, time.thread_time() - began), found.turns + 1

    loop._run_once = measured
    try:
        yield found
    finally:
        loop._run_once = turn
