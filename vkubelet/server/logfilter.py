"""Applies tail, since, timestamps and limit-bytes to a log stream, for providers that cannot do it themselves.

Invariant: however long a line or a log is, only the start of one line is buffered.

Input is lines that start with an RFC 3339 time and a space, cut into chunks anywhere. A line without a time shares that of the line before.
"""

import re
from datetime import UTC, datetime

from vkubelet.clock import parse_rfc3339

_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.(\d+))?(?:Z|[+-]\d\d:\d\d)\Z")
_LONGEST_TIME = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LineCount:
    """Line counter; a last line without a newline counts too."""

    def __init__(self) -> None:
        self._ended = 0
        self._open = False

    def feed(self, chunk: bytes) -> None:
        if chunk:
            self._ended += chunk.count(b"\n")
            self._open = not chunk.endswith(b"\n")

    @property
    def lines(self) -> int:
        return self._ended + self._open


class LogFilter:
    """Filter of a log stream.

    Drops the first `skip` lines, then passes the next `lines` (None: all that follow), of these only the ones not before `since`, without
    their times unless `timestamps`, of that the first `limit` bytes.
    """

    def __init__(
        self,
        *,
        skip: int = 0,
        lines: int | None = None,
        since: datetime | None = None,
        timestamps: bool = False,
        limit: int | None = None,
    ) -> None:
        self._skip = skip
        self._lines = lines
        self._since = None if since is None else _nanoseconds(since, b"")
        self._timestamps = timestamps
        self._limit = limit
        self._start = b""
        self._inside = False
        self._passing = False
        self._recent = self._since is None

    @property
    def done(self) -> bool:
        """Whether no further output can follow."""
        return self._limit == 0 or (self._lines == 0 and not self._inside)

    def feed(self, chunk: bytes) -> bytes:
        """Returns the selected part of `chunk`, as far as that can be decided already."""
        pieces: list[bytes] = []
        at = 0
        while at < len(chunk) and not self.done:
            if self._inside:
                end = chunk.find(b"\n", at) + 1
                if self._passing:
                    pieces.append(chunk[at : end or None])
                self._inside = end == 0
                at = end or len(chunk)
            else:
                at = self._begin_line(chunk, at, pieces)
        return self._within_limit(b"".join(pieces))

    def finish(self) -> bytes:
        """Returns what was buffered, when the log is complete."""
        pieces: list[bytes] = []
        if self._start:
            self._decide(self._start, pieces)
            self._start = b""
        return self._within_limit(b"".join(pieces))

    def _begin_line(self, chunk: bytes, at: int, pieces: list[bytes]) -> int:
        """Collects the start of a line until it contains the complete time; returns the position after what was consumed."""
        window = chunk[at : at + _LONGEST_TIME - len(self._start)]
        stops = [found for found in (window.find(b" "), window.find(b"\n")) if found >= 0]
        taken = min(stops) + 1 if stops else len(window)
        self._start += window[:taken]
        if stops or len(self._start) == _LONGEST_TIME:
            start, self._start = self._start, b""
            self._inside = not start.endswith(b"\n")
            self._decide(start, pieces)
        return at + taken

    def _decide(self, start: bytes, pieces: list[bytes]) -> None:
        """Decides whether the line that starts with `start` passes."""
        if self._skip > 0:
            self._skip -= 1
            self._passing = False
            return
        if self._lines is not None:
            self._lines -= 1
        text = start.rstrip(b" \n")
        time = _TIME.match(text)
        if time is not None and self._since is not None:
            self._recent = _time_of(text, time.group(1) or b"", otherwise=self._since) >= self._since
        self._passing = self._recent
        if self._passing:
            bare = time is not None and not self._timestamps
            pieces.append((b"\n" if start.endswith(b"\n") else b"") if bare else start)

    def _within_limit(self, data: bytes) -> bytes:
        if self._limit is None:
            return data
        data = data[: self._limit]
        self._limit -= len(data)
        return data


def _time_of(text: bytes, fraction: bytes, *, otherwise: int) -> int:
    """Returns nanoseconds since 1970; text that is only similar to a time counts as `otherwise`."""
    try:
        return _nanoseconds(parse_rfc3339(text.decode()), fraction)
    except ValueError:
        return otherwise


def _nanoseconds(moment: datetime, fraction: bytes) -> int:
    """Returns exact nanoseconds, with the digits that a datetime cannot store."""
    since_epoch = moment - _EPOCH
    below = int(fraction[:9].ljust(9, b"0")) if fraction else since_epoch.microseconds * 1000
    return (since_epoch.days * 86400 + since_epoch.seconds) * 1_000_000_000 + below
