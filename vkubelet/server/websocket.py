"""Numbered channels over WebSocket: the first byte of each message says which one it belongs to.

A slow reader of one channel holds up the others, as there is only TCP to push back with.

Invariant: of what the client sends at most CHANNEL_BUFFER bytes a channel and one message are held, and of what it does not read no more
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
    """How a subprotocol writes its messages; `closing`: a channel is closed by a message of its own."""

    base64: bool = False
    closing: bool = False


class _Over(Exception):
    """Ends the session from inside."""


class WebSocketChannel:
    """One channel. Reading and writing end apart from each other."""

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
        """What has come; empty once the client has finished. Raises StreamReset when the channel was given up."""
        while not self._pieces:
            if not self._unread:
                raise StreamReset("the channel was given up")
            if self._ended:
                return b""
            self._news.clear()
            await self._news.wait()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._forget()
        return data

    async def write(self, data: bytes) -> None:
        """Send; waits while the client is slow. Raises StreamReset when the channel is closed or the connection lost."""
        view = memoryview(data)
        for begin in range(0, len(view), PIECE):
            if self._closed:
                raise StreamReset("the channel is closed already")
            await self._session.send(self.number, bytes(view[begin : begin + PIECE]))

    async def close(self) -> None:
        """Send no more. The client is not told: of channels that end there are no words."""
        self._closed = True

    def discard(self) -> None:
        """Read no more; what comes is dropped."""
        self._unread = False
        self._news.set()
        self._forget()

    def reset(self) -> None:
        self._closed = True
        self.discard()

    # --- What the session tells --------------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return self._held >= CHANNEL_BUFFER

    async def room(self) -> None:
        """Return when it is not full."""
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

    def _forget(self) -> None:
        self._pieces.clear()
        self._held = 0
        self._room.set()


class WebSocketSession:
    """One connection; `channel` gives what the client may read and write."""

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
        """To be asked for before anything is awaited; messages for channels that are not readable are dropped."""
        channel = WebSocketChannel(self, number)
        if readable:
            self._readable[number] = channel
        return channel

    async def send(self, number: int, data: bytes) -> None:
        """One message, in turn with those of other channels; it may be empty. Raises StreamReset."""
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
        """The server stops; what is under way gets its time, and there is nothing new to refuse."""

    # --- Tasks of the session ----------------------------------------------------------------------------------------------------------

    async def receive(self, transport: asyncio.Transport) -> None:
        """Hand out what comes, until the client leaves."""
        while True:
            try:
                message = await self.response.receive()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                # The HTTP server puts a stop into the queue of messages in this way.
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
                # While nothing is read, only the kernel knows that the client has left; what it sent last may stand in the way of that
                # news, and then the kernel hears of it when something is sent to nobody.
                if peer_left(transport):
                    transport.abort()
                    raise _Over from None
                self._probe = True
                self._control.set()
        channel.arrived(data)

    async def ping_and_pong(self) -> None:
        """Apart from reading, so that a client that pings and reads nothing does not stop it."""
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
                        # Nobody answers it, so that no client is kept waiting for us to read.
                        await self.response.pong()
                except ConnectionError:
                    raise _Over from None

    async def watch_idle(self, idle: float) -> None:
        while (left := self._active_at + idle - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)
        raise _Over


@frozen(kw_only=True)
class Terms:
    """What a session is opened with; `idle` in seconds."""

    protocol: str
    form: Form
    idle: float
    clock: Clock
    connections: Connections


@asynccontextmanager
async def websocket_session(request: web.Request, terms: Terms) -> AsyncIterator[WebSocketSession]:
    """Answer 101 and serve the connection until the end of the block; all checks of the request come before.

    A client that leaves or is silent for too long cancels the block, which then ends without an error.
    """
    response: web.WebSocketResponse[bool] = web.WebSocketResponse(
        protocols=(terms.protocol,) if terms.protocol else (),
        compress=False,
        autoping=False,
        decode_text=False,
        max_msg_size=LONGEST_MESSAGE,
        timeout=_CLOSE_WITHIN,
    )
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has left")
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
    """Never waits long for a client that does not answer."""
    try:
        async with asyncio.timeout(_CLOSE_WITHIN):
            await response.close(code=1000 if whole else 1011)
    except TimeoutError:
        log.debug("WebSocket not closed in time")


# --- Pure -------------------------------------------------------------------------------------------------------------------------------


def decode(message: bytes, form: Form) -> tuple[int, bytes]:
    """The channel of a message and what it carries; -1, which is nobody's, for one that can not be read."""
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
"""What the known subprotocols are; a client that names none gets the oldest."""
