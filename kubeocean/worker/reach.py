"""Whether the worker cluster answers: from each attempt follows whether its nodes are held, and how long it has been silent.

Invariant: silence is an unbroken series of attempts of which none reached the worker. An answer of any kind, an attempt that proves
nothing, a gap between attempts, and a time in which this process stood still end the series.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable

from attrs import evolve, frozen

from vkubelet.clock import Clock
from vkubelet.errors import ApiError, ServerError, Unauthorized, Unreachable, VKubeletError

log = logging.getLogger(__name__)

_TICK = 1.0
_STANDSTILL = 5.0
"""Seconds without a tick after which the process counts as having stood still: stopped, starved of CPU, or moved with its machine."""


class Outcome(enum.Enum):
    """What one attempt says of the worker."""

    SERVED = "served"
    """It works; a right that is missing is reported by the lists that need it."""
    UNSERVED = "unserved"
    """It lives, or nothing proves that it does not; but it does no work for us."""
    SILENT = "silent"
    """Its address was asked, and no connection came about."""


def outcome_of(error: VKubeletError | None) -> Outcome:
    """What an attempt that raised `error`, or None, says of the worker."""
    if isinstance(error, Unreachable):
        return Outcome.SILENT if error.silent else Outcome.UNSERVED
    if error is None or isinstance(error, ApiError) and not isinstance(error, (ServerError, Unauthorized)):
        return Outcome.SERVED
    return Outcome.UNSERVED


def problem_of(error: VKubeletError | None) -> str:
    """What is wrong, and the remedy; the same text for as long as the same thing is wrong. Empty when the worker works."""
    if outcome_of(error) is Outcome.SERVED:
        return ""
    if outcome_of(error) is Outcome.SILENT:
        return "the worker cluster does not answer"
    if isinstance(error, Unauthorized):
        return "the worker cluster does not accept the credentials of the kubeconfig; put a valid one into the Secret of spec.secretRef"
    if isinstance(error, ServerError):
        return f"the worker's API server answers with status {error.status}; check its control plane (GET /readyz?verbose)"
    return f"the worker cluster cannot be asked ({error}); check the kubeconfig in the Secret of spec.secretRef, DNS and the network"


@frozen
class Attempt:
    """One question to the worker; times are those of a monotonic clock."""

    began: float
    ended: float
    outcome: Outcome


@frozen
class Contact:
    """What all attempts so far say (pure); `longest_gap` is the time between two attempts that still belong to one series."""

    served_at: float
    longest_gap: float
    silent_since: float = 0.0
    asked_at: float = 0.0
    attempts: int = 0
    """In the series; 0 while the worker is not silent."""
    awake_since: float = 0.0

    def after(self, attempt: Attempt) -> Contact:
        """With one attempt more. One that a standstill of the process interrupted proves nothing unless it was answered."""
        if attempt.outcome is Outcome.SERVED:
            return evolve(self.broken(), served_at=attempt.ended)
        if attempt.outcome is Outcome.UNSERVED or attempt.began < self.awake_since:
            return self.broken()
        is_first = not self.attempts or attempt.began - self.asked_at > self.longest_gap
        if is_first:
            return evolve(self, silent_since=attempt.began, asked_at=attempt.ended, attempts=1)
        return evolve(self, asked_at=attempt.ended, attempts=self.attempts + 1)

    def broken(self) -> Contact:
        """With no series of silent attempts."""
        return evolve(self, attempts=0)

    def stood_still(self, start: float, end: float) -> Contact:
        """The process did nothing between these times: they count neither as silence nor towards holding the nodes."""
        return evolve(self.broken(), served_at=self.served_at + end - start, awake_since=end)

    @property
    def silence(self) -> float:
        """Seconds from the first to the last of at least two attempts in an unbroken series, else 0."""
        return self.asked_at - self.silent_since if self.attempts > 1 else 0.0


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
