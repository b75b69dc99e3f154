"""Detects whether a provider blocks the event loop, and where.

Invariant: only a stall within one call of the provider's own code counts, seen more than once, and only the time in which the loop's thread
could have run; a machine that is busy with other things makes every loop late, wherever it is.
"""

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from attrs import frozen

from vkubelet.clock import Clock

LIMIT = 0.25
"""Seconds for which the provider may block the loop."""

_BEAT = 0.05
_TRUSTED = {
    "aiohttp",
    "aiohappyeyeballs",
    "aiosignal",
    "attr",
    "attrs",
    "cryptography",
    "frozenlist",
    "msgspec",
    "multidict",
    "prometheus_client",
    "propcache",
    "tenacity",
    "uvloop",
    "vkubelet",
    "yaml",
    "yarl",
}
"""Our packages and dependencies; a provider that calls them appears in the stack itself."""


@frozen
class Stall:
    """The loop was blocked for about `seconds` at `where`."""

    seconds: float
    where: str


class BlockingWatch:
    """Context manager around the work of the running loop; `stalls` are those of the provider, `longest` is that of any code."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._beat = clock.monotonic()
        self._thread = threading.get_ident()
        self._scheduled = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._end = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="blocking watch", daemon=True)
        self._timer: asyncio.TimerHandle | None = None
        self.stalls: list[Stall] = []
        self.longest = 0.0

    def __enter__(self) -> Self:
        self._tick()
        self._watcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end.set()
        if self._timer is not None:
            self._timer.cancel()
        self._watcher.join()

    def _tick(self) -> None:
        now = self._clock.monotonic()
        self.longest = max(self.longest, now - self._beat - _BEAT)
        self._beat = now
        self._timer = asyncio.get_running_loop().call_later(_BEAT, self._tick)

    def _watch(self) -> None:
        """Samples, in a separate thread, where the loop is whenever it is late."""
        beat, queued, calls = self._beat, self._queued(), list[FrameType]()
        while not self._end.wait(_BEAT):
            if self._beat != beat:
                beat, queued, calls = self._beat, self._queued(), []
                continue
            late = self._clock.monotonic() - beat - _BEAT - (self._queued() - queued)
            if late < LIMIT / 2:
                continue
            now = list(_of_the_provider(sys._current_frames().get(self._thread)))
            lasting = [frame for frame in now if any(frame is call for call in calls)]
            if late >= LIMIT and lasting:
                self._note(Stall(late, _place(lasting[0])))
            calls = calls or now

    def _queued(self) -> float:
        """Returns the seconds the loop's thread has waited for a processor; 0 where the kernel does not count them."""
        try:
            return int(self._scheduled.read_text().split()[1]) / 1e9
        except (OSError, IndexError):
            return 0.0

    def _note(self, stall: Stall) -> None:
        if self.stalls and self.stalls[-1].where == stall.where:
            self.stalls.pop()
        self.stalls.append(stall)


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def _of_the_provider(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields the calls of a stack that are the provider's, from the innermost one."""
    for each in _stack(frame):
        module = str(each.f_globals.get("__name__", ""))
        top = module.partition(".")[0]
        if top not in _TRUSTED and top not in sys.stdlib_module_names:
            yield each


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields frames from the innermost to the one that runs the loop; those below belong to our caller."""
    while frame is not None and frame.f_globals.get("__name__") not in ("asyncio.base_events", "asyncio.runners"):
        yield frame
        frame = frame.f_back
