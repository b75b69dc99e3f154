"""A TLS listener that takes connections over for SPDY, and whatever handler a test puts behind it; no cluster.

Invariant: between the socket and the handler is only what the kubelet server has there as well.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from aiohttp import web
from attrs import define, field

from tests.support.program import PATIENCE
from tests.support.spdy_client import SpdyClient, connected, upgrade_request
from vkubelet.clock import SystemClock
from vkubelet.control.certificates import Pair
from vkubelet.server.settings import LimitSettings
from vkubelet.server.spdy import SpdySession, SpdyStream, StreamReset, spdy_session
from vkubelet.server.strangers import Strangers
from vkubelet.server.takeover import Connections
from vkubelet.server.tls import ServingTls
from vkubelet.testing.cluster.pki import Authority

ADDRESS = "127.0.0.1"
PROTOCOL = "v4.channel.k8s.io"
IDLE = 60.0

Serve = Callable[[SpdySession], Awaitable[None]]


@define
class Sessions:
    """A listener; every request for an upgrade is served by `serve`, after `checked` when the path is `/checked`.

    `ended` tells how handlers ended, `http` knows the connections that are open.
    """

    serve: Serve
    port: int
    trust: ssl.SSLContext | None
    connections: Connections
    http: web.Server
    idle: float = IDLE
    checked: asyncio.Event = field(factory=asyncio.Event)
    open: int = 0
    ended: list[str] = field(factory=list)
    changed: asyncio.Event = field(factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/refused":
            raise web.HTTPForbidden(text="not you")
        if request.path == "/plain":
            return web.Response(text=f"plain {request.method}")
        if request.path == "/checked":
            await self.checked.wait()
        self.open += 1
        how = "cancelled"
        try:
            async with spdy_session(request, PROTOCOL, idle=self.idle, clock=SystemClock()) as session:
                await self.serve(session)
            how = "returned"
            return session.response
        except web.HTTPException:
            how = "refused"
            raise
        finally:
            self.open -= 1
            self.ended.append(how)
            self.changed.set()

    async def until_ended(self, count: int = 1) -> list[str]:
        """How handlers ended, once so many have; what ends is noticed before a session counts as idle."""
        async with asyncio.timeout(PATIENCE):
            while len(self.ended) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.ended

    def connect(self) -> AbstractAsyncContextManager[SpdyClient]:
        return connected(ADDRESS, self.port, self.trust)

    @asynccontextmanager
    async def session(self, *, behind: bytes = b"") -> AsyncIterator[SpdyClient]:
        """A client whose upgrade was answered with 101."""
        async with self.connect() as client:
            assert await client.upgrade(upgrade_request("/exec", PROTOCOL), behind=behind) == 101, client.head
            yield client


@asynccontextmanager
async def sessions(serve: Serve, directory: Path | None, *, idle: float = IDLE) -> AsyncIterator[Sessions]:
    """Over TLS with files written to `directory`, without a directory over plain TCP."""
    context, trust = (None, None) if directory is None else _tls(directory)
    connections = Connections(Strangers(1_000_000, lambda: None), LimitSettings())
    made: list[Sessions] = []
    application = web.Application()

    async def handle(request: web.Request) -> web.StreamResponse:
        return await made[0].handle(request)

    application.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    assert runner.server is not None
    http = runner.server
    listener = await asyncio.get_running_loop().create_server(lambda: connections.protocol(http()), ADDRESS, 0, ssl=context)
    made.append(Sessions(serve, listener.sockets[0].getsockname()[1], trust, connections, http, idle))
    try:
        yield made[0]
    finally:
        listener.close()
        await connections.stop(within=0.1)
        await runner.cleanup()


def _tls(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = Authority.create("sessions", SystemClock())
    server = authority.server("node", [ADDRESS]).write(directory, "server")
    (directory / "ca.crt").write_bytes(authority.pair.certificate)
    serving = ServingTls()
    serving.install(Pair(server.certificate.read_bytes(), server.key.read_bytes()))
    return serving.context, ssl.create_default_context(cafile=str(directory / "ca.crt"))


def on_every_loop(scene: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test for the loop of asyncio and one for uvloop's, whose transports are not the same."""

    @pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
    @functools.wraps(scene)
    def test(loop: Callable[[], asyncio.AbstractEventLoop], **fixtures: object) -> None:
        async def run() -> None:
            await scene(**fixtures)

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(run())

    own = inspect.signature(scene)
    first = inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    test.__signature__ = own.replace(parameters=[first, *own.parameters.values()])  # type: ignore[attr-defined]
    return test


async def echo(session: SpdySession) -> None:
    """Send back what comes on each stream, each to its end, until the client takes its leave or leaves."""
    async with asyncio.TaskGroup() as group:
        while True:
            stream = await session.accept()
            group.create_task(echo_stream(stream))


async def echo_stream(stream: SpdyStream) -> None:
    try:
        while data := await stream.read():
            await stream.write(data)
        await stream.close()
    except StreamReset:
        stream.reset()
