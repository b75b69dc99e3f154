"""Evaluates attempts to reach another cluster: the outcome of each, and how long the cluster has been silent. Pure.

Invariant: silence is an unbroken series of attempts of which none reached the cluster. A response of any kind, an attempt that proves
nothing, a gap between attempts, and a time in which this process was suspended terminate the series.
"""

from __future__ import annotations

import enum

from attrs import evolve, frozen

from vkubelet.errors import ApiError, ServerError, Unauthorized, Unreachable, VKubeletError


class Outcome(enum.Enum):
    """State of the cluster that one attempt proves."""

    SERVED = "served"
    """It works; a missing permission is reported by the lists that need it."""
    UNSERVED = "unserved"
    """It is running, or nothing proves that it is not; but it does not serve us."""
    SILENT = "silent"
    """A connection to its address was attempted, and none was established."""


def outcome_of(error: VKubeletError | None) -> Outcome:
    """Returns the outcome of an attempt that raised `error`, or None."""
    if isinstance(error, Unreachable):
        return Outcome.SILENT if error.silent else Outcome.UNSERVED
    if error is None or isinstance(error, ApiError) and not isinstance(error, (ServerError, Unauthorized)):
        return Outcome.SERVED
    return Outcome.UNSERVED


@frozen
class Attempt:
    """One request to the cluster; times are those of a monotonic clock."""

    began: float
    ended: float
    outcome: Outcome


@frozen
class Contact:
    """The result of all attempts so far. Pure. `longest_gap` is the longest time between two attempts of one series."""

    served_at: float
    longest_gap: float
    silent_since: float = 0.0
    asked_at: float = 0.0
    attempts: int = 0
    """Number of attempts in the series; 0 while the cluster is not silent."""
    awake_since: float = 0.0

    def after(self, attempt: Attempt) -> Contact:
        """Returns the contact with one more attempt. One during which the process was suspended proves nothing unless it was answered."""
        if attempt.outcome is Outcome.SERVED:
            return evolve(self.broken(), served_at=attempt.ended)
        if attempt.outcome is Outcome.UNSERVED or attempt.began < self.awake_since:
            return self.broken()
        is_first = not self.attempts or attempt.began - self.asked_at > self.longest_gap
        if is_first:
            return evolve(self, silent_since=attempt.began, asked_at=attempt.ended, attempts=1)
        return evolve(self, asked_at=attempt.ended, attempts=self.attempts + 1)

    def broken(self) -> Contact:
        """Returns the contact without a series of silent attempts."""
        return evolve(self, attempts=0)

    def suspended(self, start: float, end: float) -> Contact:
        """Returns the contact after the process was suspended between these times: they count neither as silence nor towards Hold."""
        return evolve(self.broken(), served_at=self.served_at + end - start, awake_since=end)

    @property
    def silence(self) -> float:
        """Seconds from the first to the last of at least two attempts in an unbroken series, else 0."""
        return self.asked_at - self.silent_since if self.attempts > 1 else 0.0
