"""Sums of resource-seconds by hour, policy, node and hub namespace. Pure.

Invariant: an amount of one interval is split at every hour and every change of the deciding policy, and each part is added exactly once;
the sums of the kept hours never exceed `HOURS` hours.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from attrs import define, field, frozen

from vkubelet.api.quantity import Quantity, Resources, add_resources, sum_resources

HOURS: Final = 24
"""Hours that are kept: the current one and those before it."""

_HOUR: Final = timedelta(hours=1)
_MICROSECOND: Final = timedelta(microseconds=1)
_PER_SECOND: Final = 1_000_000
ALL: Final = ""
"""Node and namespace of a cell that stands for several of them."""


class Place(NamedTuple):
    """The physical node of a pod, and its namespace in the hub."""

    node: str
    namespace: str


class Cell(NamedTuple):
    """The policy by which something was lent, the physical node and the hub namespace; ALL for several nodes or namespaces."""

    policy: str
    node: str
    namespace: str


@frozen
class Part:
    """A time in which one policy decides about a node; "" when none is known."""

    policy: str
    start: datetime
    end: datetime


@frozen
class Span:
    """Amounts lent between two times; negative ones correct what was counted before."""

    amounts: Resources
    start: datetime
    end: datetime


def between(amounts: Resources, start: datetime, end: datetime) -> Sequence[Span]:
    """Returns the span between two times; of negated amounts when the second is earlier, none when both are equal."""
    if start == end or not amounts:
        return ()
    return (Span(amounts, start, end) if start < end else Span({name: -amount for name, amount in amounts.items()}, end, start),)


Deciders = Callable[[str, datetime, datetime], Sequence[Part]]
"""Returns the parts of a time, by the policy that decides about a node (by name)."""

Sums = dict[Cell, Resources]


@define(kw_only=True)
class Ledger:
    """What was lent `since` a time: `hours` by their start, and in `total` what was lent since, also of cells that are in no hour now.

    `through`: everything until then is counted.
    """

    since: datetime
    through: datetime
    hours: dict[datetime, Sums] = field(factory=dict)
    total: Sums = field(factory=dict)
    changes: Counter[datetime] = field(factory=Counter, eq=False)
    """How often the sums of each hour were changed, for those who derive something of them."""

    @classmethod
    def begin(cls, now: datetime) -> "Ledger":
        """Returns the ledger of a binding that has none yet."""
        return cls(since=now, through=now)

    def add(self, place: Place, spans: Sequence[Span], *, deciders: Deciders, now: datetime) -> None:
        """Adds what the spans are in resource-seconds."""
        if not spans:
            return
        start, end = min(span.start for span in spans), max(span.end for span in spans)
        self.since = min(self.since, start)
        if end - start <= _HOUR:
            self._add(place, spans, deciders(place.node, start, end), first_hour(now))
            return
        # Who decided in earlier times is known less exactly the longer the time is that is asked for.
        for span in spans:
            self._add(place, (span,), deciders(place.node, span.start, span.end), first_hour(now))

    def _add(self, place: Place, spans: Sequence[Span], parts: Sequence[Part], oldest: datetime) -> None:
        for part in parts:
            cell = Cell(part.policy, place.node, place.namespace)
            for hour, since, until in _by_hour(part.start, part.end, oldest):
                lent = _lent(spans, since, until)
                if not lent:
                    continue
                _add(self.total, cell, lent)
                if hour is not None:
                    _add(self.hours.setdefault(hour, {}), cell, lent)
                    self.changes[hour] += 1

    def prune(self, now: datetime) -> None:
        """Drops the hours before the last `HOURS`; what cells lent that are in no hour any more is summed for their policy."""
        oldest = first_hour(now)
        dropped = [hour for hour in self.hours if hour < oldest]
        for hour in dropped:
            del self.hours[hour], self.changes[hour]
        if not dropped:
            return
        kept = {cell for sums in self.hours.values() for cell in sums}
        for cell in [cell for cell in self.total if cell not in kept and cell.node != ALL]:
            _add(self.total, Cell(cell.policy, ALL, ALL), self.total.pop(cell))

    def last_day(self, now: datetime) -> Sums:
        """Returns the sums of the current hour and those before it, together `HOURS`."""
        oldest, sums = first_hour(now), Sums()
        for hour, cells in self.hours.items():
            if hour >= oldest:
                for cell, lent in cells.items():
                    _add(sums, cell, lent)
        return sums


def first_hour(now: datetime) -> datetime:
    """Returns the start of the oldest hour that is kept."""
    return hour_of(now) - (HOURS - 1) * _HOUR


def hour_of(moment: datetime) -> datetime:
    """Returns the start of the hour (UTC) of a moment."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _lent(spans: Sequence[Span], start: datetime, end: datetime) -> Resources:
    """Returns what the spans are between two times in resource-seconds, exact to a billionth."""
    sums: dict[str, int] = {}
    for span in spans:
        microseconds = (min(span.end, end) - max(span.start, start)) // _MICROSECOND
        if microseconds > 0:
            for name, amount in span.amounts.items():
                sums[name] = sums.get(name, 0) + amount.nanos * microseconds
    return {name: Quantity(amount // _PER_SECOND) for name, amount in sums.items()}


def of_policy(sums: Mapping[Cell, Resources], policy: str) -> Sums:
    """Returns the cells of one policy."""
    return {cell: lent for cell, lent in sums.items() if cell.policy == policy}


def without_nodes(sums: Mapping[Cell, Resources]) -> Sums:
    """Returns the sums over all nodes."""
    return _collapsed(sums, lambda cell: cell._replace(node=ALL))


def without_namespaces(sums: Mapping[Cell, Resources]) -> Sums:
    """Returns the sums over all nodes and namespaces."""
    return _collapsed(sums, lambda cell: Cell(cell.policy, ALL, ALL))


def _collapsed(sums: Mapping[Cell, Resources], into: Callable[[Cell], Cell]) -> Sums:
    parts: defaultdict[Cell, list[Resources]] = defaultdict(list)
    for cell, lent in sums.items():
        parts[into(cell)].append(lent)
    return {cell: sum_resources(each) for cell, each in parts.items()}


def _add(sums: Sums, cell: Cell, lent: Resources) -> None:
    sums[cell] = add_resources(sums.get(cell, {}), lent)


def _by_hour(start: datetime, end: datetime, oldest: datetime) -> Iterator[tuple[datetime | None, datetime, datetime]]:
    """Yields each hour between two times with the limits of its share; None for all hours before the oldest."""
    if start < oldest:
        yield None, start, min(end, oldest)
        start = oldest
    while start < end:
        hour = hour_of(start)
        stop = min(end, hour + _HOUR)
        yield hour, start, stop
        start = stop


def resource_names(sums: Iterable[Resources]) -> list[str]:
    """Returns the names of all resources, those of Kubernetes first."""
    names = {name for lent in sums for name in lent}
    return sorted(names, key=lambda name: ("/" in name, name))
