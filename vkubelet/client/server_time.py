"""The time of a server, estimated from the Date headers of its responses.

Invariant: it goes back only when a header shows that the server's clock was set back; what is late by it stays late.
"""

from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime

from vkubelet.clock import Clock

_RESOLUTION = timedelta(seconds=1)
"""A header has whole seconds: the server's clock shows up to one more (RFC 9110, section 5.6.7)."""


class ServerTime:
    """Time of one server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._latest: tuple[datetime, float] | None = None
        """The header that shows the latest time, and the monotonic second when it was received."""
        self._text = ""

    def now(self) -> datetime:
        """Returns the server's time, at most a second and the time of a response early; our own without a readable header."""
        if self._latest is None:
            return self._clock.now()
        date, received = self._latest
        return date + timedelta(seconds=self._clock.monotonic() - received)

    def observe(self, header: str, *, took: float) -> None:
        """Notes the header of a response that was received just now, `took` seconds after its request was sent."""
        if header == self._text:
            return
        self._text = header
        try:
            date = parsedate_to_datetime(header)
        except ValueError:
            return
        if date.tzinfo is None:
            return
        if self._latest is None or not timedelta() <= self.now() - date <= _RESOLUTION + timedelta(seconds=took):
            self._latest = date, self._clock.monotonic()
