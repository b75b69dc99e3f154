"""When a watch that failed is repeated, and which of its failures are worth a warning.

Invariant: one outage is one warning, unless a right that is missing is followed by another one.
"""

import logging
from typing import Final

from attrs import define, field

from vkubelet.control.backoff import Backoff
from vkubelet.errors import Expired, Forbidden, NotFound, Unreachable, VKubeletError
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

_UNANSWERED_LIMIT: Final = 10.0
"""Seconds between two attempts where the server does not load itself by answering: it is not reached, or refuses without work."""
_FAILURES_UNTIL_WARNING: Final = 3


def _backoff() -> Backoff:
    return Backoff(first=0.2, limit=30.0, jitter=0.5)


@define
class WatchRetries:
    """Failures of one watch, in sequence; `resource` is for the log."""

    _resource: str
    _backoff: Backoff = field(factory=_backoff)
    _warned: str = ""
    """The error of the last warning."""

    def failed(self, error: VKubeletError) -> None:
        """Logs an attempt that failed."""
        failures = self._backoff.failures() + 1
        # The text of a refusal does not change with each attempt, so another one is another right that lacks.
        is_other = failures > _FAILURES_UNTIL_WARNING and isinstance(error, Forbidden) and str(error) != self._warned
        is_due = failures == _FAILURES_UNTIL_WARNING or is_other
        if is_due:
            self._warned = str(error)
        with bind(resource=self._resource):
            log.log(logging.WARNING if is_due else logging.DEBUG, "watch failed, it will be repeated: %s", error)

    def recovered(self) -> None:
        """Logs the first success after failures."""
        if self._backoff.failures() >= _FAILURES_UNTIL_WARNING:
            with bind(resource=self._resource):
                log.info("watch works again")

    def settled(self) -> None:
        """The watch lasted: the next failure is the first of its outage."""
        self._backoff.reset()
        self._backoff.reset(Expired)

    def wait_after(self, problem: VKubeletError | None) -> float:
        """Returns the seconds until the next attempt; `problem` None: the server closed the stream."""
        # A server that answers again has usually dropped the version: its list does not wait as the attempts before it did.
        wait = self._backoff.next(Expired if isinstance(problem, Expired) else None)
        if isinstance(problem, Forbidden | NotFound | Unreachable):
            wait = min(wait, _UNANSWERED_LIMIT)
        return max(wait, getattr(problem, "retry_after", None) or 0.0)
