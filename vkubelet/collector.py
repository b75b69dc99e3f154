"""Keeps passes of Python's garbage collector short, however many pods a process has.

A full pass traverses every container object and blocks the event loop meanwhile: 0.7 s at 20,000 pods. So what is loaded at the start is
frozen, which excludes it from passes, and everything else is frozen as soon as it is more than a short pass traverses: most of it is in a
cache. Reference counts still free frozen objects; only cycles among them remain until the next full pass. What is not frozen has a pass
every minute, which frees among others the errors that were kept while a call waited for a retry, with their connections and buffers.

Python starts a pass after so many allocations more than frees. A process that replaces the objects of its cache frees as many as it
allocates: no pass starts, while new objects accumulate for the next one. So passes over new objects are started here, by time.

Invariant: a full pass runs only after the memory of the process has doubled since the one before; between two of them nothing here takes
longer than a pass over `2 * MANY` objects. (Counting frozen objects does: Python traverses them.)
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
"""Seconds between two passes over new objects."""
GROWTH_CHECKED: Final = 25
"""Such passes until the growth of the memory is checked, which takes up to a millisecond."""
TIDIED: Final = 12 * GROWTH_CHECKED
"""Such passes until a pass over everything that is not frozen: a minute."""
YOUNG: Final = 4_000
"""New objects, those freed subtracted, until Python itself passes over them: within a turn that decodes a long list."""
MIDDLE: Final = 3
"""Passes over new objects until a pass over their survivors, which are at most `YOUNG * MIDDLE`."""
NEVER: Final = 2**30
"""Passes over older objects are started here alone."""
MANY: Final = 60_000
"""Container objects that are frozen when there are more of them: a pass over so many takes some 20 ms."""
BURST: Final = 3
"""Passes over survivors that Python itself starts between two checks when too many objects are new to be counted."""
SMALL: Final = 400_000
"""Memory blocks, a few for each object, that a small process may gain without a full pass."""
TRIMMED: Final = 8_000_000
"""Memory blocks, about a gigabyte, of the largest process that returns what is free of its heap every minute."""


def full_pass_is_due(blocks: int, after_last: int) -> bool:
    """Returns whether the allocated memory blocks have doubled; `after_last` is their number after the last full pass."""
    return blocks > 2 * after_last + SMALL


def return_free_memory() -> None:
    """Returns the free part of the heap to the kernel, where the C library is glibc; takes a millisecond or two for each 50 MiB in use.

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
    _seen: int = 0
    """Passes over survivors, since the last one over all that is not frozen, that Python had counted at the last check."""

    def start(self) -> None:
        """Freezes everything loaded so far, which remains until the process exits."""
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        self._full_pass()

    async def run(self, clock: Clock) -> None:
        """Makes passes periodically until cancelled."""
        while True:
            await clock.sleep(EVERY)
            self.check()

    def check(self) -> None:
        """Passes over new objects, and at each call number `GROWTH_CHECKED` or `TIDIED` over more, where that is due."""
        self._passes += 1
        started = gc.get_count()[2] - self._seen
        gc.collect(1)
        if started > BURST:
            gc.freeze()
        elif started > 0 or self._passes % GROWTH_CHECKED == 0:
            self._freeze_many()
        if self._passes % GROWTH_CHECKED == 0:
            self._check_growth()
        self._seen = gc.get_count()[2]

    def _freeze_many(self) -> None:
        """Freezes what has survived, without existing garbage, when it is more than `MANY`."""
        number = len(gc.get_objects(2))
        if MANY < number <= 2 * MANY:
            gc.collect()
        if number > MANY:
            gc.freeze()

    def _check_growth(self) -> None:
        blocks, tidied = sys.getallocatedblocks(), self._passes % TIDIED == 0
        if full_pass_is_due(blocks, self._after_last):
            self._full_pass()
        elif tidied:
            gc.collect()
        if tidied and blocks <= TRIMMED:
            return_free_memory()

    def _full_pass(self) -> None:
        began = time.thread_time()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._after_last = sys.getallocatedblocks()
        with bind(seconds=round(time.thread_time() - began, 3), blocks=self._after_last):
            log.debug("full pass of the garbage collector")
