"""Work on files in a thread, so that a slow disk holds up nobody else.

Invariant: when the call has ended, by a cancellation too, the work has ended: nothing is made behind the back of who removes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns; it can not be cut off, so a cancellation waits for it."""
    future = asyncio.get_running_loop().run_in_executor(None, partial(work, *args, **kwargs))
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        # Asked for, so that nobody complains of an error that was not looked at.
        future.exception()
        raise cancelled
    return future.result()
