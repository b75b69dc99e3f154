"""Workqueue: keys that wait for a worker, deduplicated, delayed, prioritised.

Invariant: a key waits at most once and is processed by at most one worker; a key that is added while it is processed is queued again after.
"""

import asyncio
import enum
import heapq
from collections.abc import Hashable
from itertools import count
from typing import Generic, TypeVar

from attrs import frozen

from vkubelet.clock import Clock
from vkubelet.metrics import Metrics

K = TypeVar("K", bound=Hashable)

_TICK = 0.005
"""Seconds: delayed keys that follow one another faster become due together, which saves an alarm for each."""

_STALE = 100
"""Replaced entries that a heap may contain beside as many as there are waiting keys."""


class Priority(enum.IntEnum):
    """HIGH for recent changes, LOW for first lists and periodic checks."""

    HIGH = 0
    LOW = 1


@frozen(eq=False)
class _Waiting(Generic[K]):
    key: K
    due: float
    priority: Priority


class Workqueue(Generic[K]):
    """Queue of keys. `run` must run beside the workers: it makes delayed keys due. Times are seconds of `clock.monotonic`."""

    def __init__(self, name: str, *, clock: Clock, metrics: Metrics | None = None) -> None:
        self.name = name
        self._clock = clock
        self._waiting: dict[K, _Waiting[K]] = {}
        self._again: dict[K, _Waiting[K]] = {}
        self._out: dict[K, Priority] = {}
        # Heaps may contain entries that were replaced since; only those still in `_waiting` count.
        self._delayed: list[tuple[float, int, _Waiting[K]]] = []
        self._due: list[tuple[Priority, int, _Waiting[K]]] = []
        self._order = count()
        self._permits = asyncio.Semaphore(0)
        self._alarm_changed = asyncio.Event()
        if metrics is not None:
            metrics.queue_depth.labels(queue=name).set_function(self._depth)
            metrics.queue_oldest_seconds.labels(queue=name).set_function(self._oldest)

    def __len__(self) -> int:
        """Returns the number of keys that wait, due or not, including those that are processed and queued again."""
        return len(self._waiting) + len(self._again)

    def __contains__(self, key: K) -> bool:
        return key in self._waiting or key in self._again

    @property
    def has_due(self) -> bool:
        """Whether `get` may return at once; keys that were discarded since they became due count too."""
        return bool(self._due)

    def is_due(self, key: K) -> bool:
        """Checks whether the key waits for nothing but a worker."""
        entry = self._waiting.get(key)
        return entry is not None and entry.due <= self._clock.monotonic()

    def is_idle(self, *, within: float = 0.0) -> bool:
        """Checks that no key is being processed, and none becomes due in that many seconds."""
        end = self._clock.monotonic() + within
        return not self._out and all(entry.due > end for entry in self._waiting.values())

    def add(self, key: K, *, after: float = 0.0, priority: Priority = Priority.HIGH) -> None:
        """Queues the key for `after` seconds from now; of several calls the earliest time and the highest priority apply."""
        due = self._clock.monotonic() + max(0.0, after)
        place = self._again if key in self._out else self._waiting
        known = place.get(key)
        if known is not None:
            if known.due <= due and known.priority <= priority:
                return
            due, priority = min(known.due, due), min(known.priority, priority)
        wanted = place[key] = _Waiting(key, due, priority)
        if place is self._waiting:
            self._push(wanted)

    async def get(self) -> K:
        """Returns the next due key, HIGH before LOW, then in the order they became due. It is being processed until `done`."""
        while True:
            self._promote()
            await self._permits.acquire()
            while self._due:
                priority, _, entry = heapq.heappop(self._due)
                if self._waiting.get(entry.key) is entry:
                    del self._waiting[entry.key]
                    self._out[entry.key] = priority
                    return entry.key

    def done(self, key: K) -> None:
        """Marks the key as processed; it is queued again if it was added meanwhile."""
        self._out.pop(key, None)
        again = self._again.pop(key, None)
        if again is not None:
            self._waiting[key] = again
            self._push(again)

    def discard(self, key: K) -> None:
        """Removes a waiting key; a worker that processes it is not interrupted."""
        self._waiting.pop(key, None)
        self._again.pop(key, None)

    def priority(self, key: K) -> Priority:
        """Returns the priority a key had when a worker received it; LOW if it is not being processed."""
        return self._out.get(key, Priority.LOW)

    async def run(self) -> None:
        """Makes delayed keys due in time, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._alarm_changed.clear()
                self._promote()
                alarm = group.create_task(self._ring(self._delayed[0][0])) if self._delayed else None
                await self._alarm_changed.wait()
                if alarm is not None:
                    alarm.cancel()

    async def _ring(self, due: float) -> None:
        await self._clock.sleep(max(_TICK, due - self._clock.monotonic()))
        self._alarm_changed.set()

    def _push(self, entry: _Waiting[K]) -> None:
        if entry.due <= self._clock.monotonic():
            self._make_due(entry)
            return
        if len(self._delayed) > 2 * len(self._waiting) + _STALE:
            self._delayed = [each for each in self._delayed if self._is_current(each[2])]
            heapq.heapify(self._delayed)
        heapq.heappush(self._delayed, (entry.due, next(self._order), entry))
        if self._delayed[0][2] is entry:
            self._alarm_changed.set()

    def _promote(self) -> None:
        now = self._clock.monotonic()
        while self._delayed and (self._delayed[0][0] <= now or not self._is_current(self._delayed[0][2])):
            entry = heapq.heappop(self._delayed)[2]
            if self._is_current(entry):
                self._make_due(entry)

    def _make_due(self, entry: _Waiting[K]) -> None:
        heapq.heappush(self._due, (entry.priority, next(self._order), entry))
        self._permits.release()

    def _is_current(self, entry: _Waiting[K]) -> bool:
        return self._waiting.get(entry.key) is entry

    def _depth(self) -> float:
        now = self._clock.monotonic()
        return sum(entry.due <= now for entry in self._waiting.values())

    def _oldest(self) -> float:
        now = self._clock.monotonic()
        return max(0.0, now - min((entry.due for entry in self._waiting.values()), default=now))
