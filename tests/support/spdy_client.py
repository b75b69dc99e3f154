"""A SPDY client that does as it is told, so that a test can send any bytes and see every frame that comes back.

Invariant: nothing is sent or answered unless a test says so.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from attrs import define, field

from tests.support.program import PATIENCE
from vkubelet.server import spdy_frames as spdy

F = TypeVar("F")


def syn_stream(number: int, block: bytes, *, flags: int = 0) -> bytes:
    """Opens a stream; `block` comes from a HeaderCompressor."""
    return spdy.control_frame(spdy.SYN_STREAM, struct.pack(">IIH", number, 0, 0) + block, flags=flags)


def data_frame(number: int, data: bytes, *, fin: bool = False) -> bytes:
    return spdy.data_head(number, len(data), fin=fin) + data


def upgrade_request(path: str, *protocols: str, **headers: str) -> bytes:
    """The head of a request as kube-apiserver sends it: one line per protocol."""
    lines = [f"POST {path} HTTP/1.1", "Host: node:10250", "User-Agent: Go-http-client/1.1", "Content-Length: 0"]
    lines += [f"X-Stream-Protocol-Version: {protocol}" for protocol in protocols]
    lines += ["Connection: Upgrade", "Upgrade: SPDY/3.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@define
class SpdyClient:
    """One connection. `frames` is all that came so far, data in the parts it came in."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: int = 0
    head: str = ""
    frames: list[spdy.Frame] = field(factory=list)
    closed: bool = False
    compressor: spdy.HeaderCompressor = field(factory=spdy.HeaderCompressor)
    _parser: spdy.FrameParser = field(factory=spdy.FrameParser)
    _seen: int = 0

    async def upgrade(self, request: bytes, *, behind: bytes = b"") -> int:
        """Send a request, with bytes right behind it; the status of the answer, whose head is kept."""
        await self.send(request + behind)
        self.head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        self.status = int(self.head.split()[1])
        return self.status

    async def send(self, *parts: bytes) -> None:
        """Waits while the server does not read."""
        data = memoryview(b"".join(parts))
        for begin in range(0, len(data), 65536):
            self.writer.write(data[begin : begin + 65536])
            await self.writer.drain()

    def open_frame(self, number: int, headers: Mapping[str, str], *, flags: int = 0) -> bytes:
        """SYN_STREAM with the next state of the compression; to be sent before the next one is made."""
        return syn_stream(number, self.compressor.compress(headers), flags=flags)

    async def next(self, kind: type[F], where: Callable[[F], bool] = lambda frame: True, *, within: float = PATIENCE) -> F:
        """The next frame of this kind that was not given yet; those before it are passed over. Raises EOFError."""
        async with asyncio.timeout(within):
            while True:
                while self._seen < len(self.frames):
                    frame = self.frames[self._seen]
                    self._seen += 1
                    if isinstance(frame, kind) and where(frame):
                        return frame
                await self._more()

    async def read_stream(self, number: int, *, within: float = PATIENCE) -> bytes:
        """The data of one stream up to its end."""
        parts: list[bytes] = []
        while True:
            part = await self.next(spdy.Data, lambda frame: frame.stream == number, within=within)
            parts.append(part.data)
            if part.fin:
                return b"".join(parts)

    async def until_closed(self, *, within: float = PATIENCE) -> list[spdy.Frame]:
        """All frames, once the server has closed the connection."""
        async with asyncio.timeout(within):
            while not self.closed:
                try:
                    await self._more()
                except EOFError:
                    break
        return self.frames

    async def read_and_forget(self) -> None:
        """Read on for ever, keeping nothing."""
        while await self.reader.read(256 * 1024):
            pass

    async def _more(self) -> None:
        try:
            data = await self.reader.read(256 * 1024)
        except ConnectionError:
            data = b""
        if not data:
            self.closed = True
            raise EOFError("the server closed the connection")
        self.frames.extend(self._parser.feed(data))

    def abort(self) -> None:
        """Leave without a word."""
        self.writer.transport.abort()


@asynccontextmanager
async def connected(address: str, port: int, context: ssl.SSLContext | None) -> AsyncIterator[SpdyClient]:
    """A connection that is closed at the end, whatever state it is in."""
    reader, writer = await asyncio.open_connection(address, port, ssl=context, limit=1024 * 1024)
    try:
        yield SpdyClient(reader, writer)
    finally:
        writer.transport.abort()
