"""An event loop in a separate thread, for servers and watches of a test that must go on while the test waits.

Invariant: when the block is left, no task of it runs any more, and loop and thread are gone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

_ENDS = 30.0


class Beside:
    """Use as a context manager, which runs `close` in the loop at its end."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.run(self.close())
        self.run(_cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_ENDS)
        self.loop.close()

    async def close(self) -> None:
        """Closes what the loop serves."""

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop and waits for its result."""
        return self.submit(work).result(_ENDS)

    def do(self, step: Callable[[], T]) -> T:
        """Calls a function in the loop and waits for its result."""

        async def call() -> T:
            return step()

        return self.run(call())


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
