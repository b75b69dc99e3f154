"""A rate limit for disruptive operations on many objects at once.

Invariant: within `span` seconds no more than the allowed share passes; the rest waits for confirmation, however often it is requested.
"""

from vkubelet.clock import Clock


class MassGuard:
    """Limit that lets max(minimum, share of the total) keys pass within any `span` seconds; one more trips it until `confirm` or
    `forget`."""

    def __init__(self, *, share: float = 0.1, minimum: int = 1, span: float = 60.0, clock: Clock) -> None:
        self._share = share
        self._minimum = minimum
        self._span = span
        self._clock = clock
        self._passed: dict[str, float] = {}
        self._refused: set[str] = set()
        self._confirmed: set[str] = set()
        self._inherited = False

    def trip(self) -> None:
        """Restores the refusal of an earlier process: nothing passes until every key was requested again, see `release`."""
        self._inherited = True

    def release(self) -> bool:
        """Releases the restored refusal, as every key was requested since `trip`; keys refused again still wait. Returns whether it was
        active."""
        inherited, self._inherited = self._inherited, False
        return inherited

    @property
    def refused(self) -> frozenset[str]:
        """Keys that wait for confirmation."""
        return frozenset(self._refused)

    def allow(self, key: str, total: int) -> bool:
        """Returns whether the operation may be done for `key`, one of `total`. A repeated request within the span counts once."""
        self._let_pass_expire()
        if key in self._passed:
            return True
        if key in self._confirmed:
            self._confirmed.discard(key)
            return True
        if self._refused or self._inherited or len(self._passed) >= max(self._minimum, int(self._share * total)):
            self._refused.add(key)
            return False
        self._passed[key] = self._clock.monotonic()
        return True

    def confirm(self) -> None:
        """Confirms: each key refused so far may pass once."""
        self._confirmed |= self._refused
        self._refused.clear()
        self._inherited = False

    def forget(self, key: str) -> None:
        """Drops the request of a key: it no longer waits, and an old confirmation does not count next time."""
        self._refused.discard(key)
        self._confirmed.discard(key)

    def _let_pass_expire(self) -> None:
        oldest = self._clock.monotonic() - self._span
        self._passed = {key: at for key, at in self._passed.items() if at > oldest}
