"""Numbered channels over WebSocket: the first byte of each message is the number of its channel.

A slow reader of one channel blocks the others, as back-pressure is only possible by TCP.

Invariant: of the client's data at most CHANNEL_BUFFER bytes a channel and one message are buffered, and of what it does not read no more
than the transport's buffer.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import WSMsgType, web
from attrs import frozen

from vkubelet.clock import Clock
from vkubelet.server.spdy import StreamReset
from vkubelet.server.takeover import Connections
from vkubelet.server.wire import peer_left

log = logging.getLogger(__name__)

CHANNEL_BUFFER: Final = 64 * 1024
LONGEST_MESSAGE: Final = 16 * 1024 * 1024
"""As long as the longest frame of SPDY."""
PIECE: Final = 24 * 1024
"""Data of one message of ours; in base64 it makes 32 KiB."""

_CLOSE_SIGNAL = 255
_CLOSE_WITHIN = 2.0
_LOOK_EVERY = 0.5


@frozen(kw_only=True)
class Form:
    """Message format of a subprotocol; `closing`: a channel is closed by an explicit message."""

    base64: bool = False
    closing: bool = False


class _Over(Exception):
    """Raised inside to close the session."""


class WebSocketChannel:
    """One channel. Reading and writing are closed independently."""

    def __init__(self, session: WebSocketSession, number: int) -> None:
        self.number = number
        self._session = session
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._ended = False
        self._closed = False
        self._unread = True
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def read(self) -> bytes:
        """Reads data; empty once the client has finished. Raises StreamReset when reading was discarded."""
        while not self._pieces:
            if not self._unread:
                raise StreamReset("the channel was aborted")
            if self._ended:
                return b""
            self._news.clear()
            await self._news.wait()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._drop_unread()
        return data

    async def write(self, data: bytes) -> None:
        """Sends data; waits while the client is slow. Raises StreamReset when the channel or the connection is closed."""
        view = memoryview(data)
        for begin in range(0, len(view), PIECE):
            if self._closed:
                raise StreamReset("the channel is closed already")
            await self._session.send(self.number, bytes(view[begin : begin + PIECE]))

    async def close(self) -> None:
        """Closes the channel for sending. The client is not notified: the subprotocol has no message for that."""
        self._closed = True

    def discard(self) -> None:
        """Stops reading; data that arrives is dropped."""
        self._unread = False
        self._news.set()
        self._drop_unread()

    def reset(self) -> None:
        self._closed = True
        self.discard()

    # --- Notifications of the session --------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return self._held >= CHANNEL_BUFFER

    async def room(self) -> None:
        """Waits until it is not full."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    def arrived(self, data: bytes) -> None:
        if data and self._unread and not self._ended:
            self._pieces.append(data)
            self._held += len(data)
            self._news.set()

    def finished(self) -> None:
        self._ended = True
        self._news.set()

    def _drop_unread(self) -> None:
        self._pieces.clear()
        self._held = 0
        self._room.set()


class WebSocketSession:
    """One connection; `channel` returns what the client may read and write."""

    def __init__(self, response: web.WebSocketResponse[bool], form: Form, clock: Clock) -> None:
        self.response = response
        self._form = form
        self._clock = clock
        self._readable: dict[int, WebSocketChannel] = {}
        self._turn = asyncio.Lock()
        self._active_at = clock.monotonic()
        self._ping: bytes | None = None
        self._probe = False
        self._control = asyncio.Event()

    def channel(self, number: int, *, readable: bool = False) -> WebSocketChannel:
        """Returns a channel; must be called before anything is awaited. Messages for channels that are not readable are dropped."""
        channel = WebSocketChannel(self, number)
        if readable:
            self._readable[number] = channel
        return channel

    async def send(self, number: int, data: bytes) -> None:
        """Sends one message, in turn with those of other channels; it may be empty. Raises StreamReset."""
        async with self._turn:
            self._active_at = self._clock.monotonic()
            try:
                if self._form.base64:
                    await self.response.send_str(encode_base64(number, data))
                else:
                    await self.response.send_bytes(bytes((number,)) + data)
            except ConnectionError as error:
                raise StreamReset("the connection is lost") from error

    def stopping(self) -> None:
        """Does nothing: operations in progress get their time, and a WebSocket session has nothing new to refuse."""

    # --- Tasks of the session ----------------------------------------------------------------------------------------------------------

    async def receive(self, transport: asyncio.Transport) -> None:
        """Distributes received messages to the channels, until the client disconnects."""
        while True:
            try:
                message = await self.response.receive()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                # This is how the HTTP server puts a stop into the queue of messages.
                raise _Over from None
            self._active_at = self._clock.monotonic()
            if message.type in (WSMsgType.BINARY, WSMsgType.TEXT):
                await self._hand_out(message.data, transport)
            elif message.type is WSMsgType.PING:
                self._ping = bytes(message.data)
                self._control.set()
            elif message.type is not WSMsgType.PONG:
                raise _Over

    async def _hand_out(self, message: bytes, transport: asyncio.Transport) -> None:
        number, data = decode(message, self._form)
        if self._form.closing and number == _CLOSE_SIGNAL:
            closed = self._readable.get(data[0]) if data else None
            if closed is not None:
                closed.finished()
            return
        channel = self._readable.get(number)
        if channel is None:
            return
        while channel.full:
            try:
                async with asyncio.timeout(_LOOK_EVERY):
                    await channel.room()
            except TimeoutError:
                # While nothing is read, only the kernel knows that the client has disconnected; unread data may delay that, and then the
                # kernel detects it when something is sent to the closed connection.
                if peer_left(transport):
                    transport.abort()
                    raise _Over from None
                self._probe = True
                self._control.set()
        channel.arrived(data)

    async def ping_and_pong(self) -> None:
        """Sends pings and pongs, independent of reading, so that a client that pings and reads nothing does not block it."""
        while True:
            await self._control.wait()
            self._control.clear()
            async with self._turn:
                try:
                    if self._ping is not None:
                        data, self._ping = self._ping, None
                        await self.response.pong(data)
                    if self._probe:
                        self._probe = False
                        # No client replies to it, so none waits for us to read.
                        await self.response.pong()
                except ConnectionError:
                    raise _Over from None

    async def watch_idle(self, idle: float) -> None:
        while (left := self._active_at + idle - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)
        raise _Over


@frozen(kw_only=True)
class Terms:
    """Parameters of a session; `idle` in seconds."""

    protocol: str
    form: Form
    idle: float
    clock: Clock
    connections: Connections


@asynccontextmanager
async def websocket_session(request: web.Request, terms: Terms) -> AsyncIterator[WebSocketSession]:
    """Responds with 101 and serves the connection for the duration of the context; all checks of the request come before.

    A client that disconnects or is silent for too long cancels the block, which then exits without an error.
    """
    response: web.WebSocketResponse[bool] = web.WebSocketResponse(
        # Also the empty one: aiohttp would log a line about a client whose header names none.
        protocols=(terms.protocol,),
        compress=False,
        autoping=False,
        decode_text=False,
        max_msg_size=LONGEST_MESSAGE,
        timeout=_CLOSE_WITHIN,
    )
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has disconnected")
    session = WebSocketSession(response, terms.form, terms.clock)
    whole = False
    with terms.connections.holding(session):
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(session.receive(transport)),
                    group.create_task(session.ping_and_pong()),
                    group.create_task(session.watch_idle(terms.idle)),
                ]
                yield session
                whole = True
                for task in tasks:
                    task.cancel()
        except* (_Over, StreamReset):
            log.debug("WebSocket session left")
        finally:
            await _close(response, whole=whole)


async def _close(response: web.WebSocketResponse[bool], *, whole: bool) -> None:
    """Closes the connection, without waiting long for a client that does not respond."""
    try:
        async with asyncio.timeout(_CLOSE_WITHIN):
            await response.close(code=1000 if whole else 1011)
    except TimeoutError:
        log.debug("WebSocket not closed in time")


# --- Pure -------------------------------------------------------------------------------------------------------------------------------


def decode(message: bytes, form: Form) -> tuple[int, bytes]:
    """Decodes the channel and the payload of a message; -1, which is no channel, for an invalid one."""
    if not message:
        return -1, b""
    if not form.base64:
        return message[0], message[1:]
    try:
        return message[0] - ord("0"), base64.b64decode(message[1:], validate=True)
    except binascii.Error:
        return -1, b""


def encode_base64(number: int, data: bytes) -> str:
    return chr(ord("0") + number) + base64.b64encode(data).decode()


BINARY, BASE64, CLOSING = Form(), Form(base64=True), Form(closing=True)
FORMS: Mapping[str, Form] = {
    "": BINARY,
    "channel.k8s.io": BINARY,
    "base64.channel.k8s.io": BASE64,
    "v4.channel.k8s.io": BINARY,
    "v4.base64.channel.k8s.io": BASE64,
    "v5.channel.k8s.io": CLOSING,
}
"""Known subprotocols; a client that names none gets the oldest."""
