"""Whether the worker cluster answers, over all connections of one process; when it does not, the nodes are held.

Invariant: every attempt is recorded with the time at which it began, and a time in which this process stood still counts for nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from attrs import evolve

from kubeocean.model.contact import Attempt, Contact, Outcome
from vkubelet.clock import Clock

log = logging.getLogger(__name__)

_TICK = 1.0
_STANDSTILL = 5.0
"""Seconds without a tick after which the process counts as having stood still: stopped, starved of CPU, or moved with its machine."""


class Reach:
    """The Contact of one process; it outlives the connections. `lost` means that the nodes are held."""

    def __init__(self, clock: Clock, *, lost_after: float, ask_every: float) -> None:
        self._clock = clock
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
        """Attempts come so often from now on."""
        self._contact = evolve(self._contact, longest_gap=2 * ask_every + _STANDSTILL)

    def on_flip(self, listener: Callable[[], None]) -> None:
        """Call `listener()` when the worker is lost, and when it is back."""
        self._on_flip.append(listener)

    def on_problem(self, listener: Callable[[], None]) -> None:
        """Call `listener()` when attempts fail for another reason than before, or no longer."""
        self._on_problem.append(listener)

    @property
    def silent_for(self) -> float:
        """Seconds for which the worker is proven to be silent."""
        self.now()
        return self._contact.silence

    def now(self) -> float:
        """The monotonic time, having noted whether the process stood still until now. Attempts begin at this time."""
        now = self._clock.monotonic()
        if now - self._awake_at > _STANDSTILL:
            self._contact = self._contact.stood_still(self._awake_at, now)
            log.info("process stood still for %.0f s", now - self._awake_at)
        self._awake_at = now
        return now

    def restart(self) -> None:
        """Attempts go another way from now on; what earlier ones proved does not count."""
        self._contact = self._contact.broken()

    def record(self, began: float, outcome: Outcome, problem: str = "") -> None:
        """An attempt that began then has just ended."""
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
        """Declare the worker lost as soon as it has done no work for us for too long; until cancelled."""
        while True:
            now = self.now()
            left = self._contact.served_at + self.lost_after - now
            if left <= 0 and not self.lost:
                self._flip(lost=True)
            await self._clock.sleep(min(left, _TICK) if left > 0 else _TICK)

    def _flip(self, *, lost: bool) -> None:
        self.lost = lost
        log.info("worker cluster is lost" if lost else "worker cluster answers again")
        for listener in self._on_flip:
            listener()
