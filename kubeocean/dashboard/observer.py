"""Observes the hub for the pages: one reading at a time, kept with its history, and a signal when something has changed.

Invariant: a page never waits for more than one reading, and a failed reading leaves the last one in place, with its age and the error.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from attrs import define, evolve, field

from kubeocean.dashboard.fleet import Fleet, Reading, fleet_of
from kubeocean.dashboard.history import History, Ledger, Sample, sample_of
from kubeocean.dashboard.source import Source
from vkubelet.clock import Clock
from vkubelet.commands.clusters import CommandFailed
from vkubelet.control.controller import Isolation

SLOWEST = 60.0
"""Seconds after which pages are refreshed although nothing has changed, and between two readings while no page is open."""


class View(Protocol):
    """What the pages show to one reader."""

    @property
    def source(self) -> Source: ...

    @property
    def error(self) -> str: ...

    @property
    def fleet(self) -> Fleet | None: ...

    @property
    def samples(self) -> Sequence[Sample]: ...

    @property
    def ledger(self) -> Ledger: ...

    async def current(self) -> Fleet: ...

    @property
    def version(self) -> int: ...

    async def after(self, version: int) -> int: ...


@define(eq=False)
class Observer:
    """The readings of one source; `interval` is the least time between two of them, in seconds."""

    source: Source
    clock: Clock
    interval: float
    error: str = ""
    """Why the last reading failed; empty after a successful one."""
    reading: Reading | None = None
    fleet: Fleet | None = None
    history: History = field(factory=History)
    ledger: Ledger = field(factory=Ledger)
    version: int = 0
    """Increases when a page may have changed."""
    _read_at: float = float("-inf")
    _announced_at: float = 0.0
    _watching: int = 0
    _isolated: Isolation = field(factory=lambda: Isolation("dashboard"))
    _lock: asyncio.Lock = field(factory=asyncio.Lock)
    _news: asyncio.Condition = field(factory=asyncio.Condition)

    @property
    def samples(self) -> Sequence[Sample]:
        """Capacity over time."""
        return self.history.samples

    async def current(self) -> Fleet:
        """Returns the last reading, at most `interval` old unless reading fails. Raises CommandFailed when there is none."""
        async with self._lock:
            if self.clock.monotonic() - self._read_at >= self.interval:
                await self._read()
        if self.fleet is None:
            raise CommandFailed(self.error)
        return self.fleet

    async def run(self) -> None:
        """Reads periodically until cancelled, and less often while no page is open."""
        while True:
            if self._watching or self.clock.monotonic() - self._read_at >= SLOWEST:
                # Nothing that was read may stop the process, which may be the manager.
                with self._isolated("reading"), suppress(CommandFailed):
                    await self.current()
            await self.clock.sleep(self.interval)

    async def after(self, version: int) -> int:
        """Waits until the version is another one, and returns it."""
        self._watching += 1
        try:
            async with self._news:
                await self._news.wait_for(lambda: self.version != version)
                return self.version
        finally:
            self._watching -= 1

    async def _read(self) -> None:
        before, failed = self.fleet, self.error
        try:
            reading = await self.source.read()
            fleet = await fleet_of(reading, self.clock)
            self.reading, self.fleet, self.error = reading, fleet, ""
            self.history.add(sample_of(fleet))
            await self.ledger.add(fleet, self.clock)
            await self.clock.sleep(0)
        except CommandFailed as error:
            self.error = str(error)
        self._read_at = self.clock.monotonic()
        if self.error != failed or _differs(before, self.fleet) or self._read_at - self._announced_at >= SLOWEST:
            self._announced_at = self._read_at
            async with self._news:
                self.version += 1
                self._news.notify_all()


def _differs(before: Fleet | None, now: Fleet | None) -> bool:
    """Checks whether two readings differ in more than their time (pure)."""
    if before is None or now is None:
        return before is not now
    return before != evolve(now, at=before.at)
