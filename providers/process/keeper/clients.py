"""Connections from vkubelet to a keeper: their requests, and the data still to be sent.

Invariant: nothing here waits; a client that does not read becomes full, and then late.
"""

import json
import os
import socket
import time
from collections.abc import Iterator

from . import frames

_FULL = 256 * 1024
_MOST_DESCRIPTORS = 3
LATE_SECONDS = 5.0


class Client:
    """Client of a keeper; `role` is its request, with `descriptors`."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.role = ""
        self.gives_input = False
        self.descriptors: list[int] = []
        self._frames = frames.Frames()
        self._out = bytearray()
        self._progress = time.monotonic_ns()

    def receive(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields received frames. Raises EOFError when the client has disconnected, or sends invalid data."""
        try:
            data, descriptors = frames.receive(self.connection, most=_MOST_DESCRIPTORS)
        except BlockingIOError:
            return iter(())
        except OSError as error:
            raise EOFError from error
        self.descriptors += descriptors
        if not data:
            raise EOFError
        try:
            return iter(list(self._frames.feed(data)))
        except ValueError as error:
            raise EOFError from error

    def answer(self, **values: object) -> None:
        self.send(frames.ANSWER, json.dumps(values).encode())

    def send(self, kind: bytes, data: bytes) -> None:
        if not self._out:
            self._progress = time.monotonic_ns()
        self._out += frames.frame(kind, data)
        self.flush()

    def flush(self) -> None:
        try:
            while self._out:
                del self._out[: self.connection.send(self._out)]
                self._progress = time.monotonic_ns()
        except BlockingIOError:
            return
        except OSError:
            self._out.clear()

    @property
    def has_more(self) -> bool:
        return bool(self._out)

    @property
    def is_full(self) -> bool:
        return len(self._out) > _FULL

    @property
    def is_late(self) -> bool:
        """Whether it has accepted no data for long."""
        return bool(self._out) and time.monotonic_ns() - self._progress > LATE_SECONDS * 1e9

    def close(self) -> None:
        self.drop_descriptors()
        self.connection.close()

    def drop_descriptors(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()


class Input:
    """Standard input of the container, or its terminal; unread data is buffered here."""

    def __init__(self, descriptor: int, *, tty: bool) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._tty = tty
        self._waiting = bytearray()
        self._ends = False
        self.open = True

    def put(self, data: bytes) -> None:
        if self.open and not self._ends:
            self._waiting += data
            self.flush()

    def end(self) -> None:
        """Closes the input; a terminal receives Ctrl-D."""
        if self._tty:
            self.put(b"\x04")
        self._ends = True
        self.flush()

    def flush(self) -> None:
        try:
            while self._waiting and self.open:
                del self._waiting[: os.write(self.descriptor, self._waiting)]
        except BlockingIOError:
            return
        except OSError:
            # It reads no more.
            self._waiting.clear()
            self._ends = True

    @property
    def is_done(self) -> bool:
        """Whether it has to be closed."""
        return self.open and self._ends and not self._waiting and not self._tty

    @property
    def has_more(self) -> bool:
        return self.open and bool(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) > _FULL

    def close(self) -> None:
        os.close(self.descriptor)
        self.open = False
