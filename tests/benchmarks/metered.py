"""`python -m tests.benchmarks.metered FILE ARGS…`: `kubeocean ARGS…` with a meter of its event loop, which writes a JSON line every second.

Invariant: it counts the CPU time of the loop's own thread, the garbage collector's included; other processes of the machine do not count.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
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
    """What happened since the last line. `where`: the calls of long turns, the innermost first, while they ran."""

    file: Path
    longest: float = 0.0
    collector: float = 0.0
    """The longest pass of the garbage collector."""
    where: list[Sequence[str]] = field(factory=list)
    _calls: list[Sequence[tuple[CodeType, int]]] = field(factory=list)
    """What the current turn was seen to do: functions with their lines, written out only if the turn is long."""
    _clock: int = 0
    _last: float = 0.0
    _pass_began: float = 0.0
    _written: float = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._last, self._written = self._now(), time.monotonic()
        gc.callbacks.append(self._collected)
        # By a signal, which is handled in the thread of the loop: CPython 3.11 crashes when another thread walks the frames that run.
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, _LOOK, _LOOK)
        self._tick(loop)

    def _now(self) -> float:
        return time.clock_gettime(self._clock)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = self._now()
        if now - self._last > _LONG:
            self.where.extend([f"{Path(code.co_filename).name}:{line} {code.co_name}" for code, line in calls] for calls in self._calls)
        # What the meter itself does counts as none of the turns.
        self.longest, self._last, self._calls = max(self.longest, now - self._last), self._now(), []
        if time.monotonic() - self._written >= 1:
            self._write()
        loop.call_later(_TICK, self._tick, loop)

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._pass_began = self._now()
        else:
            self.collector = max(self.collector, self._now() - self._pass_began)

    def _look(self, signum: int, frame: FrameType | None) -> None:
        if self._now() - self._last > _LOOK:
            self._calls.append([(call.f_code, line) for call, line in islice(traceback.walk_stack(frame), 8)])

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
