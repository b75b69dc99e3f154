"""The five channels of exec and attach (stdin, stdout, stderr, resize, error) over SPDY or WebSocket, as a ContainerIO for the provider.

Invariant: all output is sent before the error channel reports the exit status, and an interrupted session never counts as a success.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, Self

from aiohttp import hdrs, web
from attrs import frozen
from multidict import CIMultiDict, MultiMapping

from vkubelet.api.codec import decode_json
from vkubelet.api.objects import Json
from vkubelet.clock import Clock
from vkubelet.errors import VKubeletError
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics
from vkubelet.provider import ContainerIO, TerminalSize
from vkubelet.server import statuses
from vkubelet.server.answer import until_delivered
from vkubelet.server.settings import ServerSettings
from vkubelet.server.spdy import SessionClosed, SpdySession, SpdyStream, StreamReset, spdy_session
from vkubelet.server.takeover import Connections
from vkubelet.server.websocket import FORMS, Terms, websocket_session

log = logging.getLogger(__name__)

SPDY_VERSIONS: Mapping[str, int] = {"v4.channel.k8s.io": 4, "v3.channel.k8s.io": 3, "v2.channel.k8s.io": 2, "channel.k8s.io": 1}
STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
"""Numbers of the channels over WebSocket."""

_FAREWELL = 1.0
"""Seconds for the error message to a client whose stream is aborted."""
_LONGEST_SIZE = 1024
"""Bytes buffered of a terminal size until the rest of it arrives."""
VERSION_HEADER = "X-Stream-Protocol-Version"
ACCEPTED_HEADER = "X-Accepted-Stream-Protocol-Versions"


class Channel(Protocol):
    """One direction or both of a stream, over any transport."""

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None: ...

    def discard(self) -> None: ...

    def reset(self) -> None: ...


@frozen(kw_only=True)
class Streaming:
    """Collaborators that all streams of a server share."""

    clock: Clock
    metrics: Metrics
    settings: ServerSettings
    connections: Connections


@frozen(kw_only=True)
class Wishes:
    """Streams that a client will open, and whether it has a terminal."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """Parses the query. Raises 400 when there would be no stream at all. A terminal has no separate stderr."""
        stdin, stdout, stderr, tty = (query.get(name) == "1" for name in ("input", "output", "error", "tty"))
        wishes = cls(stdin=stdin, stdout=stdout, stderr=stderr and not tty, tty=tty)
        if not (wishes.stdin or wishes.stdout or wishes.stderr):
            raise web.HTTPBadRequest(text="you must specify at least 1 of stdin, stdout, stderr")
        return wishes

    def spdy_streams(self, version: int) -> frozenset[str]:
        """Returns the `streamtype` of all streams that the client opens."""
        wanted = {"error": True, "stdin": self.stdin, "stdout": self.stdout, "stderr": self.stderr, "resize": self.tty and version >= 3}
        return frozenset(name for name, is_wanted in wanted.items() if is_wanted)


@frozen(kw_only=True)
class Work:
    """Operation for the client: `call` returns the final Status; `action` names the operation in errors."""

    call: Callable[[ContainerIO], Awaitable[Json]]
    action: str
    tty: bool
    stdin: bool = True


@frozen(kw_only=True)
class Channels:
    """Open channels; `structured`: the error channel takes Status objects."""

    error: Channel
    structured: bool
    stdin: Channel | None = None
    stdout: Channel | None = None
    stderr: Channel | None = None
    resize: Channel | None = None


# --- For the provider -------------------------------------------------------------------------------------------------------------------


class Resizes:
    """Sizes of the client's terminal, as a sequence of JSON objects; of several unread ones, only the last is kept."""

    def __init__(self) -> None:
        self._begun = b""
        self._size: TerminalSize | None = None
        self._ended = False
        self._news = asyncio.Event()

    def feed(self, data: bytes) -> None:
        *objects, self._begun = (self._begun + data).split(b"}")
        if len(self._begun) > _LONGEST_SIZE:
            self._begun = b""
        for text in objects:
            self._size = terminal_size(text + b"}") or self._size
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TerminalSize:
        while self._size is None:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        size, self._size = self._size, None
        return size


class _Stdin:
    """Input of the client; also closed when the client resets the stream."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            data = await self._channel.read()
        except StreamReset:
            data = b""
        if not data:
            raise StopAsyncIteration
        return data

    async def aclose(self) -> None:
        """Stops reading; data that still arrives must not block the other streams."""
        self._channel.discard()


class RemoteIO:
    """See ContainerIO. Output that the client did not request, or does not read any more, is dropped."""

    def __init__(self, channels: Channels, clock: Clock, *, tty: bool, stdin: bool) -> None:
        self.tty = tty
        self.stdin: AsyncIterator[bytes] | None = _Stdin(channels.stdin) if stdin and channels.stdin is not None else None
        self._sizes = Resizes()
        self.resizes: AsyncIterator[TerminalSize] = self._sizes
        self._channels = channels
        self._clock = clock

    async def write_stdout(self, data: bytes) -> None:
        await self._write(self._channels.stdout, data)

    async def write_stderr(self, data: bytes) -> None:
        await self._write(self._channels.stdout if self.tty else self._channels.stderr, data)

    async def _write(self, channel: Channel | None, data: bytes) -> None:
        if channel is not None:
            with suppress(StreamReset):
                await channel.write(data)
                return
        # Other tasks get their turn, however fast the provider writes.
        await self._clock.sleep(0)

    async def pump_sizes(self) -> None:
        """Reads the resize channel, whether the provider uses sizes or not."""
        channel = self._channels.resize
        try:
            while channel is not None and (data := await channel.read()):
                self._sizes.feed(data)
        except StreamReset:
            return
        finally:
            self._sizes.end()


def terminal_size(text: bytes) -> TerminalSize | None:
    """Parses a terminal size, None for invalid text; an empty size means that there is no terminal any more."""
    try:
        size = {key.lower(): value for key, value in decode_json(text).items()}
    except ValueError:
        return None
    width, height = size.get("width"), size.get("height")
    if not isinstance(width, int) or not isinstance(height, int) or not (0 < width < 65536 and 0 < height < 65536):
        return None
    return TerminalSize(width, height)


# --- A session --------------------------------------------------------------------------------------------------------------------------


async def serve(request: web.Request, wishes: Wishes, work: Work, *, streaming: Streaming) -> web.StreamResponse:
    """Performs the operation over a new session. Raises web.HTTPException, until 101 was sent to the client."""
    if wants_websocket(request.method, request.headers):
        return await _over_websocket(request, wishes, work, streaming)
    return await _over_spdy(request, wishes, work, streaming)


async def _over_spdy(request: web.Request, wishes: Wishes, work: Work, streaming: Streaming) -> web.StreamResponse:
    protocol = spdy_protocol(request.headers, tuple(SPDY_VERSIONS))
    version = SPDY_VERSIONS[protocol]
    settings, transport = streaming.settings, request.transport
    async with spdy_session(request, protocol, idle=settings.stream_idle_timeout, clock=streaming.clock) as session:
        found = await collect(session, wishes.spdy_streams(version), within=settings.stream_creation_timeout)
        if found is not None:
            for name in {"error", "stdout", "stderr"} & found.keys():
                found[name].discard()
            streams: dict[str, Channel] = dict(found)
            await perform(Channels(structured=version >= 4, **streams), work, clock=streaming.clock)
            await until_delivered(transport, streaming.clock, within=settings.stream_idle_timeout)
    return session.response


async def collect(session: SpdySession, expected: frozenset[str], *, within: float) -> dict[str, SpdyStream] | None:
    """Returns exactly the expected streams, by their type; None when they did not arrive in time. Others are refused."""
    found: dict[str, SpdyStream] = {}
    try:
        async with asyncio.timeout(within):
            while len(found) < len(expected):
                stream = await session.accept()
                kind = stream.headers.get("streamtype", "")
                if kind in expected and kind not in found:
                    found[kind] = stream
                else:
                    stream.reset()
    except TimeoutError:
        log.info("client did not open its streams in time")
        return None
    except SessionClosed:
        return None
    return found


async def _over_websocket(request: web.Request, wishes: Wishes, work: Work, streaming: Streaming) -> web.StreamResponse:
    protocol = websocket_protocol(request.headers, tuple(FORMS))
    settings, transport = streaming.settings, request.transport
    terms = Terms(
        protocol=protocol,
        form=FORMS[protocol],
        idle=settings.stream_idle_timeout,
        clock=streaming.clock,
        connections=streaming.connections,
    )
    async with websocket_session(request, terms) as session:
        channels = Channels(
            structured=protocol.startswith(("v4.", "v5.")),
            error=session.channel(ERROR),
            stdin=session.channel(STDIN, readable=True) if wishes.stdin else None,
            stdout=session.channel(STDOUT) if wishes.stdout else None,
            stderr=session.channel(STDERR) if wishes.stderr else None,
            resize=session.channel(RESIZE, readable=True),
        )
        # This notifies the client that the session has started.
        await session.send(STDOUT if wishes.stdout else STDERR if wishes.stderr else ERROR, b"")
        await perform(channels, work, clock=streaming.clock)
        await until_delivered(transport, streaming.clock, within=settings.stream_idle_timeout)
    return session.response


async def perform(channels: Channels, work: Work, *, clock: Clock) -> None:
    """Performs the operation, and reports the result to the client. An error that is neither ours nor the provider's is raised after
    that."""
    status = statuses.failure(statuses.HIDDEN, work.action)
    patience: float | None = _FAREWELL
    try:
        status = await _outcome(channels, work, clock)
        patience = None
    except asyncio.CancelledError:
        status = statuses.failure("the stream was broken off", work.action)
        raise
    finally:
        try:
            async with asyncio.timeout(patience):
                await _finish(channels, status)
        except TimeoutError:
            channels.error.reset()


async def _outcome(channels: Channels, work: Work, clock: Clock) -> Json:
    """Returns the result of the operation.

    However often this is cancelled, the provider is cancelled once, and has the time it needs to stop what it started.
    """
    io = RemoteIO(channels, clock, tty=work.tty, stdin=work.stdin)
    if io.stdin is None and channels.stdin is not None:
        channels.stdin.discard()
    async with asyncio.TaskGroup() as group:
        sizes = group.create_task(io.pump_sizes())
        # Awaiting it in here would propagate every cancellation.
        called = group.create_task(_called(work, io))
        called.add_done_callback(lambda _: sizes.cancel())
    return called.result()


async def _called(work: Work, io: ContainerIO) -> Json:
    try:
        return await work.call(io)
    except (VKubeletError, NotImplementedError, ExceptionGroup) as error:
        meant = statuses.meant(error, (VKubeletError, NotImplementedError))
        if statuses.http_status(meant) is None:
            with bind(error=str(meant)):
                log.warning("provider failed a stream")
        return statuses.failure(meant, work.action)


async def _finish(channels: Channels, status: Json) -> None:
    for channel in (channels.stdout, channels.stderr):
        if channel is not None:
            await channel.close()
    with suppress(StreamReset):
        await channels.error.write(statuses.rendered(status, structured=channels.structured))
    await channels.error.close()
    for channel in (channels.stdin, channels.resize):
        if channel is not None:
            await channel.close()
            channel.discard()


# --- Negotiation of the protocol and of the subprotocol version; pure. A subprotocol that carries a token is never offered. ---------------


def wants_websocket(method: str, headers: Mapping[str, str]) -> bool:
    """Checks whether the client asks for WebSocket rather than SPDY. Raises web.HTTPException when it asks for neither, or not with GET."""
    upgrade = headers.get(hdrs.UPGRADE, "").strip().lower()
    if "upgrade" not in headers.get(hdrs.CONNECTION, "").lower() or not upgrade:
        raise web.HTTPBadRequest(text="Upgrade request required")
    if upgrade == "websocket":
        if method != hdrs.METH_GET:
            raise web.HTTPMethodNotAllowed(method, [hdrs.METH_GET], text="bad method")
        return True
    if "spdy/3.1" not in upgrade:
        raise web.HTTPBadRequest(text="unable to upgrade: missing upgrade headers in request")
    return False


def spdy_protocol(headers: MultiMapping[str], supported: Sequence[str]) -> str:
    """Returns the first of the client's protocols that is supported; they come on separate lines, or separated by commas. Raises 400 and
    403."""
    lines = headers.getall(VERSION_HEADER, [])
    offered = _listed(lines)
    if not offered:
        raise web.HTTPBadRequest(text=f"unable to upgrade: {VERSION_HEADER} is required")
    chosen = next((name for name in offered if name in supported), None)
    if chosen is None:
        raise web.HTTPForbidden(
            text=f"unable to upgrade: unable to negotiate protocol: client supports [{' '.join(lines)}], "
            f"server accepts [{' '.join(supported)}]",
            headers=CIMultiDict((ACCEPTED_HEADER, name) for name in supported),
        )
    return chosen


def websocket_protocol(headers: Mapping[str, str], supported: Sequence[str]) -> str:
    """Returns the first of the client's subprotocols that is supported, "" when it names none. Raises 403."""
    offered = _listed([headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "")])
    if not offered:
        return ""
    chosen = next((name for name in offered if name in supported), None)
    if chosen is None:
        # The client's offer may contain a token and is not repeated.
        raise web.HTTPForbidden(text=f"requested protocol(s) are not supported; supports [{' '.join(supported)}]")
    return chosen


def _listed(lines: Sequence[str]) -> list[str]:
    return [name.strip() for line in lines for name in line.split(",") if name.strip()]
