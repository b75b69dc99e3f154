"""A transport without a network: what is written is kept, and the other end reads when the test wants it to.

Invariant: it calls its protocol where asyncio's transports do, and nowhere else.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol


class Driven(Protocol):
    """What is told about the connection."""

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


class MemoryTransport(asyncio.Transport):
    """`sent` is all that was written; `unread` of it waits for the other end while `stuck`."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Driven | None = None
        self.sent = bytearray()
        self.unread = 0
        self.stuck = False
        self.reading = True
        self.aborted = False
        self._high = 64 * 1024
        self._full = False
        self._closing = False
        self._lost = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing:
            return
        self.sent += data
        if self.stuck:
            self.unread += len(data)
            self._look()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._look()

    def get_write_buffer_size(self) -> int:
        return self.unread

    def _look(self) -> None:
        if self.unread > self._high and not self._full and self.protocol is not None:
            self._full = True
            self.protocol.pause_writing()

    def read_all(self) -> None:
        """The other end reads everything, and goes on reading."""
        self.stuck, self.unread = False, 0
        if self._full and self.protocol is not None:
            self._full = False
            self.protocol.resume_writing()
        if self._closing:
            self.lose()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True
        if not self.unread:
            self.lose()

    def abort(self) -> None:
        self._closing = self.aborted = True
        self.lose()

    def lose(self, error: Exception | None = None) -> None:
        """The connection is gone."""
        if not self._lost and self.protocol is not None:
            self._lost = self._closing = True
            self.protocol.connection_lost(error)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default
