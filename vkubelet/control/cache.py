"""Cache for reviews of the cluster, shared by concurrent callers.

Invariant: for one key at most one lookup is in flight, and a caller that disconnects does not cancel the lookup of the others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from attrs import define, field, frozen

from vkubelet.clock import Clock
from vkubelet.errors import VKubeletError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@frozen
class Answer(Generic[V]):
    """A value and the seconds for which it may be returned again; 0: only to those that are waiting."""

    value: V
    lifetime: float


@define
class _Flight(Generic[V]):
    landed: asyncio.Event = field(factory=asyncio.Event)
    answer: Answer[V] | None = None
    error: VKubeletError | None = None


class SharedCache(Generic[K, V]):
    """Cache of at most `size` answers; the oldest is evicted first."""

    def __init__(self, clock: Clock, *, size: int = 16384) -> None:
        self._clock = clock
        self._size = size
        self._cached: dict[K, tuple[V, float]] = {}
        self._flights: dict[K, _Flight[V]] = {}

    async def get(self, key: K, look_up: Callable[[], Awaitable[Answer[V]]]) -> V:
        """Returns the cached value, or that of the lookup in flight, or that of `look_up`. An error of ours is shared, and not cached."""
        while True:
            cached = self._cached.get(key)
            if cached is not None and self._clock.monotonic() < cached[1]:
                return cached[0]
            flight = self._flights.get(key)
            if flight is None:
                return await self._fly(key, look_up)
            await flight.landed.wait()
            if flight.error is not None:
                raise flight.error
            if flight.answer is not None:
                return flight.answer.value
            # The caller that started the lookup disconnected before it was done: one of those that still wait repeats it.

    async def _fly(self, key: K, look_up: Callable[[], Awaitable[Answer[V]]]) -> V:
        flight = self._flights[key] = _Flight()
        try:
            flight.answer = await look_up()
        except VKubeletError as error:
            flight.error = error
            raise
        finally:
            del self._flights[key]
            flight.landed.set()
        self._store(key, flight.answer)
        return flight.answer.value

    def _store(self, key: K, answer: Answer[V]) -> None:
        self._cached.pop(key, None)
        if answer.lifetime <= 0:
            return
        now = self._clock.monotonic()
        # Answers may be large, so expired ones at the front are evicted as well.
        while self._cached and (len(self._cached) >= self._size or next(iter(self._cached.values()))[1] <= now):
            del self._cached[next(iter(self._cached))]
        self._cached[key] = (answer.value, now + answer.lifetime)
