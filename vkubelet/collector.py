"""Keeps passes of Python's garbage collector short, however many pods a process has.

A full pass traverses every container object and blocks the event loop meanwhile: 0.2 s at 20,000 pods. Objects that survived two passes are
mostly part of a cache; they are frozen here, so that no pass traverses them again. Reference counts still free them; only cycles among
frozen objects remain until the next full pass.

Invariant: a full pass runs only after the memory of the process has doubled since the one before; between two of them nothing here takes
longer than a pass over some thousand objects. (Counting frozen objects does: Python traverses them, 0.3 s at 20,000 pods.)
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from typing import Final

from attrs import define

from vkubelet.clock import Clock
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

EVERY: Final = 5.0
"""Seconds between two checks."""
YOUNG: Final = 2_000
"""New objects until a pass over them: some microseconds for each. Objects of a call are mostly freed without a pass."""
MIDDLE: Final = 3
"""Passes over new objects until a pass over their survivors, which are at most `YOUNG * MIDDLE`."""
NEVER: Final = 2**30
"""Full passes are started here alone."""
OLD: Final = 4
"""Passes over survivors after which those of both passes are worth freezing."""
SMALL: Final = 400_000
"""Memory blocks, a few for each object, that a small process may gain without a full pass."""


def full_pass_is_due(blocks: int, after_last: int) -> bool:
    """Returns whether the allocated memory blocks have doubled; `after_last` is their number after the last full pass."""
    return blocks > 2 * after_last + SMALL


@define
class Collector:
    """The garbage collector of this process; call `start` once, before anything is cached."""

    _after_last: int = 0

    def start(self) -> None:
        """Freezes everything loaded so far, which remains until the process exits."""
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        self._collect()

    async def run(self, clock: Clock) -> None:
        """Freezes old objects periodically until cancelled."""
        while True:
            await clock.sleep(EVERY)
            self.check()

    def check(self) -> None:
        """Freezes old objects if there may be many, after a full pass if one is due."""
        if gc.get_count()[2] < OLD:
            return
        if full_pass_is_due(sys.getallocatedblocks(), self._after_last):
            began = time.thread_time()
            gc.unfreeze()
            self._collect()
            with bind(seconds=round(time.thread_time() - began, 3), blocks=self._after_last):
                log.debug("full pass of the garbage collector")
        else:
            # Existing garbage must not be frozen with the rest.
            gc.collect(1)
            gc.freeze()

    def _collect(self) -> None:
        gc.collect()
        gc.freeze()
        self._after_last = sys.getallocatedblocks()
