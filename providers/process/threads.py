"""Runs file operations in a thread, so that a slow disk delays no other work.

Invariant: when the call returns, also by a cancellation, the operation has finished: nothing is created in the background of a caller that
may delete it.

Each call has a separate thread. In a pool of threads, a few pods on a disk that does not respond would keep all other pods from starting,
and the process from exiting.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Returns what `work` returns, or raises what it raises; it cannot be interrupted, so a cancellation waits for it."""
    result: Future[T] = Future()
    threading.Thread(target=_do, args=(partial(work, *args, **kwargs), result), daemon=True).start()
    future = asyncio.wrap_future(result)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        # Retrieved, so that asyncio does not log it as never retrieved.
        future.exception()
        raise cancelled
    return future.result()


def _do(work: Callable[[], T], result: Future[T]) -> None:
    try:
        result.set_result(work())
    except BaseException as error:
        result.set_exception(error)
