"""Time windows of a policy: whether an instant is in one, and when that changes.

Invariant: a window means the times that a wall clock of its zone shows. So where that clock repeats an hour, the hour counts twice, and
where it skips one, that hour does not exist; no other rule for daylight saving is needed.

A window belongs to the day on which it starts; `end` is its last minute, which is open entirely. Windows that follow one another minute by
minute are therefore one opening.
"""

import re
import zoneinfo
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from attrs import frozen

_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
_MIDNIGHT: Final = "24:00"
_DAY: Final = 24 * 60
DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

# Weeks are equal except for one change of the clock in a week; a second week covers that.
_HORIZON: Final = 15
_REMEMBERED: Final = 4096
"""Windows, and days of a zone, whose times are kept: the same few are asked for with every node of a policy."""


@frozen
class TimeWindow:
    """One entry of `spec.timeWindows`: `start` and `end` as HH:MM, and the days on which it starts (English names, any case; none: all)."""

    start: str
    end: str
    days: tuple[str, ...] = ()

    def problems(self) -> list[str]:
        """Returns the problems of the window, in sentences without a subject."""
        found = []
        if not _TIME.fullmatch(self.start):
            found.append(f"start {self.start!r} is not a time; write HH:MM, from 00:00 to 23:59")
        if self.end != _MIDNIGHT and not _TIME.fullmatch(self.end):
            found.append(f"end {self.end!r} is not a time; write HH:MM, from 00:00 to 24:00")
        found.extend(f"day {day!r} is unknown; write {', '.join(map(str.title, DAYS))}" for day in self.days if day.lower() not in DAYS)
        return found


@frozen
class _Span:
    """A valid window in minutes of the day; `last` below `first` means the next day."""

    first: int
    last: int
    days: frozenset[int]

    def holds(self, weekday: int, minute: int) -> bool:
        if self.first <= self.last:
            return weekday in self.days and self.first <= minute <= self.last
        return (weekday in self.days and minute >= self.first) or ((weekday - 1) % 7 in self.days and minute <= self.last)


def zone_of(*names: str) -> ZoneInfo:
    """Returns the zone of the first name that is not empty, UTC without any. Raises ValueError when it is unknown."""
    name = next(filter(None, names), "UTC")
    try:
        return ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"time zone {name!r} is unknown; use an IANA name such as Europe/Berlin") from error


def is_open(windows: Sequence[TimeWindow], zone: ZoneInfo, instant: datetime) -> bool:
    """Checks whether any window is open; without windows always. Invalid windows are never open."""
    return not windows or _holds(_spans(windows), zone, instant)


def next_edge(windows: Sequence[TimeWindow], zone: ZoneInfo, instant: datetime) -> datetime | None:
    """Returns the first instant (UTC) after this one at which `is_open` changes; None when there is none."""
    spans = _spans(windows)
    now = _holds(spans, zone, instant)
    today = instant.astimezone(zone).date()
    for day in range(-1, _HORIZON):
        for candidate in _candidates(spans, zone, today + timedelta(days=day)):
            if candidate > instant and _holds(spans, zone, candidate) != now:
                return candidate
    return None


def previous_edge(windows: Sequence[TimeWindow], zone: ZoneInfo, instant: datetime) -> datetime | None:
    """Returns the last instant (UTC), up to this one itself, at which `is_open` changed to its present value; None when there is none."""
    spans = _spans(windows)
    now = _holds(spans, zone, instant)
    today = instant.astimezone(zone).date()
    since: datetime | None = None
    for day in range(1, -_HORIZON, -1):
        for candidate in reversed(_candidates(spans, zone, today + timedelta(days=day))):
            if candidate > instant:
                continue
            if _holds(spans, zone, candidate) != now:
                return since
            since = candidate
    return None


def _spans(windows: Sequence[TimeWindow]) -> tuple[_Span, ...]:
    return tuple(span for window in windows if (span := _span(window)) is not None)


@lru_cache(maxsize=_REMEMBERED)
def _span(window: TimeWindow) -> _Span | None:
    """Returns a window in minutes; None for an invalid one."""
    if window.problems():
        return None
    last = _DAY - 1 if window.end == _MIDNIGHT else _minute(window.end)
    days = frozenset(DAYS.index(day.lower()) for day in window.days) or frozenset(range(7))
    return _Span(_minute(window.start), last, days)


def _minute(text: str) -> int:
    return int(text[:2]) * 60 + int(text[3:])


def _holds(spans: Sequence[_Span], zone: ZoneInfo, instant: datetime) -> bool:
    local = instant.astimezone(zone)
    return any(span.holds(local.weekday(), local.hour * 60 + local.minute) for span in spans)


@lru_cache(maxsize=_REMEMBERED)
def _candidates(spans: tuple[_Span, ...], zone: ZoneInfo, day: date) -> tuple[datetime, ...]:
    """Returns every instant of a local day at which a window may open or close, ascending: its times, midnight, and clock changes."""
    minutes = {0} | {span.first for span in spans} | {(span.last + 1) % _DAY for span in spans}
    # Where the clock skips midnight, one of the instants nearby is on the day before, among whose candidates it would be out of order.
    found = {instant for minute in minutes for instant in _instants(zone, day, minute) if instant.astimezone(zone).date() == day}
    found.update(_clock_changes(zone, day))
    return tuple(sorted(found))


def _instants(zone: ZoneInfo, day: date, minute: int) -> Iterator[datetime]:
    """Yields the instants at which the clock shows this time: one, or two in a repeated hour; in a skipped one instants nearby."""
    shown = datetime.combine(day, time(minute // 60, minute % 60), zone)
    yield shown.astimezone(UTC)
    yield shown.replace(fold=1).astimezone(UTC)


def _clock_changes(zone: ZoneInfo, day: date) -> Iterator[datetime]:
    start, end = (datetime.combine(day + timedelta(days=n), time(), zone).astimezone(UTC) for n in (0, 1))
    if start.astimezone(zone).utcoffset() != end.astimezone(zone).utcoffset():
        offset = start.astimezone(zone).utcoffset()
        yield _first(start, end, lambda instant: instant.astimezone(zone).utcoffset() != offset)


def _first(before: datetime, after: datetime, holds: Callable[[datetime], bool]) -> datetime:
    """Finds by bisection, to the minute, the first instant at which `holds`, given that it does `after` but not `before`."""
    while after - before > timedelta(minutes=1):
        middle = before + timedelta(minutes=int((after - before).total_seconds() // 120))
        if holds(middle):
            after = middle
        else:
            before = middle
    return after
