"""One pool of HTTP connections to one API server: sends a call, turns every failure into an error of the tree.

Invariant: what is logged of a call is its verb, path, status and duration; never a query value, header or body.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlencode

import aiohttp
from aiohttp.connector import AddrInfoType
from attrs import field, frozen
from yarl import URL

from vkubelet import logformat
from vkubelet.api.codec import status_error
from vkubelet.client.connection import Connection
from vkubelet.clock import Clock
from vkubelet.errors import ApiError, Unauthorized, Unreachable
from vkubelet.metrics import Metrics

T = TypeVar("T")

log = logging.getLogger(__name__)

_ERROR_BODY_LIMIT = 1 << 20
_LONGEST_QUOTE = 4096

_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""Seconds until the first probe, between probes, their number, and milliseconds for data without an answer."""
_OUR_OWN = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT}
)
"""Why this process could not even try to connect."""


@frozen
class Call:
    """One request. `attempt` is what messages call it; `verb` and `resource` are what metrics call it."""

    method: str
    path: str
    attempt: str
    verb: str = ""
    resource: str = ""
    params: Sequence[tuple[str, str]] = ()
    body: bytes | None = field(default=None, repr=False)
    content_type: str = "application/json"
    compressed: bool = True
    allow: Callable[[], None] | None = field(default=None, repr=False)
    """Asked in the last moment before each sending, when credentials are there; raises to refuse."""


@frozen
class Outgoing:
    """A call as HTTP: everything but time limits. Also used by those who open WebSockets."""

    url: URL
    headers: Mapping[str, str] = field(repr=False)
    options: Mapping[str, object] = field(repr=False)


class Transport:
    """An async context manager around the pool. Streams that are open when it is left go on; the last one that ends closes the pool."""

    def __init__(self, connection: Connection, *, clock: Clock, metrics: Metrics | None = None) -> None:
        self.connection = connection
        self.clock = clock
        self.metrics = metrics
        self._seconds = cache(metrics.api_seconds.labels) if metrics is not None else None
        self._session: aiohttp.ClientSession | None = None
        self._left: aiohttp.ClientSession | None = None
        self._streams = 0
        self._writes = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Around every write, so that a stop can await those in flight."""
        self._writes += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._writes -= 1
            if not self._writes:
                self._quiet.set()

    async def writes_done(self, timeout: float) -> bool:
        """Wait until no write is in flight, at most `timeout` seconds; whether that was reached."""
        try:
            async with asyncio.timeout(timeout):
                await self._quiet.wait()
        except TimeoutError:
            return False
        return True

    @asynccontextmanager
    async def streaming(self) -> AsyncIterator[None]:
        """Around what may outlast the pool. Closed under its reader, a response of aiohttp is silent for ever instead of ending."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1
            await self._close_unused()

    @property
    def session(self) -> aiohttp.ClientSession:
        """Raises RuntimeError outside of the `async with`."""
        if self._session is None:
            raise RuntimeError("the client is not open: use `async with`")
        return self._session

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60, socket_factory=_socket)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"vkubelet/{_version()}", "Accept": "application/json"},
        )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._left, self._session = self.session, None
        await self._close_unused()

    async def _close_unused(self) -> None:
        if self._left is not None and not self._streams:
            left, self._left = self._left, None
            await left.close()

    async def outgoing(self, path: str, params: Sequence[tuple[str, str]] = ()) -> Outgoing:
        """Address, credentials and TLS for a request to `path`. Raises Unauthorized when the credentials can not be had."""
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
        """The whole answer, within `timeout` seconds. Raises ApiError."""
        async with self.open(call, aiohttp.ClientTimeout(total=timeout, sock_connect=self.connection.timeouts.connect)) as response:
            with unreachable(call.attempt):
                return await response.read()

    @asynccontextmanager
    async def open(self, call: Call, timeout: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer below 300 whose body is still to be read. Raises ApiError.

        After a 401 the credentials are fetched afresh and the call is sent once more, when that can help.
        """
        response = await self.refreshing(call, lambda outgoing: self._send(call, outgoing, timeout=timeout))
        try:
            yield response
        finally:
            response.release() if response.content.at_eof() else response.close()

    async def refreshing(self, call: Call, send: Callable[[Outgoing], Awaitable[T]]) -> T:
        """What `send` returns; after a 401 it is asked once more with credentials fetched afresh, when that can help."""
        outgoing = await self.outgoing(call.path, call.params)
        try:
            return await send(outgoing)
        except Unauthorized:
            if not self.connection.credentials.forget(outgoing.headers.get("Authorization", "")):
                raise
        return await send(await self.outgoing(call.path, call.params))

    async def _send(self, call: Call, outgoing: Outgoing, *, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        if call.allow is not None:
            call.allow()
        started = self.clock.monotonic()
        code = "error"
        try:
            headers = {**outgoing.headers, "Accept-Encoding": "gzip" if call.compressed else "identity"}
            if call.body is not None:
                headers["Content-Type"] = call.content_type
            with unreachable(call.attempt, direct=not self.connection.proxy):
                response = await self.session.request(
                    call.method,
                    outgoing.url,
                    data=call.body,
                    headers=headers,
                    timeout=timeout,
                    **outgoing.options,  # type: ignore[arg-type]
                )
            code = str(response.status)
            if response.status >= 300:
                raise await refusal(call, response)
            return response
        finally:
            self.note(call, code, self.clock.monotonic() - started)

    def note(self, call: Call, code: str, seconds: float) -> None:
        """Count a call that was answered with `code` after so many seconds, and log it."""
        if self._seconds is not None:
            self._seconds(call.verb or call.method, call.resource, code).observe(seconds)
        if log.isEnabledFor(logging.DEBUG):
            with logformat.bind(method=call.method, path=call.path, status=code, milliseconds=round(seconds * 1000, 1)):
                log.debug("API call")


async def refusal(call: Call, response: aiohttp.ClientResponse, *, quote_plain: bool = False) -> ApiError:
    """The error that an answer tells of; its body is read and the connection given back.

    `quote_plain` is for calls that the API server passes on to kubelets, which answer in plain text.
    """
    async with response:
        with unreachable(call.attempt):
            body = await response.content.read(_ERROR_BODY_LIMIT)
            rest = b"" if response.content.at_eof() else await response.content.read(_ERROR_BODY_LIMIT)
    quoted = quote_plain and response.content_type == "text/plain" and len(body) <= _LONGEST_QUOTE
    plain = body.decode(errors="replace").strip() if quoted else ""
    retry_after = _retry_after(response.headers.get("Retry-After"))
    return status_error(call.attempt, body + rest, code=response.status, retry_after=retry_after, plain=plain)


def _retry_after(header: str | None) -> float | None:
    """Seconds; API servers do not send the form with a date."""
    return float(header) if header is not None and header.isdigit() else None


@contextmanager
def unreachable(attempt: str, *, direct: bool = False) -> Iterator[None]:
    """Whatever the network does inside becomes Unreachable; `direct` where connections are made, and to the server itself."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise Unreachable(attempt, "no connection in time", silent=direct) from error
    except TimeoutError as error:
        raise Unreachable(attempt, "no answer in time") from error
    except aiohttp.ClientResponseError as error:
        # Not its text: it contains the proxy's URL, which may contain a password.
        raise Unreachable(attempt, f"{type(error).__name__} {error.status}") from error
    except aiohttp.InvalidURL as error:
        # Its text is the URL, likewise.
        raise Unreachable(attempt, "the URL of the server or of its proxy is invalid") from error
    except aiohttp.ClientConnectorError as error:
        # The TLS context is named by its address in memory: no two messages would be equal, and each would look like news.
        raise Unreachable(attempt, str(error).replace(f" ssl:{error.ssl}", ""), silent=direct and _is_silence(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        raise Unreachable(attempt, str(error) or type(error).__name__) from error
    except ValueError as error:
        # A host name or a header that can not be put on the wire; the text may contain it.
        raise Unreachable(attempt, f"the request can not be sent ({type(error).__name__})") from error


def _is_silence(error: aiohttp.ClientConnectorError) -> bool:
    """The server was asked and did not even shake hands: neither its name nor its certificate nor this process kept us from it."""
    if isinstance(error, (aiohttp.ClientConnectorDNSError, aiohttp.ClientSSLError)):
        return False
    return error.os_error.errno not in _OUR_OWN


async def chunks(response: aiohttp.ClientResponse, attempt: str) -> AsyncGenerator[bytes, None]:
    """The body as it arrives; each chunk is at least one byte. Raises Unreachable when it is cut."""
    content = response.content
    while True:
        with unreachable(attempt):
            chunk = await content.readany()
        if not chunk:
            return
        yield chunk


def _socket(address: AddrInfoType) -> socket.socket:
    """A socket that notices within a minute that the other end has vanished, which a stream without a read timeout never would."""
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
