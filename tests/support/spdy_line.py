"""A SPDY session over a transport in memory, and its other end.

Invariant: nothing is sent but what a test sends.
"""

from __future__ import annotations

from tests.support.memory_transport import MemoryTransport
from tests.support.spdy_client import syn_stream
from vkubelet.server import spdy_frames as spdy
from vkubelet.server.spdy import SpdySession, SpdyStream
from vkubelet.testing.clock import ManualClock


class Line:
    """A session and its other end."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.transport = MemoryTransport()
        self.session = SpdySession(self.transport, self.clock)
        self.transport.protocol = self.session
        self._compressor = spdy.HeaderCompressor()
        self._parser = spdy.FrameParser()
        self._read = 0

    def send(self, *frames: bytes) -> None:
        self.session.data_received(b"".join(frames))

    def open_frame(self, number: int, *, flags: int = 0, **headers: str) -> bytes:
        return syn_stream(number, self._compressor.compress(headers), flags=flags)

    async def stream(self, number: int = 1) -> SpdyStream:
        """Opened and accepted; what was answered is passed over."""
        self.send(self.open_frame(number))
        stream = await self.session.accept()
        self.answers()
        return stream

    def answers(self) -> list[spdy.Frame]:
        """Frames sent since the last call."""
        data = bytes(self.transport.sent[self._read :])
        self._read += len(data)
        return list(self._parser.feed(data))
