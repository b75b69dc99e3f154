"""Reachability of another cluster, over all connections of one process.

Invariant: every attempt is recorded with its start time, and a period in which this process was suspended counts for nothing.
"""

import logging
from collections.abc import Callable

from attrs import evolve

from vkubelet.clock import Clock
from vkubelet.control.contact import Attempt, Contact, Outcome

log = logging.getLogger(__name__)

_TICK = 1.0
_STANDSTILL = 5.0
"""Seconds without a tick after which the process counts as suspended: stopped, starved of CPU, or migrated with its machine."""


class Reach:
    """The Contact of one process with `side`, as logs name that cluster; it outlives the connections. `lost`: it is unreachable."""

    def __init__(self, clock: Clock, side: str, *, lost_after: float, ask_every: float) -> None:
        self._clock = clock
        self._side = side
        self.lost_after = lost_after
        self._awake_at = clock.monotonic()
        self._contact = Contact(self._awake_at, 0.0, awake_since=self._awake_at)
        self.expect(ask_every)
        self._on_flip: list[Callable[[], None]] = []
        self._on_problem: list[Callable[[], None]] = []
        self.lost = False
        self.problem = ""
        """Why the last attempt failed, with the remedy."""

    def expect(self, ask_every: float) -> None:
        """Sets the interval of attempts."""
        self._contact = evolve(self._contact, longest_gap=2 * ask_every + _STANDSTILL)

    def on_flip(self, listener: Callable[[], None]) -> None:
        """Registers `listener()` for when the cluster becomes unreachable, and when it is reachable again."""
        self._on_flip.append(listener)

    def on_problem(self, listener: Callable[[], None]) -> None:
        """Registers `listener()` for when attempts fail for another reason than before, or no longer."""
        self._on_problem.append(listener)

    @property
    def silent_for(self) -> float:
        """Seconds for which the cluster is proven to be silent."""
        self.now()
        return self._contact.silence

    def now(self) -> float:
        """Returns the monotonic time, at which an attempt starts; detects whether the process was suspended until now."""
        now = self._clock.monotonic()
        if now - self._awake_at > _STANDSTILL:
            self._contact = self._contact.suspended(self._awake_at, now)
            log.info("process was suspended for %.0f s", now - self._awake_at)
        self._awake_at = now
        return now

    def restart(self) -> None:
        """Discards what earlier attempts proved, because the next ones use another connection."""
        self._contact = self._contact.broken()

    def record(self, began: float, outcome: Outcome, problem: str = "") -> None:
        """Records an attempt that has just finished, with its start time."""
        ended = self.now()
        self._contact = self._contact.after(Attempt(began, ended, outcome))
        problem = "" if outcome is Outcome.SERVED else problem
        changed, self.problem = problem != self.problem, problem
        if self.lost and outcome is Outcome.SERVED:
            self._flip(lost=False)
        elif changed:
            for listener in self._on_problem:
                listener()

    async def watch(self) -> None:
        """Declares the cluster unreachable when it has not served us for `lost_after` seconds; until cancelled."""
        while True:
            now = self.now()
            left = self._contact.served_at + self.lost_after - now
            if left <= 0 and not self.lost:
                self._flip(lost=True)
            await self._clock.sleep(min(left, _TICK) if left > 0 else _TICK)

    def _flip(self, *, lost: bool) -> None:
        self.lost = lost
        log.info("%s is unreachable" if lost else "%s responds again", self._side)
        for listener in self._on_flip:
            listener()
