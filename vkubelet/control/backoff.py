"""Exponential back-off and rate limits.

Invariant: delays double up to a limit and never exceed it; a success resets them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable

from vkubelet.clock import Clock


class Backoff:
    """Doubling delays per key, in seconds; up to the share `jitter` of each is subtracted at random, so that crowds disperse."""

    def __init__(self, *, first: float = 0.2, limit: float = 60.0, jitter: float = 0.1, rng: Callable[[], float] = random.random) -> None:
        self._first = first
        self._limit = limit
        self._jitter = jitter
        self._rng = rng
        self._failures: dict[Hashable, int] = {}

    def next(self, key: Hashable = None) -> float:
        """Records a failure; returns the seconds to wait."""
        before = self._failures.get(key, 0)
        self._failures[key] = before + 1
        return min(self._limit, self._first * 2.0 ** min(before, 30)) * (1 - self._jitter * self._rng())

    def failures(self, key: Hashable = None) -> int:
        """Returns the number of failures since the last success."""
        return self._failures.get(key, 0)

    def forget(self, key: Hashable = None) -> None:
        """Records a success."""
        self._failures.pop(key, None)


class TokenBucket:
    """Token bucket: at most `burst` at once and `rate` per second in the long run."""

    def __init__(self, rate: float, burst: float, *, clock: Clock) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._filled_at = clock.monotonic()

    def take(self) -> bool:
        """Takes a token if there is one."""
        self._fill()
        # Sums of fractions rarely make exactly one token.
        if self._tokens < 1 - 1e-6:
            return False
        self._tokens = max(0.0, self._tokens - 1)
        return True

    async def wait(self) -> None:
        """Waits for a token and takes it."""
        while not self.take():
            await self._clock.sleep((1 - self._tokens) / self._rate)

    def _fill(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
