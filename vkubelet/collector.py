"""Keeps passes of Python's garbage collector short, however many pods a process has.

A full pass traverses every container object and blocks the event loop meanwhile: 0.7 s at 20,000 pods. Most objects that survive a pass are
part of a cache; they are frozen here, so that no pass traverses them again. Reference counts still free them; only cycles among frozen
objects remain until the next full pass: those of an error that was kept while its call waited for a retry, for one. So a process for which
a full pass is short runs one every minute in which its memory has grown a little, and returns what is free of its heap to the kernel.

Python starts a pass after so many allocations more than frees. A process that replaces the objects of its cache frees as many as it
allocates: no pass starts, while new objects accumulate for the next one. So passes over new objects are started here, by time.

Invariant: a full pass that is not short runs only after the memory of the process has doubled since the one before; between two of them
nothing here takes longer than a pass over the objects of the last fifth of a second. (Counting frozen objects does: Python traverses them.)
"""

import ctypes
import gc
import logging
import sys
import time
from typing import Final

from attrs import define

from vkubelet.clock import Clock
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

EVERY: Final = 0.2
"""Seconds between two passes over new objects, whose survivors are frozen."""
GROWTH_CHECKED: Final = 25
"""Such passes until the growth of the memory is checked, which takes up to a millisecond."""
TIDIED: Final = 12 * GROWTH_CHECKED
"""Such passes until a small process is tidied."""
YOUNG: Final = 4_000
"""New objects, those freed subtracted, until Python itself passes over them: within a turn that decodes a long list."""
MIDDLE: Final = 3
"""Passes over new objects until a pass over their survivors, which are at most `YOUNG * MIDDLE`."""
NEVER: Final = 2**30
"""Full passes are started here alone."""
SMALL: Final = 400_000
"""Memory blocks, a few for each object, that a small process may gain without a full pass."""
FEW: Final = 600_000
"""Memory blocks of a small process: a full pass over them takes some 40 ms, and need not wait until they have doubled."""
LITTLE: Final = 10_000
"""Memory blocks, about a megabyte, that a process may gain besides a fiftieth until a short pass."""


def full_pass_is_due(blocks: int, after_last: int) -> bool:
    """Returns whether the allocated memory blocks have doubled; `after_last` is their number after the last full pass."""
    return blocks > 2 * after_last + SMALL


def has_grown_a_little(blocks: int, after_last: int) -> bool:
    """Returns whether the memory blocks have grown by a fiftieth, and more than `LITTLE`, since the last full pass."""
    return blocks > 1.02 * after_last + LITTLE


def return_free_memory() -> None:
    """Returns the free part of the heap to the kernel, where the C library is glibc; takes a few milliseconds for each 50 MiB in use.

    A TLS connection has a buffer of 256 KiB. What one leaves in the heap when it is closed is soon divided among small blocks, so
    connections that are closed and opened again would leave more and more of the heap in use by nothing. (A fixed M_MMAP_THRESHOLD would
    return each buffer at once, but every read from a connection would take system calls and page faults.)
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


@define
class Collector:
    """The garbage collector of this process; call `start` once, before anything is cached."""

    _after_last: int = 0
    _passes: int = 0

    def start(self) -> None:
        """Freezes everything loaded so far, which remains until the process exits."""
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        self._collect()

    async def run(self, clock: Clock) -> None:
        """Freezes new objects periodically until cancelled."""
        while True:
            await clock.sleep(EVERY)
            self.check()

    def check(self) -> None:
        """Freezes new objects, or every object in a full pass, for which it checks at each call number `GROWTH_CHECKED`."""
        self._passes += 1
        blocks = sys.getallocatedblocks() if self._passes % GROWTH_CHECKED == 0 else 0
        tidied = 0 < blocks <= FEW and self._passes % TIDIED == 0
        if blocks and (full_pass_is_due(blocks, self._after_last) or (tidied and has_grown_a_little(blocks, self._after_last))):
            began = time.thread_time()
            gc.unfreeze()
            self._collect()
            with bind(seconds=round(time.thread_time() - began, 3), blocks=self._after_last):
                log.debug("full pass of the garbage collector")
        else:
            # Existing garbage must not be frozen with the rest.
            gc.collect(1)
            gc.freeze()
        if tidied:
            return_free_memory()

    def _collect(self) -> None:
        gc.collect()
        gc.freeze()
        self._after_last = sys.getallocatedblocks()
