"""The kubelet port in one process without a network: the real server, its reviews of callers, and the mock provider behind it.

Invariant: only the bytes of the network, the answers of the hub to reviews, and the time are the test's; time stands still while a task
can run, so that a case gives the same result each time.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from aiohttp import web
from attrs import define, field, frozen
from prometheus_client import CollectorRegistry

from tests.support.memory_transport import MemoryTransport
from tests.unit.vkubelet.server.test_app import EXPECTED, VERBS
from vkubelet.client.connection import Connection as ApiConnection
from vkubelet.client.rest import Client
from vkubelet.client.transport import Call
from vkubelet.clock import SystemClock
from vkubelet.control.certificates import Pair
from vkubelet.metrics import Metrics
from vkubelet.server import KubeletServer, ServerSettings
from vkubelet.server.auth import Gate, User
from vkubelet.server.settings import DebugSettings
from vkubelet.server.takeover import Connection
from vkubelet.testing.cluster.pki import Authority
from vkubelet.testing.host import RecordingHost, make_pod, with_status
from vkubelet_providers.mock import Mock

NODE, PORT = "mock", 10250
ADMIN, LOGS = "admin-of-nodes", "reader-of-logs"
RIGHTS: Mapping[str, frozenset[str]] = {ADMIN: frozenset({"*"}), LOGS: frozenset({"log"}), "nobody": frozenset()}
"""Subresources of nodes on which each user has every verb."""
TOKENS: Mapping[str, str] = {"t0ken-of-the-admin": ADMIN, "t0ken-of-the-reader": LOGS, "t0ken-of-nobody": "nobody"}
CERTIFICATES = (None, ADMIN, LOGS)
"""Whose client certificate a connection presents."""
LONGEST_END = 300.0
"""Seconds of the case's time in which everything that a client started has stopped after it has disconnected."""
PIECE = 256 << 10
"""Bytes that a transport of asyncio reads at once, at most."""

_SILENT = ("aiohttp", "asyncio")
"""Loggers that report nothing about a client, whatever it sends."""


class FrozenLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is `moment`. It calls nothing before its time: asyncio's own calls what is due within the resolution of its
    clock, and a callback that waits for the rest of it, as aiohttp's does, would be called for ever while the time stands still."""

    moment = 1000.0

    def __init__(self) -> None:
        super().__init__()
        self._clock_resolution = 0.0

    def time(self) -> float:
        return self.moment


class LoopClock:
    """The clock of the running loop."""

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class Reviews:
    """The hub, in the place of a client's transport: it answers TokenReviews and SubjectAccessReviews, and nothing else."""

    def __init__(self) -> None:
        self.tokens = dict(TOKENS)
        self.rights = dict(RIGHTS)

    async def fetch(self, call: Call, timeout: float) -> bytes:
        spec = json.loads(call.body or b"{}")["spec"]
        if call.resource == "tokenreviews":
            name = self.tokens.get(spec["token"])
            status: Any = {"authenticated": True, "user": {"username": name}} if name else {"authenticated": False}
        else:
            granted, asked = self.rights[spec["user"]], spec["resourceAttributes"]["subresource"]
            status = {"allowed": asked in granted or "*" in granted}
        return json.dumps({"metadata": {}, "status": status}).encode()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        yield


class Line(MemoryTransport):
    """One connection of a client to the port, after its TLS handshake."""

    def __init__(self, security: ssl.SSLObject) -> None:
        super().__init__()
        self._info = {"ssl_object": security, "sockname": ("127.0.0.1", PORT), "peername": ("127.0.0.1", 4)}
        self.gone = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._info.get(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol  # type: ignore[return-value]

    def is_reading(self) -> bool:
        return self.reading

    def lose(self, error: Exception | None = None) -> None:
        """Reports the loss in a later callback, as asyncio's transports do."""
        self._closing = True
        if not self.gone and self.protocol is not None:
            self.gone = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, error)


@frozen
class Allowed:
    """A request that passed the gate."""

    user: User
    node: str


# aiohttp warns about plain text as a key where it has a type for it.
_ALLOWED: Any = web.RequestKey("allowed", Allowed) if hasattr(web, "RequestKey") else "allowed"


class WatchedGate(Gate):
    """The gate, which records on each request whom it let in."""

    async def authorize(self, user: User, request: web.Request, *, node: str) -> None:
        await super().authorize(user, request, node=node)
        request[_ALLOWED] = Allowed(user, node)


class Complaints(logging.Handler):
    """Log lines that no client may cause: errors, and any line of the libraries below the server."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info or record.name.partition(".")[0] in _SILENT:
            self.lines.append(self.format(record))


@define
class Port:
    """The server; `connect` opens a connection, `check` judges what a case has left."""

    server: KubeletServer
    metrics: Metrics
    security: Mapping[str | None, ssl.SSLObject]
    reviews: Reviews
    complaints: Complaints = field(factory=Complaints)
    served: list[str] = field(factory=list)
    """Handlers that ran in this case."""
    ever: set[str] = field(factory=set)
    """Handlers that ran."""
    sent: bytearray = field(factory=bytearray)
    """Everything that clients of this case have sent."""
    _lasting: set[asyncio.Task[Any]] = field(factory=set)
    _errors: list[str] = field(factory=list)

    @property
    def loop(self) -> FrozenLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FrozenLoop)
        return loop

    def connect(self, certificate: str | None) -> Caller:
        line = Line(self.security[certificate])
        connection = self.server._ports._serve()
        line.protocol = connection
        connection.connection_made(line)
        return Caller(self, line, connection, certificate)

    async def settle(self) -> None:
        """Runs all tasks until they are blocked. Raises AssertionError when one never is."""
        ready = self.loop._ready  # type: ignore[attr-defined]
        for _ in range(100_000):
            await asyncio.sleep(0)
            if not ready:
                return
        raise AssertionError("a task runs without ever waiting")

    async def advance(self, seconds: float) -> None:
        """Lets time pass from timer to timer."""
        end = self.loop.moment + seconds
        await self.settle()
        while (due := self._next_due()) is not None and due <= end:
            self.loop.moment = max(self.loop.moment, due + 1e-6)
            await self.settle()
        self.loop.moment = max(self.loop.moment, end)
        await self.settle()

    def _next_due(self) -> float | None:
        timers = self.loop._scheduled  # type: ignore[attr-defined]
        return min((timer.when() for timer in timers if not timer.cancelled()), default=None)

    async def check(self) -> None:
        """Judges the end of a case whose clients have disconnected. Raises AssertionError."""
        await self.settle()
        began = self.loop.moment
        while self._left() and self.loop.moment < began + LONGEST_END:
            await self.advance(10.0)
        assert not self._left(), f"tasks left: {self._left()}"
        assert not self.server._ports.connections._held, "a session is left"
        assert not len(self.server._listeners.strangers), "a stranger's place is left"
        assert not list(self.server._ports.runner.server.connections), "a connection is left"  # type: ignore[union-attr]
        for metric in (self.metrics.streams, self.metrics.http_inflight):
            busy = [sample for family in metric.collect() for sample in family.samples if sample.value]
            assert not busy, f"counted as open: {busy}"
        lines, self.complaints.lines = [*self.complaints.lines, *self._errors], []
        self._errors.clear()
        assert not lines, "\n".join(lines)
        self.served.clear()
        self.sent.clear()

    def _left(self) -> set[asyncio.Task[Any]]:
        """Tasks of the case; its own is the one that runs."""
        return {task for task in asyncio.all_tasks() - self._lasting if task is not asyncio.current_task()}

    async def healthy(self) -> None:
        """Checks that the port serves others. Raises AssertionError."""
        client = self.connect(ADMIN)
        client.send(b"GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n")
        await self.settle()
        assert bytes(client.line.sent).startswith(b"HTTP/1.1 200 ") and client.line.sent.endswith(b"ok"), client.line.sent
        client.leave()

    def watch(self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Callable[..., Awaitable[web.StreamResponse]]:
        return partial(self._judged, handler)

    async def _judged(self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]], request: web.Request) -> web.StreamResponse:
        """Runs a handler if its caller has the right that this handler needs, by the tables of the test."""
        name = handler.__qualname__ if hasattr(handler, "__qualname__") else str(handler)
        self.served.append(name)
        self.ever.add(name)
        allowed: Allowed = request[_ALLOWED]
        granted = RIGHTS[allowed.user.name]
        needed = EXPECTED[name]
        if not ("*" in granted or granted & set(needed)):
            self._errors.append(f"{name} ran for {allowed.user.name}, who has only {set(granted)}; it needs {VERBS.get(request.method)}")
        if not self._proven(allowed.user.name, request):
            self._errors.append(f"{name} ran for {allowed.user.name}, of whom neither certificate nor token was sent")
        return await handler(request)

    def _proven(self, user: str, request: web.Request) -> bool:
        """Whether the connection has the user's certificate, or its token was among the bytes of the case."""
        transport = request.transport
        if user in self.security and transport is not None and transport.get_extra_info("ssl_object") is self.security[user]:
            return True
        secrets = [token.encode() for token, name in TOKENS.items() if name == user]
        encoded = [base64.urlsafe_b64encode(secret).rstrip(b"=") for secret in secrets]
        return any(secret in self.sent for secret in (*secrets, *encoded))

    def report_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._errors.append(f"the loop's handler got {context}")


@define(eq=False)
class Caller:
    """One client."""

    port: Port
    line: Line
    connection: Connection
    certificate: str | None

    def send(self, data: bytes) -> None:
        """Sends in pieces, as long as the server reads: the rest would wait in the kernel."""
        self.port.sent += data
        for at in range(0, len(data), PIECE):
            if self.line.reading and not self.line.is_closing():
                self.connection.data_received(data[at : at + PIECE])

    def leave(self) -> None:
        self.line.lose()


@asynccontextmanager
async def serving() -> AsyncIterator[Port]:
    """A server with a node, a running pod `ns/pod` with container `app`, and the mock provider."""
    metrics, clock = Metrics(CollectorRegistry()), LoopClock()
    host, mock = RecordingHost(clock=clock), Mock()
    pod = make_pod("pod", node=NODE, metadata={"namespace": "ns"}, spec={"containers": [{"name": "app", "image": "i", "stdin": True}]})
    running = {"name": "app", "image": "i", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    pod = with_status(pod, {"phase": "Running", "containerStatuses": [running]})
    host.pods.put(pod)
    hub = Client(ApiConnection("https://hub.invalid"))
    reviews = Reviews()
    hub.transport = reviews  # type: ignore[assignment]
    settings = ServerSettings(
        main_port=False,
        certificate="self-signed",
        debug=DebugSettings(profiling=True),
        stream_idle_timeout=60.0,
        stream_creation_timeout=5.0,
    )
    server = KubeletServer(
        provider=mock,
        pods=host.pods,
        client=hub,
        clock=clock,
        metrics=metrics,
        settings=settings,  # type: ignore[arg-type]
    )
    port = Port(server, metrics, _handshakes(server), reviews)
    gate = WatchedGate(hub, clock, settings=settings)
    application = attrs.evolve(server._routes(), gate=gate).application()
    application.on_response_prepare.append(server._ports._prepare)
    for route in application.router.routes():
        route._handler = port.watch(route.handler)
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None)
    await runner.setup()
    server._ports.runner = runner
    server._listeners._nodes[PORT] = NODE
    logging.getLogger().addHandler(port.complaints)
    port.loop.set_exception_handler(port.report_error)
    providing = asyncio.create_task(mock.run(host), name="provider")
    try:
        await port.settle()
        await mock.sync_pod(pod)
        await port.advance(5.0)
        port._lasting = asyncio.all_tasks()
        yield port
    finally:
        logging.getLogger().removeHandler(port.complaints)
        host.stop()
        await providing
        await runner.cleanup()


def _handshakes(server: KubeletServer) -> dict[str | None, ssl.SSLObject]:
    """The server's ends of finished TLS handshakes, by the user of the client certificate."""
    authority = Authority.create("fuzzing", SystemClock())
    serving = authority.server("node", ["127.0.0.1"])
    server._ports._install(Pair(serving.certificate, serving.key))
    server._ports.tls.trust(authority.pair.certificate.decode())
    return {user: _handshake(server, authority, user) for user in CERTIFICATES}


def _handshake(server: KubeletServer, authority: Authority, user: str | None) -> ssl.SSLObject:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.pair.certificate.decode())
    if user is not None:
        _load(context, authority, user)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    served = server._ports.tls.context.wrap_bio(up, down, server_side=True)
    calling = context.wrap_bio(down, up, server_hostname="127.0.0.1")
    ends = [calling, served]
    for _ in range(20):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert (served.getpeercert() is not None) == (user is not None)
    return served


def _load(context: ssl.SSLContext, authority: Authority, user: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = authority.client(user, []).write(Path(folder), "client")
        context.load_cert_chain(files.certificate, files.key)
