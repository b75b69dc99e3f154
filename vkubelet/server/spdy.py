"""A SPDY/3.1 session over a connection hijacked from an HTTP handler: the streams of exec, attach and port-forward.

SPDY as Kubernetes uses it has no flow control, so an unread stream blocks the others: back-pressure is only possible by TCP.

Invariant: a stream buffers at most STREAM_BUFFER bytes and the session SESSION_BUFFER, headers and the streams themselves included, except
for the one read of the socket that exceeded it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from vkubelet.clock import Clock
from vkubelet.logformat import bind
from vkubelet.server import spdy_frames as spdy
from vkubelet.server.takeover import AlreadySent, connection_of
from vkubelet.server.wire import Wire

log = logging.getLogger(__name__)

STREAM_BUFFER: Final = 256 * 1024
SESSION_BUFFER: Final = 4 * 1024 * 1024
MAX_STREAMS: Final = 2000
"""Maximum number of unfinished streams of one session; further ones are refused."""
FRAME: Final = 32 * 1024 - 8
"""Data of one frame; with its head it fills two TLS records."""

_HEADERS = ("streamtype", "port", "requestid")
"""Headers of a stream that Kubernetes reads; no others are kept."""
_LONGEST_HEADER = 256
_STREAM = 768
"""Bytes a stream costs beside its headers and data."""
_HEADS_BUFFER = SESSION_BUFFER // 2
"""Bytes that open streams may cost together without their data; further streams are refused, so that reading never stops completely."""
_PIECE = 64
"""Bytes a queued piece costs beside its data, so that many small ones are limited too."""


class SessionClosed(Exception):
    """No more streams will be opened: the peer closed the session, disconnected, violated the protocol, or was silent too long."""


class StreamReset(Exception):
    """One side reset the stream, or the connection is closed."""


class SpdyStream:
    """One stream. It counts against the limits of the session until it is reset, or closed by both sides and read completely."""

    def __init__(self, session: SpdySession, number: int, headers: Mapping[str, str]) -> None:
        self.id = number
        self.headers = headers
        self.cost = _STREAM + sum(len(value) for value in headers.values())
        self.held = 0
        self.remote_done = False
        self.local_done = False
        self.broken = ""
        self._session = session
        self._pieces: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._unread = True

    async def read(self) -> bytes:
        """Reads data; empty once the peer has finished.

        Raises StreamReset after a reset or the loss of the connection, though not before all earlier data was read.
        """
        while not self._pieces:
            if self.remote_done:
                return b""
            if self.broken:
                raise StreamReset(self.broken)
            self._news.clear()
            await self._news.wait()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._drop_unread()
        return data

    async def write(self, data: bytes) -> None:
        """Sends data; waits while the client is slow. Raises StreamReset."""
        view = memoryview(data)
        for begin in range(0, len(view), FRAME):
            await self._session.send(self, view[begin : begin + FRAME])

    async def close(self) -> None:
        """Closes the stream for sending. Reading continues. Does nothing on a closed stream."""
        try:
            await self._session.send(self, memoryview(b""), fin=True)
        except StreamReset:
            # Then it is closed.
            self.discard_if_broken()

    def reset(self, status: int = spdy.CANCEL) -> None:
        """Closes both directions at once; unread data is dropped. Does nothing on a closed stream."""
        self._session.reset(self, status)

    def discard(self) -> None:
        """Stops reading: data that arrives is dropped, so that it cannot block other streams."""
        self._unread = False
        self._drop_unread()

    # --- Notifications of the session --------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return (self.local_done and self.remote_done and not self._pieces) or (bool(self.broken) and not self._unread)

    @property
    def writable(self) -> bool:
        return not self.local_done and not self.broken

    def arrived(self, data: bytes, *, fin: bool) -> None:
        if self.remote_done or self.broken:
            return
        self.remote_done = fin
        if data and self._unread:
            self._pieces.append(data)
            self.held += len(data) + _PIECE
        self._news.set()

    def break_off(self, why: str) -> None:
        self.broken = self.broken or why
        self._news.set()

    def discard_if_broken(self) -> None:
        if self.broken:
            self.discard()

    def _drop_unread(self) -> None:
        self._pieces.clear()
        released, self.held = self.held, 0
        self._session.released(self, released)


class SpdySession:
    """Server side of one connection, called by the transport; see SpdyStream for its use."""

    def __init__(self, transport: asyncio.Transport, clock: Clock) -> None:
        self.response: web.StreamResponse = AlreadySent(status=101)
        # A response to a ping that the client has not sent, which it ignores.
        self._wire = Wire(transport, clock, probe=spdy.ping(2**32 - 1))
        self._clock = clock
        # Both use some hundred kilobytes, and are released when the session is closed, not with the object.
        self._parser: spdy.FrameParser | None = spdy.FrameParser()
        self._compressor: spdy.HeaderCompressor | None = spdy.HeaderCompressor()
        self._streams: dict[int, SpdyStream] = {}
        self._new: deque[SpdyStream] = deque()
        self._news = asyncio.Event()
        self._last = 0
        self._closed = ""
        self._refusing = False
        self._held = 0
        self._heads = 0
        self._full: set[int] = set()

    async def accept(self) -> SpdyStream:
        """Returns the next stream that the client opened; the SYN_REPLY is sent. Raises SessionClosed."""
        while not self._new:
            if self._closed:
                raise SessionClosed(self._closed)
            self._news.clear()
            await self._news.wait()
        return self._new.popleft()

    @property
    def buffered(self) -> int:
        """Bytes received and not read yet."""
        return self._held + (self._parser.buffered if self._parser is not None else 0)

    @property
    def cost(self) -> int:
        """Bytes that are buffered, and the cost of the open streams."""
        return self.buffered + self._heads

    # --- Called by the transport -------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        self._wire.received()
        try:
            for frame in self._parser.feed(data):
                self._handle(frame)
        except spdy.SpdyError as error:
            self.break_off(str(error), spdy.PROTOCOL_ERROR)
        self._wire.write(b"")
        self._control_reading()

    def pause_writing(self) -> None:
        self._wire.pause_writing()

    def resume_writing(self) -> None:
        self._wire.resume_writing()
        self._control_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._wire.lost()
        self._end("the connection is lost")

    def stopping(self) -> None:
        """Refuses new streams. A GOAWAY would be too early: Go's clients read nothing after it, not even the exit status of their
        command."""
        self._refusing = True
        self._close("the server stops")

    # --- Frames ------------------------------------------------------------------------------------------------------------------------

    def _handle(self, frame: spdy.Frame) -> None:
        match frame:
            case spdy.Data():
                self._data(frame)
            case spdy.SynStream():
                self._open(frame)
            case spdy.Reset():
                self._reset_by_peer(frame.stream)
            case spdy.Ping() if frame.number % 2:
                self._wire.answer(spdy.ping(frame.number))
            case spdy.GoAway():
                self._close("the client takes its leave")
            case spdy.LaterHeaders() if frame.fin:
                self._data(spdy.Data(frame.stream, b"", fin=True))
            case _:
                # We send no pings and open no streams.
                pass

    def _data(self, frame: spdy.Data) -> None:
        stream = self._streams.get(frame.stream)
        if stream is not None:
            before = stream.held
            stream.arrived(frame.data, fin=frame.fin)
            self._held += stream.held - before
            if stream.held >= STREAM_BUFFER:
                self._full.add(stream.id)
            self._forget_if_done(stream)
        elif frame.stream > self._last:
            self._wire.answer(spdy.rst_stream(frame.stream, spdy.INVALID_STREAM))

    def _open(self, frame: spdy.SynStream) -> None:
        if self._compressor is None or (self._closed and not self._refusing):
            return
        if frame.stream % 2 == 0 or frame.stream <= self._last:
            self._reset_by_peer(frame.stream)
            self._wire.answer(spdy.rst_stream(frame.stream, spdy.PROTOCOL_ERROR))
            return
        self._last = frame.stream
        stream = SpdyStream(self, frame.stream, {name: frame.headers[name] for name in _HEADERS if name in frame.headers})
        full = len(self._streams) >= MAX_STREAMS or self._heads + stream.cost > _HEADS_BUFFER
        if self._refusing or full or any(len(value) > _LONGEST_HEADER for value in stream.headers.values()):
            self._wire.answer(spdy.rst_stream(frame.stream, spdy.REFUSED_STREAM))
            return
        stream.remote_done, stream.local_done = frame.fin, frame.unidirectional
        self._streams[frame.stream] = stream
        self._heads += stream.cost
        if not frame.unidirectional:
            self._wire.answer(spdy.syn_reply(frame.stream, self._compressor.compress({})))
        self._new.append(stream)
        self._news.set()

    def _reset_by_peer(self, number: int) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            self._break_stream(stream, "the client reset the stream")

    def _break_stream(self, stream: SpdyStream, why: str) -> None:
        stream.break_off(why)
        self._wire.wake()
        self._forget_if_done(stream)

    def _forget_if_done(self, stream: SpdyStream) -> None:
        if stream.done and self._streams.pop(stream.id, None) is not None:
            self._heads -= stream.cost

    # --- Called by streams -------------------------------------------------------------------------------------------------------------

    async def send(self, stream: SpdyStream, data: memoryview, *, fin: bool = False) -> None:
        """Sends one frame, in turn with those of other streams. Raises StreamReset."""
        async with self._wire.turn:
            await self._wire.room(lambda: stream.writable)
            if not stream.writable or self._wire.closed:
                raise StreamReset(stream.broken or ("the stream is closed already" if stream.local_done else "the connection is lost"))
            self._wire.write(b"".join((spdy.data_head(stream.id, len(data), fin=fin), data)))
            stream.local_done = fin
            self._forget_if_done(stream)
            await self._wire.breathe(len(data))

    def reset(self, stream: SpdyStream, status: int) -> None:
        if not stream.broken and not (stream.local_done and stream.remote_done):
            self._wire.write(spdy.rst_stream(stream.id, status))
            self._break_stream(stream, "the stream was given up")
        stream.discard()

    def released(self, stream: SpdyStream, held: int) -> None:
        """Releases buffered data of a stream that was read or dropped."""
        if stream.id in self._streams:
            self._held -= held
            self._full.discard(stream.id)
            self._forget_if_done(stream)
        self._control_reading()

    def _control_reading(self) -> None:
        self._wire.read(not self._full and self._held + self._heads < SESSION_BUFFER and self._wire.answers_are_read)

    # --- Close -------------------------------------------------------------------------------------------------------------------------

    def _close(self, why: str) -> None:
        self._closed = self._closed or why
        self._news.set()

    def _end(self, why: str) -> None:
        """Stops all input and output."""
        self._parser = self._compressor = None
        self._close(why)
        for stream in list(self._streams.values()):
            self._break_stream(stream, why)

    def _say_good_bye(self, status: int = 0) -> None:
        for stream in self._streams.values():
            if not stream.broken and not (stream.local_done and stream.remote_done):
                self._wire.write(spdy.rst_stream(stream.id, spdy.CANCEL))
        self._wire.write(spdy.goaway(self._last, status))

    def break_off(self, why: str, status: int = 0) -> None:
        """Aborts a session that cannot continue. The connection is closed, which cancels the handler as a client that disconnects does."""
        if self._parser is None:
            return
        with bind(reason=why):
            log.debug("SPDY session broken off")
        self._say_good_bye(status)
        self._end(why)
        self._wire.close()

    async def end(self) -> None:
        """Closes the session and the connection, unless that is done already."""
        if self._parser is None:
            return
        self._say_good_bye()
        self._end("the session has ended")
        await self._wire.leave()

    async def watch_idle(self, idle: float) -> None:
        """Aborts the session once nothing was sent or received for that long."""
        while self._parser is not None:
            left = idle - self._wire.idle
            if left <= 0:
                self.break_off("the session was idle for too long")
            else:
                await self._clock.sleep(left)


@asynccontextmanager
async def spdy_session(request: web.Request, protocol: str, *, idle: float, clock: Clock) -> AsyncIterator[SpdySession]:
    """Responds with 101 and the chosen `protocol` and hijacks the connection; all checks of the request come before.

    On exit the client is notified, and the connection closed. A client that disconnects cancels the current task. Raises web.HTTPBadRequest
    when the request does not ask for an upgrade to SPDY.
    """
    connection = connection_of(request)
    if connection is None or connection.transport is None:
        raise web.HTTPBadRequest(text="unable to upgrade: missing upgrade headers in request")
    session = SpdySession(connection.transport, clock)
    with connection.taken_over(session, greeting(protocol)):
        watch = asyncio.create_task(session.watch_idle(idle), name="SPDY idle")
        try:
            yield session
        finally:
            watch.cancel()
            connection.ending()
            await session.end()


def greeting(protocol: str) -> bytes:
    """Returns the response to an upgrade, which aiohttp does not support."""
    lines = ["HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: SPDY/3.1"]
    if protocol:
        lines.append(f"X-Stream-Protocol-Version: {protocol}")
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()
