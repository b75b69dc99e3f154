"""Work that goes on beside the tests that follow, because it takes long by nature.

Invariant: it has an event loop and a thread of its own, and both are gone when the block is left.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_ENDS = 30.0


@contextmanager
def background(work: Coroutine[object, object, T]) -> Iterator[concurrent.futures.Future[T]]:
    """The result, to be asked for later; what is not done at the end of the block is cancelled."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="background", daemon=True)
    thread.start()
    result = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        yield result
    finally:
        result.cancel()
        asyncio.run_coroutine_threadsafe(_others_ended(), loop).result(_ENDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_ENDS)
        loop.close()


async def _others_ended() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)
