"""`/portForward`: connections to the ports of virtual pods, many at once over one session.

Over SPDY each connection is a pair of streams, for data and for an error, that the client opens on demand; over WebSocket each port has one
connection, on channels that exist from the start.

Invariant: connections of a session are closed independently, and each reports an error on its own error stream.
"""

import asyncio
import logging
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress

import attrs
from aiohttp import web

from vkubelet.api.objects import Pod
from vkubelet.errors import VKubeletError
from vkubelet.logformat import bind
from vkubelet.provider import Provider, SupportsPortForward
from vkubelet.server import statuses
from vkubelet.server.answer import until_delivered
from vkubelet.server.exec import pod_of
from vkubelet.server.node_pods import NodePods
from vkubelet.server.remotecommand import Channel, Streaming, spdy_protocol, wants_websocket, websocket_protocol
from vkubelet.server.spdy import SessionClosed, SpdyStream, StreamReset, spdy_session
from vkubelet.server.websocket import FORMS, Terms, websocket_session

log = logging.getLogger(__name__)

SPDY_PROTOCOLS = ("portforward.k8s.io",)
WEBSOCKET_PROTOCOLS = ("v4.channel.k8s.io", "v4.base64.channel.k8s.io")
MOST_PORTS = 100
"""Ports over one WebSocket; its channels are numbered by one byte."""


class Forwarded:
    """A ByteStream for the provider."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._closed = False
        self.given_up = False

    async def read(self) -> bytes:
        """Reads data. Raises ConnectionResetError when the client aborted the connection."""
        try:
            return await self._channel.read()
        except StreamReset as error:
            if self._closed:
                # This is how kubectl signals that it has read everything.
                return b""
            self.given_up = True
            raise ConnectionResetError("the client has closed the connection") from error

    async def write(self, data: bytes) -> None:
        """Writes data. Raises ConnectionResetError likewise."""
        try:
            await self._channel.write(data)
        except StreamReset as error:
            self.given_up = True
            raise ConnectionResetError("the client has closed the connection") from error

    async def close(self) -> None:
        """Closes the connection for sending; reading continues."""
        self._closed = True
        await self._channel.close()


class Pair:
    """The two streams of one connection, complete once both have been opened."""

    def __init__(self, request_id: str, port: int) -> None:
        self.request_id = request_id
        self.port = port
        self.streams: dict[str, SpdyStream] = {}
        self.complete = asyncio.Event()

    def add(self, kind: str, stream: SpdyStream) -> bool:
        """Adds a stream; returns False when there was such a stream already."""
        if kind in self.streams:
            return False
        self.streams[kind] = stream
        if len(self.streams) == 2:
            self.complete.set()
        return True


@attrs.frozen(kw_only=True)
class PortForwards:
    """Endpoint; `node_pods` finds the pod of a request."""

    provider: Provider
    node_pods: NodePods
    streaming: Streaming

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serves one session, until the client disconnects."""
        if not isinstance(self.provider, SupportsPortForward):
            raise statuses.not_supported("port-forward")
        pod = pod_of(request, self.node_pods)
        with self.streaming.metrics.streams.labels(kind="portforward").track_inprogress():
            if wants_websocket(request.method, request.headers):
                return await self._over_websocket(request, pod, self.provider)
            return await self._over_spdy(request, pod, self.provider)

    async def _over_spdy(self, request: web.Request, pod: Pod, provider: SupportsPortForward) -> web.StreamResponse:
        protocol = spdy_protocol(request.headers, SPDY_PROTOCOLS)
        pairs: dict[str, Pair] = {}
        async with (
            spdy_session(request, protocol, idle=self.streaming.settings.stream_idle_timeout, clock=self.streaming.clock) as session,
            asyncio.TaskGroup() as group,
        ):
            with suppress(SessionClosed):
                while True:
                    pair = await take(await session.accept(), pairs)
                    if pair is not None:
                        group.create_task(self._serve_pair(pair, pairs, pod, provider))
        return session.response

    async def _serve_pair(self, pair: Pair, pairs: dict[str, Pair], pod: Pod, provider: SupportsPortForward) -> None:
        try:
            async with asyncio.timeout(self.streaming.settings.stream_creation_timeout):
                await pair.complete.wait()
        except TimeoutError:
            await _report_error(pair.streams.get("error"), f"(request={pair.request_id}) timed out waiting for streams")
        else:
            error = pair.streams["error"]
            error.discard()
            await forward(provider, pod, pair.port, data=pair.streams["data"], error=error)
        finally:
            # The number may be used again.
            del pairs[pair.request_id]
            if not pair.complete.is_set():
                for stream in pair.streams.values():
                    stream.reset()

    async def _over_websocket(self, request: web.Request, pod: Pod, provider: SupportsPortForward) -> web.StreamResponse:
        protocol = websocket_protocol(request.headers, WEBSOCKET_PROTOCOLS)
        ports = ports_asked_for(request.query.getall("port", []))
        settings, transport = self.streaming.settings, request.transport
        terms = Terms(
            protocol=protocol,
            form=FORMS[protocol],
            idle=settings.stream_idle_timeout,
            clock=self.streaming.clock,
            connections=self.streaming.connections,
        )
        async with websocket_session(request, terms) as session:
            channels = [(port, session.channel(2 * i, readable=True), session.channel(2 * i + 1)) for i, port in enumerate(ports)]
            for port, data, error in channels:
                await data.write(struct.pack("<H", port))
                await error.write(struct.pack("<H", port))
            async with asyncio.TaskGroup() as group:
                for port, data, error in channels:
                    group.create_task(forward(provider, pod, port, data=data, error=error))
            await until_delivered(transport, self.streaming.clock, within=settings.stream_idle_timeout)
        return session.response


async def take(stream: SpdyStream, pairs: dict[str, Pair]) -> Pair | None:
    """Assigns a new stream to its connection; returns the pair if the stream is its first. An invalid stream is refused."""
    try:
        port, kind = port_of(stream.headers), kind_of(stream.headers)
    except ValueError as error:
        with bind(error=str(error)):
            log.debug("stream refused")
        stream.reset()
        return None
    request_id = request_id_of(stream.headers, kind, stream.id)
    pair = pairs.get(request_id)
    if pair is None:
        pair = pairs[request_id] = Pair(request_id, port)
        pair.add(kind, stream)
        return pair
    if not pair.add(kind, stream):
        stream.reset()
        await _report_error(pair.streams.get("error"), f"error processing stream for request {request_id}: {kind} stream already assigned")
    return None


async def forward(provider: SupportsPortForward, pod: Pod, port: int, *, data: Channel, error: Channel) -> None:
    """Forwards one connection until it is closed. An error of the provider or of its connection is reported, but not to a client that
    aborted."""
    stream = Forwarded(data)
    failed = statuses.HIDDEN
    try:
        await provider.port_forward(pod.ref, port, stream)
        failed = ""
    except (VKubeletError, OSError, NotImplementedError, ExceptionGroup) as problem:
        failed = described(statuses.meant(problem, (VKubeletError, OSError, NotImplementedError)))
    except asyncio.CancelledError:
        failed = ""
        data.reset()
        error.reset()
        raise
    finally:
        if failed and not stream.given_up:
            await _report_error(error, f"error forwarding port {port} to pod {pod.metadata.name}, uid {pod.metadata.uid}: {failed}")
            data.reset()
            error.reset()
    await data.close()
    await error.close()
    data.discard()


async def _report_error(channel: Channel | None, text: str) -> None:
    if channel is not None:
        with suppress(StreamReset):
            await channel.write(text.encode())


# --- Pure -------------------------------------------------------------------------------------------------------------------------------


def described(problem: Exception) -> str:
    """Returns the message of an error for the client: its text when it is meant for the client, else the name of the system error."""
    if isinstance(problem, NotImplementedError):
        return statuses.NOT_IMPLEMENTED
    if isinstance(problem, OSError):
        return os.strerror(problem.errno).lower() if problem.errno else "connection failed"
    return str(problem) if statuses.http_status(problem) is not None else statuses.HIDDEN


def parse_port(text: str) -> int:
    """Parses a port, 1 to 65535. Raises ValueError with a kubelet's message."""
    if not text.isascii() or not text.isdigit():
        raise ValueError(f'unable to parse "{text}" as a port: strconv.ParseUint: parsing "{text}": invalid syntax')
    if len(text) > 20 or int(text) > 65535:
        raise ValueError(f'unable to parse "{text}" as a port: strconv.ParseUint: parsing "{text}": value out of range')
    if int(text) == 0:
        raise ValueError(f'port "{text}" must be > 0')
    return int(text)


def port_of(headers: Mapping[str, str]) -> int:
    """Returns the port of a stream. Raises ValueError."""
    if not headers.get("port"):
        raise ValueError('"port" header is required')
    return parse_port(headers["port"])


def kind_of(headers: Mapping[str, str]) -> str:
    """Returns `data` or `error`. Raises ValueError."""
    kind = headers.get("streamtype", "")
    if not kind:
        raise ValueError('"streamType" header is required')
    if kind not in ("data", "error"):
        raise ValueError(f'invalid stream type "{kind}"')
    return kind


def request_id_of(headers: Mapping[str, str], kind: str, stream: int) -> str:
    """Returns the id that both streams of a connection share; old clients open the data stream directly after the error stream instead."""
    return headers.get("requestid") or str(stream if kind == "error" else stream - 2)


def ports_asked_for(values: Sequence[str]) -> list[int]:
    """Returns the ports of a query, repeated or separated by commas. Raises 400."""
    texts = [text for value in values for text in value.split(",")]
    if not any(texts):
        raise web.HTTPBadRequest(text='query parameter "port" is required')
    if len(texts) > MOST_PORTS:
        raise web.HTTPBadRequest(text=f"at most {MOST_PORTS} ports can be forwarded over one connection")
    try:
        return [parse_port(text) for text in texts]
    except ValueError as error:
        raise web.HTTPBadRequest(text=str(error)) from error
