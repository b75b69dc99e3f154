"""Computes the page of time windows, and the bars of one node, from explanations and calendars (pure).

Invariant: instants, changes and evictions are those of `explain.calendar`; only their place on the page is computed here.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from attrs import frozen

from kubeocean.commands.calendar import Entry, Plan, blocked_by, entries, latest, local, zone_of
from kubeocean.explain.calendar import Eviction
from kubeocean.explain.node import Amount


@frozen(kw_only=True)
class Span:
    """A bar on a line: start and width in percent of the line."""

    start: float
    width: float
    text: str


@frozen(kw_only=True)
class Lane:
    """The open windows of one policy."""

    policy: str
    zone: str
    spans: Sequence[Span]


@frozen(kw_only=True)
class Due:
    """An eviction, with the time zone of its policy."""

    eviction: Eviction
    zone: str

    @property
    def at(self) -> str:
        return local(self.eviction.at, self.zone)

    @property
    def deadline(self) -> str:
        return latest(self.eviction, self.zone)

    @property
    def blocked_by(self) -> str:
        return blocked_by(self.eviction)


@frozen(kw_only=True)
class Timeline:
    """The calendar of one binding."""

    binding: str
    start: datetime
    until: datetime
    days: Sequence[Span]
    lanes: Sequence[Lane]
    entries: Sequence[Entry]
    evictions: Sequence[Due]
    notes: Sequence[str]


def timeline(plan: Plan, *, open_now: frozenset[str], windows: Sequence[str]) -> Timeline:
    """Computes the page of one binding; `windows` are its policies with time windows, `open_now` those that are open at the start."""
    made, zones = plan.calendar, plan.zones
    return Timeline(
        binding=plan.binding,
        start=made.start,
        until=made.until,
        days=list(_days(made.start, made.until)),
        lanes=[_lane(plan, policy, opened=policy in open_now) for policy in windows],
        entries=[entry for edge in made.edges for entry in entries(edge, zones)],
        evictions=[Due(eviction=each, zone=zone_of(each, zones)) for each in made.evictions],
        notes=plan.notes,
    )


def _lane(plan: Plan, policy: str, *, opened: bool) -> Lane:
    made, zone = plan.calendar, plan.zones[policy]
    spans: list[Span] = []
    since = made.start if opened else None
    for edge in made.edges:
        if policy in edge.opens:
            since = edge.at
        elif policy in edge.closes and since is not None:
            spans.append(_span(plan, since, edge.at, zone))
            since = None
    if since is not None:
        spans.append(_span(plan, since, made.until, zone))
    return Lane(policy=policy, zone=zone, spans=spans)


def _span(plan: Plan, start: datetime, end: datetime, zone: str) -> Span:
    made = plan.calendar
    return _placed(made.start, made.until, (start, end), text=f"open {local(start, zone)} to {local(end, zone)}")


def _placed(first: datetime, last: datetime, between: tuple[datetime, datetime], *, text: str) -> Span:
    whole = (last - first).total_seconds()
    start, end = ((each - first).total_seconds() / whole * 100 for each in between)
    return Span(start=round(start, 2), width=round(max(0.2, end - start), 2), text=text)


def _days(first: datetime, last: datetime) -> Iterator[Span]:
    """Yields the midnights (UTC) between two instants."""
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    while midnight < last:
        yield _placed(first, last, (midnight, midnight), text=f"{midnight:%a %d}")
        midnight += timedelta(days=1)


@frozen(kw_only=True)
class Part:
    """A part of the capacity of a node, in percent of it."""

    kind: str
    start: float
    width: float


def parts(amount: Amount) -> list[Part]:
    """Computes the parts of the capacity of a physical node: local pods, pods of the binding, free, and withheld."""
    whole = amount.allocatable.nanos
    if not whole:
        return []
    made, at = list[Part](), 0.0
    for kind, quantity in (("local", amount.local), ("leased", amount.leased), ("free", amount.free)):
        width = min(100.0 - at, max(0.0, 100 * quantity.nanos / whole))
        made.append(Part(kind=kind, start=round(at, 2), width=round(width, 2)))
        at += width
    return [each for each in made if each.width]
