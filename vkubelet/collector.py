"""Keeps passes of Python's garbage collector short, however many pods a process has.

A full pass looks at every container object and stops the event loop meanwhile: 0.2 s at 20,000 pods. What has survived two passes is mostly
part of a cache and is frozen here, so that no pass looks at it again; reference counts still free it. Only cycles among frozen objects stay
until the next full pass.

Invariant: a full pass runs only after the number of frozen objects has doubled since the one before.
"""

from __future__ import annotations

import gc
import logging
import time
from typing import Final

from attrs import define, frozen

from vkubelet.clock import Clock
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

EVERY: Final = 5.0
"""Seconds between two looks."""
YOUNG: Final = 5_000
"""New objects until a pass over them: about a microsecond for each. What a call leaves behind is mostly freed without a pass."""
MIDDLE: Final = 3
"""Such passes until one over their survivors, which are at most so many times as many."""
NEVER: Final = 2**30
"""Full passes are started here alone."""
OLD: Final = 20_000
"""Survivors of two passes that are worth freezing."""
SMALL: Final = 100_000
"""Frozen objects that a process may gain without a full pass."""


@frozen
class Size:
    """Numbers of objects: `old` are those a full pass would look at, `frozen` those it would not."""

    old: int
    frozen: int


def full_pass_is_due(now: Size, after_last: int) -> bool:
    """`after_last`: frozen objects after the last full pass."""
    return now.old + now.frozen > 2 * after_last + SMALL


@define
class Collector:
    """Of this process; `start` once, before anything is cached."""

    _after_last: int = 0

    def start(self) -> None:
        """Freeze what is loaded by now, which stays for the life of the process."""
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        self._collect()

    async def run(self, clock: Clock) -> None:
        """Freeze what has become old, from time to time, until cancelled."""
        while True:
            await clock.sleep(EVERY)
            self.look()

    def look(self) -> None:
        old = len(gc.get_objects(2))
        if old < OLD:
            return
        if full_pass_is_due(Size(old, gc.get_freeze_count()), self._after_last):
            began = time.thread_time()
            gc.unfreeze()
            self._collect()
            with bind(seconds=round(time.thread_time() - began, 3), objects=self._after_last):
                log.debug("full pass of the garbage collector")
        else:
            # What is garbage already is not frozen with the rest.
            gc.collect(1)
            gc.freeze()

    def _collect(self) -> None:
        gc.collect()
        gc.freeze()
        self._after_last = gc.get_freeze_count()
