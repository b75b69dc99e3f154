"""Slows down a write that has to be repeated because another client, or the API server itself, reverts it.

Invariant: a write that differs from the previous one is sent at once; an equal one waits twice as long each time.
"""

from __future__ import annotations

from attrs import frozen

from vkubelet.api.shapes import Json
from vkubelet.clock import Clock
from vkubelet.control.backoff import Backoff

FIRST, LIMIT = 1.0, 300.0
"""Seconds before the second and before a much later repetition."""

CALM = 600.0
"""Seconds without a repetition after which the next one counts as the first."""


@frozen
class _Write:
    difference: Json
    at: float
    again: float


class Repairs:
    """The last write of each node, by the difference that it was meant to make."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._backoff = Backoff(first=FIRST, limit=LIMIT)
        self._last: dict[str, _Write] = {}

    def wait(self, name: str, difference: Json) -> float:
        """Returns the seconds until this may be written; 0: now."""
        last = self._last.get(name)
        if last is None or not difference or last.difference != difference:
            return 0.0
        return max(0.0, last.again - self._clock.monotonic())

    def wrote(self, name: str, difference: Json) -> None:
        """Records that this was written now; an empty difference is never a repetition."""
        if not difference:
            return
        now, last = self._clock.monotonic(), self._last.get(name)
        if last is None or last.difference != difference or now - last.at > CALM:
            self._backoff.forget(name)
        self._last[name] = _Write(difference, now, now + self._backoff.next(name))

    def forget(self, name: str) -> None:
        """Drops a deleted node."""
        self._last.pop(name, None)
        self._backoff.forget(name)
