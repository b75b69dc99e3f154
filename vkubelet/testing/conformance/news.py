"""Waits for a condition that depends on recorded events.

Invariant: nothing polls; a condition is checked after each event, and a wait that times out reports what it waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from vkubelet.testing.conformance.broken import Broken

T = TypeVar("T")


class News:
    """Notification of waiters; call `tell` after recording an event."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, look: Callable[[], T | None], what: str, *, seconds: float) -> T:
        """Returns the first true value of `look`. Raises Broken."""
        try:
            async with asyncio.timeout(seconds):
                while not (found := look()):
                    await self._event.wait()
                return found
        except TimeoutError:
            raise Broken(f"not within {seconds:g} s: {what}") from None
