"""Bounds how long requests and responses are processed in one turn of the event loop.

Invariant: a task passes only before a turn has lasted `LONGEST`, or as one of the first that waited for the next turn; those that wait pass
in the order in which they came.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

LONGEST: Final = 0.01
"""Seconds of a turn after which no further task passes in it."""
RELEASED: Final = 8
"""Waiting tasks that continue together in a new turn; each takes a millisecond."""


class Turns:
    """A gate of one event loop; `now` returns seconds.

    Dozens of responses may arrive at the same time, and each is followed by a decision and another request: processed together they occupy
    the loop, and Leases and probes wait for all of them.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ends: float | None = None
        """Until when tasks pass; None before the first task of a turn."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Waits for a turn of the event loop that has time for this task."""
        if self._ends is None:
            self._begin()
        elif self._waiting or self._now() >= self._ends:
            place = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            await place

    def _begin(self) -> None:
        self._ends = self._now() + LONGEST
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._ends = None
        released = 0
        while self._waiting and released < RELEASED:
            place = self._waiting.popleft()
            # A task that was cancelled meanwhile takes no place.
            if not place.done():
                place.set_result(None)
                released += 1
        if released:
            self._begin()
