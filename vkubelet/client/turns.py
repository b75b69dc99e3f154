"""How many requests and responses are processed in one turn of the event loop.

Invariant: at most `size` tasks pass in one turn, in the order in which they came; none of them waits while a turn has place.
"""

import asyncio
from collections import deque


class Turns:
    """A gate of one event loop.

    Dozens of responses may arrive at the same time, and each is followed by a decision and another request: processed together they occupy
    the loop, and Leases and probes wait for all of them.
    """

    def __init__(self, size: int = 8) -> None:
        self._size = size
        self._free = size
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Waits for a turn of the event loop that has place for this task."""
        loop = asyncio.get_running_loop()
        if self._free == self._size:
            loop.call_soon(self._next, loop)
        if self._free:
            self._free -= 1
            return
        place = loop.create_future()
        self._waiting.append(place)
        await place

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._free = self._size
        while self._waiting and self._free:
            place = self._waiting.popleft()
            # A task that was cancelled meanwhile takes no place.
            if not place.done():
                place.set_result(None)
                self._free -= 1
        if self._free < self._size:
            loop.call_soon(self._next, loop)
