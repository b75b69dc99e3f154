"""Time as a value that is passed in, so that tests can control it.

Invariant: no other module reads the wall clock, the monotonic clock, or sleeps by itself.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime
from typing import Protocol, TypeVar

T = TypeVar("T")

_STEP = 0.5
"""Seconds. Time daemons correct less by letting the clock run faster or slower, by far less in a second."""


class Clock(Protocol):
    """Clock for all other modules."""

    def now(self) -> datetime:
        """Returns the wall clock time, with time zone UTC."""
        ...

    def monotonic(self) -> float:
        """Returns seconds since an arbitrary point; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits; zero or less only yields to other tasks."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


async def steps(clock: Clock, *, every: float = 1.0) -> AsyncIterator[float]:
    """Yields by how many seconds the wall clock was set, each time that it was set.

    Also after a suspension of the machine, during which the monotonic clock, and with it every wait, stands still.
    """
    ahead = _ahead(clock)
    while True:
        await clock.sleep(every)
        before, ahead = ahead, _ahead(clock)
        if abs(ahead - before) >= _STEP:
            yield ahead - before


def _ahead(clock: Clock) -> float:
    return clock.now().timestamp() - clock.monotonic()


async def in_batches(clock: Clock, items: Iterable[T], *, size: int = 10) -> AsyncIterator[T]:
    """Yields the items; before each batch of `size`, other tasks of the event loop run, so that Leases and probes are not late.

    A collection is copied first, because it may change between two batches; an iterator is read as it is needed.
    """
    for position, item in enumerate(items if isinstance(items, Iterator) else list(items)):
        if position % size == 0:
            await clock.sleep(0)
        yield item


def rfc3339(moment: datetime) -> str:
    """Formats a `metav1.Time`: UTC, integer seconds, such as 2026-01-31T12:00:00Z (Kubernetes API conventions)."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def rfc3339_micro(moment: datetime) -> str:
    """Formats a `metav1.MicroTime`, used by Leases and Events: UTC with six digits."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse_rfc3339(text: str) -> datetime:
    """Parses any RFC 3339 time, also with nanoseconds, which are cut to microseconds.

    Raises ValueError when the text is not one.
    """
    head, dot, rest = text.partition(".")
    if not dot:
        return _aware(datetime.fromisoformat(text), text)
    digits = len(rest) - len(rest.lstrip("0123456789"))
    if digits == 0:
        raise ValueError(f"not an RFC 3339 time: {text!r}")
    return _aware(datetime.fromisoformat(f"{head}.{rest[:digits][:6]:0<6}{rest[digits:]}"), text)


def _aware(moment: datetime, text: str) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"not an RFC 3339 time, the zone is missing: {text!r}")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"not a time within the years 1 to 9999: {text!r}") from error
