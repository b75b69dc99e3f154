"""Work that goes on beside the tests that follow, because it takes long by nature.

Invariant: what is not done at the end of the block is cancelled.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tests.support.beside import Beside

T = TypeVar("T")


@contextmanager
def background(work: Coroutine[object, object, T]) -> Iterator[concurrent.futures.Future[T]]:
    """The result, to be asked for later."""
    with Beside() as beside:
        result = beside.submit(work)
        try:
            yield result
        finally:
            result.cancel()
