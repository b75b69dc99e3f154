"""`python -m tests.benchmarks.metered FILE ARGS…`: `kubeocean ARGS…` with a meter of its event loop, which writes a JSON line every second.

Invariant: it counts the CPU time of the loop's own thread, the garbage collector's included; other processes of the machine do not count.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop
from attrs import define, field

from kubeocean.cli import main

_TICK = 0.001
"""Seconds between two measurements in the loop: a turn is measured up to so much too long."""
_LOOK = 0.005
"""Seconds of CPU between two samples of what a turn does."""
_LONG = 0.03
"""Seconds of CPU after which it is noted what a turn has done."""


@define
class Meter:
    """What happened since the last line. `where`: the innermost calls of long turns, while they ran."""

    file: Path
    longest: float = 0.0
    collector: float = 0.0
    """The longest pass of the garbage collector."""
    where: list[Sequence[str]] = field(factory=list)
    _clock: int = 0
    _last: float = 0.0
    _pass_began: float = 0.0
    _written: float = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._last, self._written = self._now(), time.monotonic()
        gc.callbacks.append(self._collected)
        threading.Thread(target=self._watch, args=(threading.get_ident(),), daemon=True).start()
        self._tick(loop)

    def _now(self) -> float:
        return time.clock_gettime(self._clock)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = self._now()
        self.longest, self._last = max(self.longest, now - self._last), now
        if time.monotonic() - self._written >= 1:
            self._write()
        loop.call_later(_TICK, self._tick, loop)

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._pass_began = self._now()
        else:
            self.collector = max(self.collector, self._now() - self._pass_began)

    def _watch(self, loop_thread: int) -> None:
        turn, calls = 0.0, list[Sequence[str]]()
        while True:
            time.sleep(_LOOK)
            if self._last != turn:
                turn, calls = self._last, []
            if self._now() - turn > _LOOK:
                frames = traceback.extract_stack(sys._current_frames()[loop_thread])[-8:]
                calls.append([f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames])
            if self._now() - turn > _LONG:
                # A long turn is often the sum of many calls: all that were seen in it are noted.
                self.where.extend(calls)
                calls = []

    def _write(self) -> None:
        line = {"at": time.monotonic(), "longest": self.longest, "collector": self.collector, "where": self.where}
        with self.file.open("a") as out:
            out.write(json.dumps(line) + "\n")
        self.longest, self.collector, self.where = 0.0, 0.0, []
        self._written, self._last = time.monotonic(), self._now()


def _metered(new_loop: Callable[[], asyncio.AbstractEventLoop], file: Path) -> Callable[[], asyncio.AbstractEventLoop]:
    def made() -> asyncio.AbstractEventLoop:
        loop = new_loop()
        loop.call_soon(Meter(file).start, loop)
        return loop

    return made


if __name__ == "__main__":
    vars(uvloop)["new_event_loop"] = _metered(uvloop.new_event_loop, Path(sys.argv.pop(1)))
    sys.exit(main())
