"""Numbered byte channels over one WebSocket of an API server; see `remote` for their uses.

Invariant: no more than a few messages are buffered in either direction, so a slow reader slows down its peer; and however a connection is
closed, none of its resources remain.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Final

import aiohttp

from vkubelet.client.network_errors import unreachable
from vkubelet.client.transport import Call, Outgoing, Transport, keep_nothing_back
from vkubelet.clock import Clock
from vkubelet.errors import ServerError, Unreachable

Socket = aiohttp.ClientWebSocketResponse

log = logging.getLogger(__name__)

# KEP-4006: v5 is v4 with a message that closes a channel. API servers support it since 1.29, by default since 1.30, and translate it to
# SPDY for the kubelet; v4 is passed through to the kubelet, which takes less time and a third less work for all components on the way.
V5: Final = "v5.channel.k8s.io"
V4: Final = "v4.channel.k8s.io"
_END_OF_CHANNEL: Final = 255

_LONGEST_MESSAGE: Final = 4 << 20
"""API servers send 32 KiB at a time."""
_PIECE: Final = 1 << 18
_READ_AHEAD: Final = 1 << 18
_PING_EVERY: Final = 20.0
"""Seconds; load balancers that drop idle connections do so after 30 or more."""
_CLOSE_SECONDS: Final = 30.0
"""Seconds; the server may have much data to forward before it reads our close frame."""


@asynccontextmanager
async def open_channels(transport: Transport, call: Call, protocols: Sequence[str]) -> AsyncIterator[Channels]:
    """Opens the channels of one connection, by the first of `protocols` that the server supports. Raises ApiError."""
    async with transport.streaming():
        with closing(_Answer(transport, call)) as answer:
            socket = await transport.refreshing(call, lambda outgoing: _upgrade(transport, outgoing, answer, protocols=protocols))
            if socket.protocol is None:
                raise ServerError(call.attempt, f"the API server supports none of the subprotocols {', '.join(protocols)}")
            channels = Channels(socket, call.attempt)
            yield channels
            await channels.close()


class Channels:
    """Bytes by channel number. `receive` returns what `read_ahead`, a task beside it, has read."""

    def __init__(self, socket: Socket, attempt: str) -> None:
        self.protocol = socket.protocol
        self.attempt = attempt
        self.received = 0
        """Number of bytes received so far."""
        self._socket = socket
        self._ahead: deque[tuple[int, bytes]] = deque()
        self._buffered = 0
        self._ended = False
        self._news, self._room = asyncio.Event(), asyncio.Event()

    async def receive(self) -> tuple[int, bytes] | None:
        """Receives at least one byte of one channel; None when the connection is closed. Many small messages that arrive fast are
        joined."""
        while not self._ahead:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        channel, data = self._ahead.popleft()
        if self._ahead and self._ahead[0][0] == channel:
            pieces = [data]
            while self._ahead and self._ahead[0][0] == channel:
                pieces.append(self._ahead.popleft()[1])
            data = b"".join(pieces)
        self._buffered -= len(data)
        self._room.set()
        return channel, data

    async def read_ahead(self) -> None:
        """Reads until the server has sent everything. Raises Unreachable for a message that belongs to no channel."""
        while (message := await self._next()) is not None:
            self._ahead.append(message)
            self._buffered += len(message[1])
            self.received += len(message[1])
            self._news.set()
            while self._buffered > _READ_AHEAD:
                self._room.clear()
                await self._room.wait()
        self._ended = True
        self._news.set()

    async def _next(self) -> tuple[int, bytes] | None:
        while True:
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                data: bytes = message.data
                if len(data) > 1:
                    return data[0], data[1:]
            elif message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED):
                return None
            else:
                raise Unreachable(self.attempt, "the server sent a message that belongs to no channel")

    async def send(self, channel: int, data: bytes) -> None:
        """Sends data, waiting while the server is slow. Raises Unreachable."""
        number = bytes((channel,))
        with unreachable(self.attempt):
            for start in range(0, len(data), _PIECE):
                await self._socket.send_bytes(number + data[start : start + _PIECE])

    async def end(self, channel: int) -> None:
        """Closes a channel for sending; with v4 the server is not notified."""
        if self.protocol == V5:
            await self.send(_END_OF_CHANNEL, bytes((channel,)))
        else:
            log.debug("the API server does not support closing one channel")

    async def keep_alive(self, clock: Clock) -> None:
        """Sends pings while the connection is idle, until cancelled; but not while the server waits for us.

        The server may have closed the connection by then, and its kernel answers later data by dropping what it still buffers for us.
        """
        while True:
            received_before = self.received
            await clock.sleep(_PING_EVERY)
            if self.received != received_before or self._buffered > _READ_AHEAD:
                continue
            try:
                with unreachable(self.attempt):
                    await self._socket.ping()
            except Unreachable:
                return  # receivers are notified

    async def close(self) -> None:
        """Closes the connection; a pending `receive` returns None."""
        await self._socket.close()


class _Answer:
    """Response of the server to an upgrade request; `ws_connect` would drop the body of a refusal, and follow redirects."""

    def __init__(self, transport: Transport, call: Call) -> None:
        self.code = "error"
        self.call = call
        self._transport = transport
        self._response: aiohttp.ClientResponse | None = None
        self._below: asyncio.Transport | None = None

    async def judge(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Checks the response. Raises ApiError unless the server accepts the upgrade."""
        response = self._response = await handler(request)
        self.code = str(response.status)
        if response.status != 101:
            raise await self._transport.refused(self.call, response, quote_plain=True)
        if response.connection is not None and response.connection.transport is not None:
            self._below = response.connection.transport
            keep_nothing_back(self._below)
        return response

    def close(self) -> None:
        """Aborts the connection, without sending what is still buffered."""
        if self._below is not None:
            self._below.abort()
        if self._response is not None:
            self._response.close()


async def _upgrade(transport: Transport, outgoing: Outgoing, answer: _Answer, *, protocols: Sequence[str]) -> Socket:
    options = {name: value for name, value in outgoing.options.items() if name != "allow_redirects"}
    timeouts, started = transport.connection.timeouts, transport.clock.monotonic()
    session = aiohttp.ClientSession(
        connector=transport.session.connector,
        connector_owner=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=transport.session.headers,
        middlewares=(answer.judge,),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect),
    )
    try:
        async with session:
            with unreachable(answer.call.attempt):
                async with asyncio.timeout(timeouts.read):
                    return await session.ws_connect(  # type: ignore[no-any-return, call-overload]
                        outgoing.url,
                        protocols=protocols,
                        # The API server responds with 406 to a client that accepts only JSON.
                        headers={**outgoing.headers, "Accept": "*/*"},
                        max_msg_size=_LONGEST_MESSAGE,
                        timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_SECONDS),
                        **options,
                    )
    finally:
        transport.note(answer.call, answer.code, transport.clock.monotonic() - started)
