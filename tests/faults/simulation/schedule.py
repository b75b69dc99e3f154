"""What is done to a simulated process: a world, a scenario, a seed and a list of faults; and the line of text that names all of it.

Invariant: `Schedule.parse(str(schedule)) == schedule`, so a printed schedule is run again exactly.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Self

from attrs import evolve, frozen


class Kind(enum.StrEnum):
    """Kinds of faults. `at` is the number of a write or of an event, or the second at which the fault starts."""

    CRASH = "crash"
    """The process is killed when its write `at` has taken effect; another starts `value` seconds later."""
    LOST = "lost"
    """The answer to the write `at`, which has taken effect, does not arrive: the connection is reset, or stays silent if `value` is 1."""
    SEVERED = "severed"
    """The write `at` takes effect, then its API server restarts: no answer arrives, and connections are refused for `value` seconds."""
    UNSENT = "unsent"
    """The write `at` does not arrive: the connection is reset."""
    REFUSED = "refused"
    """The write `at` is answered with the status `value` and has no effect."""
    SLOW = "slow"
    """The write `at` arrives `value` seconds late; its sender may have given up, or be killed, by then."""
    DROPPED = "dropped"
    """The event `at` and all later ones of its watch are withheld for `value` seconds; then the watch ends with 410."""
    DELAYED = "delayed"
    """The event `at` and all later ones of its watch arrive `value` seconds late."""
    ENDED = "ended"
    """The watch ends after the event `at`, and is resumed."""
    LAG = "lag"
    """All watches of the side are silent for `value` seconds from the second `at`, while other requests are answered."""
    CUT = "cut"
    """No packet of the side arrives for `value` seconds from the second `at`."""
    CLOSED = "closed"
    """The side refuses connections and closes those that are open for `value` seconds from the second `at`, as an API server restarts."""
    STALE = "stale"
    """The watch cache of the side stays `value` versions behind etcd for a while from the second `at`, as with several API servers: watches
    are late, those that begin with the current objects are refused, and only consistent reads return the current state."""
    EXPIRED = "expired"
    """All versions before the second `at` are compacted, and all watches of the side are closed."""
    BROKEN = "broken"
    """All requests to the side in the `value` seconds from the second `at` are answered with 503."""
    STALL = "stall"
    """The process is stopped for `value` seconds from the second `at`, as by SIGSTOP."""
    CLOCK = "clock"
    """The wall clock of the process steps by `value` seconds at the second `at`."""


OF_WRITES = frozenset({Kind.CRASH, Kind.LOST, Kind.SEVERED, Kind.UNSENT, Kind.REFUSED, Kind.SLOW})
OF_EVENTS = frozenset({Kind.DROPPED, Kind.DELAYED, Kind.ENDED})
RESTARTS = frozenset({Kind.CRASH, Kind.CUT, Kind.CLOSED, Kind.BROKEN, Kind.STALL, Kind.LOST, Kind.SEVERED, Kind.SLOW})
BRIEF = frozenset({Kind.UNSENT, Kind.REFUSED, Kind.ENDED})
"""After these a client knows at once that it has to try again."""


STALE_FOR = 40.0
"""Seconds for which the watch cache of an API server stays behind."""


@frozen(order=True)
class Fault:
    """One fault; `side` is the API server it concerns, "" for the process or for the writes to all of them."""

    kind: Kind
    at: int
    value: float = 0.0
    side: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}{f'@{self.side}' if self.side else ''}:{self.at}:{self.value:g}"

    @property
    def lasts(self) -> float:
        """Seconds for which a fault that has a time is in effect."""
        if self.kind is Kind.CLOCK:
            return 0.0
        return STALE_FOR if self.kind is Kind.STALE else self.value

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        name, at, value = text.split(":")
        kind, _, side = name.partition("@")
        return cls(Kind(kind), int(at), float(value), side)


@frozen
class Schedule:
    """A run of one scenario in one world."""

    world: str
    scenario: str
    seed: int
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        return " ".join([f"{self.world}/{self.scenario}", f"seed={self.seed}", *map(str, self.faults)])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        where, seed, *faults = text.split()
        world, _, scenario = where.partition("/")
        return cls(world, scenario, int(seed.removeprefix("seed=")), tuple(map(Fault.parse, faults)))

    def with_faults(self, faults: Iterable[Fault]) -> Self:
        return evolve(self, faults=tuple(faults))

    @property
    def is_brief(self) -> bool:
        """Whether nothing but at most one fault of those that are over at once happens."""
        return len(self.faults) <= 1 and all(fault.kind in BRIEF for fault in self.faults)

    @property
    def restarts(self) -> bool:
        """Whether a process may be started again: it is killed, or exits because it has lost the leadership."""
        return any(fault.kind in RESTARTS for fault in self.faults)

    @property
    def calm_after(self) -> float:
        """Second after which no fault that has a time is in effect any more."""
        return max((fault.at + fault.lasts for fault in self.faults if fault.kind not in OF_WRITES | OF_EVENTS), default=0.0)
