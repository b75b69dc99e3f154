"""One pool of HTTP connections to one API server: sends a call, turns every failure into an error of the tree.

Invariant: a log line of a call contains its verb, path, status and duration; never a query value, header or body.
"""

import asyncio
import logging
import math
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import AddrInfoType
from attrs import define, field, frozen
from yarl import URL

from vkubelet import logformat
from vkubelet.api.codec import status_error
from vkubelet.client.connection import Connection
from vkubelet.client.network_errors import unreachable
from vkubelet.client.server_time import ServerTime
from vkubelet.client.turns import Turns
from vkubelet.clock import Clock
from vkubelet.errors import ApiError, Forbidden, ServerError, Unauthorized, Unreachable, VKubeletError
from vkubelet.metrics import Metrics

T = TypeVar("T")

log = logging.getLogger(__name__)

JSON: Final = "application/json"
LONGEST_ANSWER = 64 << 20
"""Bytes of a complete response, decompressed, unless its call sets another limit: an API server stores no object of a tenth of that."""
OPENED_AT_ONCE: Final = 16
"""Connections to one server that are being opened at the same time."""
_ERROR_BODY_LIMIT = 1 << 20
_LONGEST_QUOTE = 4096
_HIDDEN = b"(credentials)"

_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""Seconds until the first probe, between probes, their number, and milliseconds for unacknowledged data."""
_FAST, _LARGE, _GATHERED = 0.005, 64 * 1024, 0.001
"""A stream is fast while its chunks come within so many seconds. Smaller ones than `_LARGE` bytes are gathered for so many seconds."""


@define
class Call:
    """One request. `attempt` is its name in messages; `verb` and `resource` are its labels in metrics."""

    method: str
    path: str
    attempt: str
    verb: str = ""
    resource: str = ""
    params: Sequence[tuple[str, str]] = ()
    body: bytes | None = field(default=None, repr=False)
    content_type: str = JSON
    accept: str = JSON
    compressed: bool = True
    longest: int | None = None
    """Maximum bytes of the response where it is fetched completely; None: LONGEST_ANSWER."""
    allow: Callable[[], None] | None = field(default=None, repr=False)
    """Called before each sending, when credentials are available, and again immediately before a body is sent; raises to refuse."""


@frozen
class Outgoing:
    """A call as HTTP: everything but timeouts. Also used to open WebSockets."""

    url: URL
    headers: Mapping[str, str] = field(repr=False)
    options: Mapping[str, object] = field(repr=False)


class Transport:
    """Async context manager of the pool. Streams that are open when it exits continue; the last one to close closes the pool."""

    def __init__(self, connection: Connection, *, clock: Clock, metrics: Metrics | None = None) -> None:
        self.connection = connection
        self.clock = clock
        self.metrics = metrics
        self._seconds = cache(metrics.api_seconds.labels) if metrics is not None else None
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._left: aiohttp.ClientSession | None = None
        self._streams = 0
        self._writes = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._turns: Turns | None = None
        self._server_time = ServerTime(self.clock)
        self._refusal_listeners: list[Callable[[Forbidden], None]] = []

    @contextmanager
    def refusing(self, listener: Callable[[Forbidden], None]) -> Iterator[None]:
        """Calls the listener inside with each 403; it must not wait."""
        self._refusal_listeners.append(listener)
        try:
            yield
        finally:
            self._refusal_listeners.remove(listener)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Counts a write while it is in flight, so that a stop can await it."""
        self._writes += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._writes -= 1
            if not self._writes:
                self._quiet.set()

    async def writes_done(self, timeout: float) -> bool:
        """Waits until no write is in flight, at most `timeout` seconds; returns whether that was reached."""
        try:
            async with asyncio.timeout(timeout):
                await self._quiet.wait()
        except TimeoutError:
            return False
        return True

    @asynccontextmanager
    async def streaming(self) -> AsyncIterator[None]:
        """Counts a stream that may outlast the pool. If closed under its reader, a response of aiohttp blocks forever."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1
            await self._close_unused()

    @property
    def session(self) -> aiohttp.ClientSession:
        """The open session. Raises RuntimeError before the `async with`, and Unreachable after it: the caller may outlive a connection that
        is replaced."""
        if self._closed:
            raise Unreachable(f"call {self.connection.url}", "the client is closed")
        if self._session is None:
            raise RuntimeError("the client is not open: use `async with`")
        return self._session

    async def __aenter__(self) -> Self:
        self._closed = False
        connector = _Connector(limit=0, keepalive_timeout=60, socket_factory=_socket)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"vkubelet/{_version()}"},
        )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._left, self._session, self._closed = self.session, None, True
        await self._close_unused()

    async def _close_unused(self) -> None:
        if self._left is not None and not self._streams:
            left, self._left = self._left, None
            await left.close()

    async def outgoing(self, path: str, params: Sequence[tuple[str, str]] = ()) -> Outgoing:
        """Returns address, credentials and TLS for a request to `path`. Raises Unauthorized when credentials are not available."""
        connection = self.connection
        security = await connection.security(self.clock)
        query = f"?{urlencode(params)}" if params else ""
        options: dict[str, object] = {"ssl": security.context or True, "allow_redirects": False}
        if connection.proxy:
            options["proxy"] = connection.proxy
        if connection.server_name:
            options["server_hostname"] = connection.server_name
        headers = {"Authorization": security.authorization} if security.authorization else {}
        return Outgoing(URL(f"{connection.url}{path}{query}", encoded=True), headers, options)

    async def fetch(self, call: Call, timeout: float) -> bytes:
        """Fetches a complete response, within `timeout` seconds. Raises ApiError."""
        async with self.open(call, aiohttp.ClientTimeout(total=timeout, sock_connect=self.connection.timeouts.connect)) as response:
            body = await _complete(response, call)
        await self._take_turn(call)
        return body

    async def _take_turn(self, call: Call) -> None:
        """Waits for a turn of the event loop; Leases and probes, whose delay makes nodes unready, are first."""
        if self._turns is None:
            self._turns = Turns.shared(self.clock.monotonic)
        await self._turns.take(urgent=call.resource == "leases" or call.path == "/readyz")

    @asynccontextmanager
    async def open(self, call: Call, timeout: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientResponse]:
        """Opens a response below 300 whose body is still to be read. Raises ApiError.

        After a 401 the credentials are fetched again and the call is repeated once, when that can help.
        """
        response = await self.refreshing(call, lambda outgoing: self._send(call, outgoing, timeout=timeout))
        try:
            yield response
        finally:
            response.release() if response.content.at_eof() else response.close()

    async def refreshing(self, call: Call, send: Callable[[Outgoing], Awaitable[T]]) -> T:
        """Returns what `send` returns; after a 401 it is called again with newly fetched credentials, when that can help."""
        outgoing = await self.outgoing(call.path, call.params)
        try:
            return await send(outgoing)
        except Unauthorized:
            if not self.connection.credentials.invalidate(outgoing.headers.get("Authorization", "")):
                raise
        return await send(await self.outgoing(call.path, call.params))

    async def _send(self, call: Call, outgoing: Outgoing, *, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        await self._take_turn(call)
        if call.allow is not None:
            call.allow()
        started = self.clock.monotonic()
        code = "error"
        try:
            response = await self._request(call, outgoing, timeout)
            code = str(response.status)
            self._server_time.observe(response.headers.get("Date", ""), took=self.clock.monotonic() - started)
            if response.status >= 300:
                raise await self.refused(call, response)
            return response
        finally:
            self.note(call, code, self.clock.monotonic() - started)

    async def refused(self, call: Call, response: aiohttp.ClientResponse, *, quote_plain: bool = False) -> ApiError:
        """Returns the error for a response, without the credentials of the request; its body is read and the connection released.

        `quote_plain` is for calls that the API server forwards to kubelets, which respond in plain text.
        """
        error = await _refusal(call, response, quote_plain=quote_plain)
        if isinstance(error, Forbidden):
            for listener in self._refusal_listeners:
                listener(error)
        return error

    async def _request(self, call: Call, outgoing: Outgoing, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        body = None if call.body is None else _Body(call.body, call.allow)
        headers = {**outgoing.headers, "Accept": call.accept, "Accept-Encoding": "gzip" if call.compressed else "identity"}
        if body is not None:
            headers["Content-Type"] = call.content_type
        try:
            with unreachable(call.attempt, direct=not self.connection.proxy):
                return await self.session.request(
                    call.method,
                    outgoing.url,
                    data=body,
                    headers=headers,
                    timeout=timeout,
                    **outgoing.options,  # type: ignore[arg-type]
                )
        except Unreachable as error:
            if body is not None and body.refusal is not None:
                raise body.refusal from error
            raise

    def server_now(self) -> datetime:
        """Returns the time of the server, to the second, by the Date of its responses; our own without one."""
        return self._server_time.now()

    def note(self, call: Call, code: str, seconds: float) -> None:
        """Counts and logs a call that got the status `code` after that many seconds."""
        if self._seconds is not None:
            self._seconds(call.verb or call.method, call.resource, code).observe(seconds)
        if log.isEnabledFor(logging.DEBUG):
            with logformat.bind(method=call.method, path=call.path, status=code, milliseconds=round(seconds * 1000, 1)):
                log.debug("API call")


async def _complete(response: aiohttp.ClientResponse, call: Call) -> bytes:
    """Reads a complete body. Raises ServerError for one that is too long, before it is in memory."""
    longest = LONGEST_ANSWER if call.longest is None else call.longest
    announced = response.content_length
    if announced is not None and announced <= longest and "Content-Encoding" not in response.headers:
        with unreachable(call.attempt):
            return await response.read()
    parts: list[bytes] = []
    size = 0
    async for part in chunks(response, call.attempt):
        parts.append(part)
        size += len(part)
        if size > longest:
            raise ServerError(call.attempt, f"the server's response has more than {longest} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _refusal(call: Call, response: aiohttp.ClientResponse, *, quote_plain: bool) -> ApiError:
    async with response:
        with unreachable(call.attempt):
            body = await response.content.read(_ERROR_BODY_LIMIT)
            rest = b"" if response.content.at_eof() else await response.content.read(_ERROR_BODY_LIMIT)
    # Users and logs are shown the message, and a proxy may repeat the request in it.
    credentials = response.request_info.headers.get("Authorization", "").rpartition(" ")[2].encode()
    body = (body + rest).replace(credentials, _HIDDEN) if credentials else body + rest
    quoted = quote_plain and response.content_type == "text/plain" and len(body) <= _LONGEST_QUOTE
    plain = body.decode(errors="replace").strip() if quoted else ""
    retry_after = response.headers.get("Retry-After", "")
    return status_error(call.attempt, body, code=response.status, retry_after=retry_after, plain=plain)


async def chunks(response: aiohttp.ClientResponse, attempt: str) -> AsyncGenerator[bytes, None]:
    """Yields the body as it arrives; each chunk is at least one byte. Raises Unreachable when it is interrupted."""
    content = response.content
    with unreachable(attempt):
        while chunk := await content.readany():
            yield chunk


async def gathered(response: aiohttp.ClientResponse, attempt: str, clock: Clock) -> AsyncGenerator[bytes, None]:
    """Yields the body as `chunks` does; of one that arrives fast, what arrives within a millisecond at once.

    API servers send logs in pieces of 4 KiB. Each one costs a system call, a TLS record and a turn of the event loop, here and in all
    programs behind. So the socket is not read for a moment after a piece, while the kernel buffers what follows.
    """
    before = -math.inf
    async for chunk in chunks(response, attempt):
        arrived = clock.monotonic()
        fast, before = arrived - before < _FAST, arrived
        below = response.connection.transport if fast and len(chunk) < _LARGE and response.connection is not None else None
        if below is None:
            yield chunk
            continue
        with _unread(below):
            yield chunk
            rest = arrived + _GATHERED - clock.monotonic()
            if rest > 0:
                await clock.sleep(rest)


@contextmanager
def _unread(transport: asyncio.Transport) -> Iterator[None]:
    keep_nothing_back(transport)
    transport.pause_reading()
    try:
        yield
    finally:
        if not transport.is_closing():
            transport.resume_reading()


def keep_nothing_back(transport: asyncio.Transport) -> None:
    """Makes the kernel buffer data while nothing is read, instead of the TLS layer.

    The TLS layer of uvloop takes the close of a connection for an error and drops its buffer; API servers close directly after their last
    message.
    """
    limit = getattr(transport, "set_read_buffer_limits", None)
    if limit is not None:
        limit(1, 0)


class _Body(aiohttp.BytesPayload):
    """A body that is only sent, and the head with it, if `allow` permits it at that moment.

    Opening a connection takes long when a server is slow, and the process may be suspended meanwhile: then it may not write any more.
    """

    def __init__(self, content: bytes, allow: Callable[[], None] | None) -> None:
        super().__init__(content)
        self._allow = allow
        self.refusal: VKubeletError | None = None
        """What `allow` raised."""

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        if self._allow is not None:
            try:
                self._allow()
            except VKubeletError as error:
                self.refusal = error
                raise
        await super().write_with_length(writer, content_length)


class _Connector(aiohttp.TCPConnector):
    """Opens a few connections at the same time; of those that are idle, the one used last is used next.

    A TLS handshake occupies the event loop for a millisecond, and a server that is reachable again gets a connection for each request that
    waited for it. Used in turn, as aiohttp does, 60 connections that a burst has opened would stay open at a request a second.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._opening = asyncio.Semaphore(OPENED_AT_ONCE)

    async def _get(self, key: Any, traces: Any) -> Any:
        if idle := self._conns.get(key):
            idle.rotate(1)
        return await super()._get(key, traces)

    async def _create_connection(self, *arguments: Any, **options: Any) -> ResponseHandler:
        async with self._opening:
            return await super()._create_connection(*arguments, **options)


def _socket(address: AddrInfoType) -> socket.socket:
    """Creates a socket that detects within a minute that its peer has vanished, which a stream without a read timeout never would."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _version() -> str:
    try:
        return version("vkubelet")
    except PackageNotFoundError:
        return "unknown"
