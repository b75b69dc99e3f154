"""Judges the Leases of clusters: whether renewals have stopped, and whether the clock of a cluster differs from the hub's (pure).

Invariant: ages are on the hub's clock. A renewal that was observed counts from that moment, any other from the time written in it, so that
a wrong clock alone never makes a cluster unreachable; and a hub that was away itself judges nothing before it has watched long enough.
"""

import enum
from datetime import datetime, timedelta
from typing import Final, Self

from attrs import evolve, frozen

from fleet.api import keys
from fleet.api.clusters import AGENT_HEALTHY, ManagedCluster, MemberCluster, condition_of
from fleet.core.view import UNKNOWN

GRACE: Final = 5
"""Number of renewal periods after which a cluster counts as unreachable, and clocks as different."""
_WATCHED_PERIODS: Final = 2


class Verdict(enum.Enum):
    """What a Lease proves."""

    ALIVE = "alive"
    STOPPED = "stopped"
    UNDECIDED = "undecided"
    """The hub has not watched the Lease for long enough."""


@frozen
class Pulse:
    """The renewals of one Lease, as observed since `watched_since` without a break."""

    watched_since: datetime
    written: datetime | None = None
    """`renewTime` of the latest renewal, on the clock of the cluster."""
    observed: datetime | None = None
    """Time of the hub at which that renewal appeared; None when it existed before."""

    @classmethod
    def begin(cls, written: datetime | None, *, now: datetime) -> Self:
        """Returns the pulse of a Lease that was listed."""
        return cls(now, written)

    def after(self, written: datetime | None, *, now: datetime) -> Self:
        """Returns the pulse after an event of the watch, which may be another change than a renewal."""
        return self if written == self.written else evolve(self, written=written, observed=now)

    def resumed(self, *, now: datetime) -> Self:
        """Returns the pulse after a break of the watch, or of this process: what was missed does not count against the cluster."""
        return evolve(self, watched_since=now)

    @property
    def last(self) -> datetime | None:
        """Time of the latest renewal on the hub's clock, as far as that is known."""
        return self.observed or self.written

    def verdict(self, *, now: datetime, seconds: int, multiple: int = GRACE) -> Verdict:
        """Judges the Lease, which is to be renewed every `seconds`, and may be late by `multiple` periods."""
        grace, period = timedelta(seconds=multiple * seconds), timedelta(seconds=seconds)
        if self.last is not None and now - self.last < grace:
            return Verdict.ALIVE
        return Verdict.STOPPED if now - self.watched_since >= _WATCHED_PERIODS * period else Verdict.UNDECIDED

    def due(self, *, now: datetime, seconds: int, multiple: int = GRACE) -> datetime:
        """Returns when the verdict can change without an event; `now` when it is final."""
        grace, least = timedelta(seconds=multiple * seconds), timedelta(seconds=_WATCHED_PERIODS * seconds)
        stopped = (self.last or self.watched_since) + (grace if self.last is not None else timedelta())
        return max(now, stopped, self.watched_since + least)


def member_status(member: MemberCluster, verdict: Verdict) -> str:
    """Returns the status of a member's health; Unknown when its agent has not reported it, or sends no more heartbeats."""
    agent = member.state.agent()
    health = condition_of(agent.conditions, AGENT_HEALTHY) if agent is not None else None
    return UNKNOWN if health is None or verdict is Verdict.STOPPED else health.status


def grace_multiple(cluster: ManagedCluster) -> int:
    """Returns the number of periods that a cluster's annotation sets; an invalid one sets none."""
    text = cluster.meta.annotations.get(keys.LEASE_GRACE, "")
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else GRACE


def clocks_differ(written: datetime, *, now: datetime, seconds: int) -> bool:
    """Checks a renewal at the moment at which it is observed: by the hub's clock it was written far in the past or the future."""
    return abs(now - written) >= timedelta(seconds=GRACE * seconds)


def checks_clock(cluster: ManagedCluster) -> bool:
    """Checks whether the clock of a cluster is judged."""
    return cluster.meta.annotations.get(keys.SKIP_CLOCK_CHECK) != "true"
