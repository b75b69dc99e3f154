"""Continuity of the watch by which the hub observes its clusters: a renewal that this process missed does not count against a cluster.

Invariant: a time is that of the API server at the start and of the monotonic clock since, so that no clock that is set changes an age.
"""

from datetime import datetime, timedelta
from typing import Final

from vkubelet.api.objects import Unknown
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.informer import Informer

_TICK: Final = 1.0
_STANDSTILL: Final = 5.0
"""Seconds without a tick after which this process counts as suspended."""
_SETTLED: Final = 10.0
"""Seconds after a break of the watch until the time of a renewal is compared again: events that were missed arrive all at once. When the
process starts, none was missed: it lists the Leases, and a change follows within milliseconds."""


class Watching:
    """Continuity of the watch of Leases, on one time scale that no clock of a machine can turn: the API server's at the start."""

    def __init__(self, client: Client, informer: Informer[Unknown], *, clock: Clock) -> None:
        self._client = client
        self._informer = informer
        self._clock = clock
        self._begin: tuple[datetime, float] | None = None
        self._ticked = self._resumed = clock.monotonic()
        self._settles = self._ticked
        self.broken = False

    def now(self) -> datetime:
        if self._begin is None:
            self._begin = self._client.server_now(), self._clock.monotonic()
        return self._begin[0] + timedelta(seconds=self._clock.monotonic() - self._begin[1])

    @property
    def continuous(self) -> bool:
        """Whether every renewal until now was observed."""
        return not self.broken and self._informer.synced and self._clock.monotonic() - self._ticked < _STANDSTILL

    def lasts(self) -> float:
        """Returns the seconds for which every renewal was observed; 0 when that is unknown."""
        return self._clock.monotonic() - self._resumed if self.continuous else 0.0

    @property
    def settled(self) -> bool:
        """Whether a renewal that arrives now was written just now."""
        return self.continuous and self._clock.monotonic() >= self._settles

    async def next_break(self) -> None:
        """Returns when the next break is over."""
        await self._informer.wait_synced()
        self._ticked = self._resumed = self._clock.monotonic()
        while True:
            was_broken, self.broken = self.broken, not self.continuous
            self._ticked = self._clock.monotonic()
            if was_broken and self._informer.synced:
                self.broken, self._resumed = False, self._ticked
                self._settles = self._ticked + _SETTLED
                return
            await self._clock.sleep(_TICK)
