"""A brake on doing something drastic to many things at once.

Invariant: within `span` seconds no more than the allowed share passes; the rest waits for a person, however often it is asked for.
"""

from __future__ import annotations

from vkubelet.clock import Clock


class MassGuard:
    """Lets max(minimum, share of the total) keys pass within any `span` seconds; one more trips it until `confirm` or `forget`."""

    def __init__(self, *, share: float = 0.1, minimum: int = 1, span: float = 60.0, clock: Clock) -> None:
        self._share = share
        self._minimum = minimum
        self._span = span
        self._clock = clock
        self._passed: dict[str, float] = {}
        self._refused: set[str] = set()
        self._confirmed: set[str] = set()
        self._inherited = False

    @property
    def tripped(self) -> bool:
        """Something was refused and waits for confirmation; until then nothing new passes."""
        return bool(self._refused) or self._inherited

    def trip(self) -> None:
        """An earlier process refused something: nothing passes until every key was asked for again, see `release`."""
        self._inherited = True

    def release(self) -> bool:
        """Every key was asked for since `trip`: only what was refused again still waits. Whether that is new."""
        inherited, self._inherited = self._inherited, False
        return inherited

    @property
    def refused(self) -> frozenset[str]:
        """What waits for confirmation."""
        return frozenset(self._refused)

    def allow(self, key: str, total: int) -> bool:
        """Whether the step may be done for `key`, one of `total`. Asking again within the span counts once."""
        self._let_pass_expire()
        if key in self._passed:
            return True
        if key in self._confirmed:
            self._confirmed.discard(key)
            return True
        if self.tripped or len(self._passed) >= max(self._minimum, int(self._share * total)):
            self._refused.add(key)
            return False
        self._passed[key] = self._clock.monotonic()
        return True

    def confirm(self) -> None:
        """A person agreed: each key refused so far may pass once."""
        self._confirmed |= self._refused
        self._refused.clear()
        self._inherited = False

    def forget(self, key: str) -> None:
        """The cause has vanished: the key no longer waits, and an old confirmation does not count next time."""
        self._refused.discard(key)
        self._confirmed.discard(key)

    def _let_pass_expire(self) -> None:
        oldest = self._clock.monotonic() - self._span
        self._passed = {key: at for key, at in self._passed.items() if at > oldest}
