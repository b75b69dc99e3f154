"""Observes the hub for the pages: one reading at a time, kept with its history, and a signal when something has changed.

Invariant: a page never waits for more than one reading, and a failed reading leaves the last one in place, with its age and the error.
"""

import asyncio

from attrs import define, field

from kubeocean.commands.clusters import CommandFailed
from kubeocean.dashboard.fleet import Fleet
from kubeocean.dashboard.history import History, Ledger, sample_of
from kubeocean.dashboard.source import Source
from vkubelet.clock import Clock

SLOWEST = 60.0
"""Seconds after which pages are refreshed although nothing has changed."""


@define(eq=False)
class Observer:
    """The readings of one reader; `interval` is the least time between two of them, in seconds."""

    source: Source
    clock: Clock
    interval: float
    fleet: Fleet | None = None
    error: str = ""
    """Why the last reading failed; empty after a successful one."""
    history: History = field(factory=History)
    ledger: Ledger = field(factory=Ledger)
    version: int = 0
    """Increases when a page may have changed."""
    _read_at: float = float("-inf")
    _announced_at: float = 0.0
    _lock: asyncio.Lock = field(factory=asyncio.Lock)
    _news: asyncio.Condition = field(factory=asyncio.Condition)

    async def current(self) -> Fleet:
        """Returns the last reading, at most `interval` old unless reading fails. Raises CommandFailed when there is none."""
        async with self._lock:
            if self.clock.monotonic() - self._read_at >= self.interval:
                await self._read()
        if self.fleet is None:
            raise CommandFailed(self.error)
        return self.fleet

    async def run(self) -> None:
        """Reads periodically until cancelled."""
        while True:
            try:
                await self.current()
            except CommandFailed:
                # The pages show it.
                pass
            await self.clock.sleep(self.interval)

    async def after(self, version: int) -> int:
        """Waits until the version is another one, and returns it."""
        async with self._news:
            await self._news.wait_for(lambda: self.version != version)
            return self.version

    async def _read(self) -> None:
        before, failed = self.fleet, self.error
        try:
            self.fleet, self.error = await self.source.fleet(), ""
            self.history.add(sample_of(self.fleet))
            self.ledger.add(self.fleet)
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
    return (before.bindings, before.nodes, before.pods, before.notes) != (now.bindings, now.nodes, now.pods, now.notes)
