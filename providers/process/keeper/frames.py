"""Protocol between vkubelet and a keeper over the keeper's socket: frames of one letter, a length, and bytes.

Invariant: a frame is passed on only when complete, however the bytes arrive.
"""

import os
import socket
import struct
from collections.abc import Iterator

ASK = b"q"
"""JSON, the first frame of every connection: `{"do": "attach" | "exec" | "stop", …}`."""
ANSWER = b"r"
"""JSON response."""
STDIN, STDIN_END, SIZE = b"i", b"z", b"w"
STDOUT, STDERR = b"o", b"e"

SOCKET = "keeper.sock"
STATE = "state.json"
LOCK = "lock"
"""File locked by the keeper as long as it runs."""

_HEAD = struct.Struct(">cI")
_SIZE = struct.Struct(">HHHH")
LONGEST = 1 << 24


def frame(kind: bytes, data: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(data)) + data


def window(*, width: int, height: int) -> bytes:
    """Returns the payload of SIZE."""
    return _SIZE.pack(height, width, 0, 0)


def for_terminal(data: bytes) -> bytes:
    """Returns the `struct winsize` of a payload of SIZE. Raises ValueError."""
    if len(data) != _SIZE.size:
        raise ValueError("not a size")
    return struct.pack("HHHH", *_SIZE.unpack(data))


def receive(connection: socket.socket, *, most: int) -> tuple[bytes, list[int]]:
    """Receives bytes and descriptors, which started programs do not get. Raises OSError."""
    data, descriptors, _, _ = socket.recv_fds(connection, 65536, most)
    for descriptor in descriptors:
        # Not every Python passes on the flag by which the kernel would do this.
        os.set_inheritable(descriptor, False)
    return data, list(descriptors)


class Frames:
    """Parser of received data to frames. Raises ValueError for invalid data."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._rest += data
        while len(self._rest) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._rest)
            if length > LONGEST:
                raise ValueError(f"a frame of {length} bytes")
            if len(self._rest) < _HEAD.size + length:
                return
            body = bytes(self._rest[_HEAD.size : _HEAD.size + length])
            del self._rest[: _HEAD.size + length]
            yield kind, body
