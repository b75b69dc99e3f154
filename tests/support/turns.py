"""How often something happens in one turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from attrs import define, field

P = ParamSpec("P")
T = TypeVar("T")


@define
class TurnCounter:
    """`calls` of the counted functions by the number of the turn; another task of the loop runs in each turn."""

    turn: int = 0
    calls: Counter[int] = field(factory=Counter)

    def counted(self, function: Callable[P, T]) -> Callable[P, T]:
        """Returns the same function, whose calls are counted."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            self.calls[self.turn] += 1
            return function(*args, **kwargs)

        return call

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turn += 1


@asynccontextmanager
async def counted_turns() -> AsyncIterator[TurnCounter]:
    """Counts the turns of the loop inside of the `async with`."""
    counter = TurnCounter()
    task = asyncio.get_running_loop().create_task(counter._run())
    try:
        yield counter
    finally:
        task.cancel()
