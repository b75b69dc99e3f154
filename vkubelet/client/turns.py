"""Bounds how long requests and responses are processed in one turn of the event loop.

Invariant: a task passes only before a turn has lasted `LONGEST`, or as one of the first that waited for the next turn; those that wait pass
in the order in which they came, urgent ones before most others.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

LONGEST: Final = 0.01
"""Seconds of a turn after which no further task passes in it."""
RELEASED: Final = 8
"""Waiting tasks that continue together in a new turn; each takes a millisecond."""


class Turns:
    """A gate of one event loop; `now` returns seconds. All clients of a loop share one: it is the sum of their turns that occupies it.

    Dozens of responses may arrive at the same time, and each is followed by a decision and another request: processed together they occupy
    the loop, and Leases and probes wait for all of them.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ends: float | None = None
        """Until when tasks pass; None before the first task of a turn."""
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()

    @classmethod
    def shared(cls, now: Callable[[], float]) -> "Turns":
        """Returns the gate of the running event loop; the first caller determines its clock."""
        return _gates.setdefault(asyncio.get_running_loop(), cls(now))

    async def take(self, *, urgent: bool = False) -> None:
        """Waits for a turn of the event loop that has time for this task."""
        if self._ends is None:
            self._begin()
            return
        queue = self._urgent if urgent else self._waiting
        if self._urgent or queue or self._now() >= self._ends:
            place = asyncio.get_running_loop().create_future()
            queue.append(place)
            await place

    def _begin(self) -> None:
        self._ends = self._now() + LONGEST
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._ends = None
        # One place at least is left to those that are not urgent.
        released = self._release(self._urgent, RELEASED - 1 if self._waiting else RELEASED)
        released += self._release(self._waiting, RELEASED - released)
        if released:
            self._begin()

    def _release(self, queue: deque[asyncio.Future[None]], most: int) -> int:
        released = 0
        while queue and released < most:
            place = queue.popleft()
            # A task that was cancelled meanwhile takes no place.
            if not place.done():
                place.set_result(None)
                released += 1
        return released


_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()
