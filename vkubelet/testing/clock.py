"""A clock that tests advance manually, or that jumps over every wait.

Invariant: time passes only between two moments at which no task can continue, so the order of events does not depend on the machine.

For tests without sockets and threads: a task that waits for these seems blocked.
"""

import asyncio
import heapq
import math
from datetime import UTC, datetime, timedelta
from itertools import count

from vkubelet.clock import SystemClock

_QUIET_ROUNDS = 3
"""Rounds of the loop without a ready task before all count as blocked; futures wake tasks, and those futures, a round later."""
_ROUNDS_LIMIT = 100_000


class ManualClock:
    """A Clock that stands still. With `autojump` it moves to the next sleeper by itself as soon as all tasks are blocked."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC), *, autojump: bool = False) -> None:
        self.autojump = autojump
        self._start = start
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()
        self._watching = False

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await SystemClock().sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # However short, a sleep takes time: a task that waits for a moment that rounding puts a trifle later must reach it.
        due = max(self._elapsed + seconds, math.nextafter(self._elapsed, math.inf))
        heapq.heappush(self._sleepers, (due, next(self._order), future))
        if self.autojump:
            self._watch()
        await future

    @property
    def sleepers(self) -> int:
        """Number of sleeping tasks."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Advances the clock by `seconds`: each sleeper wakes at its time, in order, and all tasks run until they are blocked before the
        next one."""
        end = self._elapsed + seconds
        await self.settle()
        while (due := self._next_due()) is not None and due <= end:
            self._wake_next()
            await self.settle()
        self._elapsed = max(self._elapsed, end)
        await self.settle()

    def set(self, seconds: float) -> None:
        """Sets the wall clock forward, or back, by `seconds`; sleepers do not notice that."""
        self._start += timedelta(seconds=seconds)

    def stand_still(self, seconds: float) -> None:
        """Advances the clock by `seconds` while no task runs, as for a process that is stopped; due sleepers wake after them."""
        self._elapsed += seconds

    async def settle(self) -> None:
        """Runs all other tasks until they are blocked. Raises RuntimeError when one never is."""
        quiet = 0
        for _ in range(_ROUNDS_LIMIT):
            await SystemClock().sleep(0)
            quiet = 0 if _others_ready() else quiet + 1
            if quiet == _QUIET_ROUNDS:
                return
        raise RuntimeError("a task runs without ever waiting")

    def _next_due(self) -> float | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def _wake_next(self) -> None:
        due, _, future = heapq.heappop(self._sleepers)
        self._elapsed = max(self._elapsed, due)
        future.set_result(None)

    def _watch(self, quiet: int = 0) -> None:
        if quiet == 0 and self._watching:
            return
        self._watching = True
        asyncio.get_running_loop().call_soon(self._jump_when_quiet, quiet)

    def _jump_when_quiet(self, quiet: int) -> None:
        self._watching = False
        if _others_ready():
            self._watch()
        elif quiet < _QUIET_ROUNDS:
            self._watch(quiet + 1)
        elif self._next_due() is not None:
            self._wake_next()
            self._watch()


def _others_ready() -> bool:
    """Checks whether the loop has callbacks to run; asyncio exposes this only in its internals."""
    return bool(asyncio.get_running_loop()._ready)  # type: ignore[attr-defined]
