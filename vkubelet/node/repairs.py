"""Slows down a write that has to be repeated, because another writer, or the API server itself, undoes it.

Invariant: whatever differs from the write before goes out at once; the same again waits twice as long each time.
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
    """Remembers the last write of each node by the difference it was to make."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._backoff = Backoff(first=FIRST, limit=LIMIT)
        self._last: dict[str, _Write] = {}

    def wait(self, name: str, difference: Json) -> float:
        """Seconds until this may be written; 0: now."""
        last = self._last.get(name)
        if last is None or not difference or last.difference != difference:
            return 0.0
        return max(0.0, last.again - self._clock.monotonic())

    def wrote(self, name: str, difference: Json) -> None:
        """This was written now; an empty difference is no repetition of anything."""
        if not difference:
            return
        now, last = self._clock.monotonic(), self._last.get(name)
        if last is None or last.difference != difference or now - last.at > CALM:
            self._backoff.forget(name)
        self._last[name] = _Write(difference, now, now + self._backoff.next(name))

    def forget(self, name: str) -> None:
        """The node is gone."""
        self._last.pop(name, None)
        self._backoff.forget(name)
