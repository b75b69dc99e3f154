"""Which handler runs for a request, and by which right: 200,000 requests, in four campaigns, written in every way a client can think of.

Invariant: the expected right stands here by the name of the handler, independently of the product's tables.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from unittest.mock import ANY

import attrs
import pytest
from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser, RawRequestMessage
from prometheus_client import CollectorRegistry

from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.metrics import Metrics
from vkubelet.provider import Host, LogOptions, PodRef, PodReport
from vkubelet.server import KubeletServer, ServerSettings
from vkubelet.server.app import series
from vkubelet.server.auth import Gate, Question
from vkubelet.server.settings import DebugSettings
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import PodTable

SEEDS, REQUESTS, A_BATCH = range(20261122, 20261126), 50_000, 1000
"""Each seed makes this many requests, in a test of its own."""

EXPECTED = {
    "ContainerLogs.serve": ("proxy",),
    "ContainerStreams.exec": ("proxy",),
    "ContainerStreams.attach": ("proxy",),
    "ContainerStreams.run": ("proxy",),
    "PortForwards.serve": ("proxy",),
    "NodeEndpoints.healthz": ("healthz", "proxy"),
    "NodeEndpoints.pods": ("pods", "proxy"),
    "NodeEndpoints.running_pods": ("pods", "proxy"),
    "NodeEndpoints.redirect_running_pods": ("pods", "proxy"),
    "NodeEndpoints.version": ("proxy",),
    "unsupported": ("checkpoint",),
    "UsageEndpoints.summary": ("stats",),
    "UsageEndpoints.metrics": ("metrics",),
    "MetricsEndpoints.serve": ("metrics",),
    "MetricsEndpoints.slis": ("metrics",),
    "NodeLogs.redirect": ("log",),
    "NodeLogs.serve": ("log",),
    "NodeEndpoints.configz": ("configz", "proxy"),
    "NodeEndpoints.tasks": ("proxy",),
}
"""Subresources of `nodes` by handler, from "Kubelet authentication/authorization" of the Kubernetes documentation and KEP-2862."""
INSIDE = {"ContainerStreams.exec", "ContainerStreams.attach", "ContainerStreams.run", "PortForwards.serve"}
DEBUGGING = INSIDE | {
    "ContainerLogs.serve",
    "NodeEndpoints.running_pods",
    "NodeEndpoints.redirect_running_pods",
    "NodeLogs.redirect",
    "NodeLogs.serve",
    "NodeEndpoints.tasks",
}
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

PATHS = (
    *(
        "/exec/ns/pod/app?command=id&output=1",
        "/exec/ns/pod/uid/app",
        "/attach/ns/pod/app",
        "/run/ns/pod/app?cmd=id",
        "/portForward/ns/pod",
    ),
    *("/portForward/ns/pod/uid", "/containerLogs/ns/pod/app?follow=true", "/checkpoint/ns/pod/app", "/pods", "/pods/", "/runningpods"),
    *("/runningpods/", "/healthz", "/healthz/ping", "/version", "/metrics", "/metrics/cadvisor", "/metrics/slis", "/metrics/resource"),
    *("/stats/summary", "/logs", "/logs/a/b", "/configz", "/debug/pprof", "/debug/pprof/", "/debug/pprof/goroutine", "/debug/flags/v"),
    *("/statusz", "/flagz", "/", "/nothing/here"),
)
METHODS = (*["GET"] * 8, *["POST"] * 3, "PUT", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "EXEC")
HEADERS = (
    b"",
    b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    b"X-Forwarded-Uri: /api/v1/nodes/other/proxy/pods\r\n",
    b"X-HTTP-Method-Override: GET\r\nX-Original-URL: /healthz\r\n",
)
INSERTED = (
    b"/",
    b"//",
    b"/./",
    b"/../",
    b"..",
    b";",
    b";x=/pods",
    b"%2f",
    b"%2F",
    b"%2e%2e/",
    b"%00",
    b"%",
    b"%zz",
    b"%25",
    b"\\",
    b"?",
    b"#",
)
INSERTED += (b"%c3%28", b"%ff", b"\xff", b"\xc3\xa4", b"%e2%80%a8", b"+", b"%20", b"@", b":", b"*", b"{", b"%7Bname%7D")
PREFIXES = (b"/healthz/..", b"/pods/../", b"/metrics/%2e%2e", b"/", b"http://x", b"https://u@h:1", b"http:", b"//x", b"*", b"x:1", b"/;")


class Recording(Gate):
    """The gate, with an answer of the cluster that the test chooses; every caller is anonymous."""

    def __init__(self, settings: ServerSettings) -> None:
        clock = ManualClock()
        super().__init__(Client(Connection("http://127.0.0.1:1")), clock, settings=settings)
        self.asked: list[Question] = []
        self.allows: Callable[[], bool] = lambda: True

    async def may(self, question: Question) -> bool:
        self.asked.append(question)
        return self.allows()


class Provider:
    """Never called, as every handler is replaced."""

    async def run(self, host: Host) -> None: ...

    async def sync_pod(self, pod: object) -> None: ...

    async def delete_pod(self, pod: PodRef, grace: float) -> None: ...

    async def list_pods(self, node: str) -> list[PodReport]:
        return []

    async def stream_logs(self, pod: PodRef, container: str, options: LogOptions) -> None: ...


@attrs.define
class Door:
    """An application whose handlers only record that they ran."""

    settings: ServerSettings
    gate: Recording
    server: web.Server
    connection: web.RequestHandler
    ran: list[str]

    async def send(self, head: bytes) -> int:
        """The status of the answer; 0 when the parser refuses the request."""
        self.gate.asked.clear()
        self.ran.clear()
        parsed = parse(head)
        if parsed is None:
            return 0
        response = await self.server.request_handler(self.server.request_factory(*parsed, self.connection, ANY, ANY))
        return response.status


def parse(head: bytes) -> tuple[RawRequestMessage, StreamReader] | None:
    """As aiohttp reads the first request of a connection."""
    loop = asyncio.get_running_loop()
    try:
        messages, _, _ = HttpRequestParser(BaseProtocol(loop), loop, 2**16, max_line_size=2**16, max_field_size=2**16).feed_data(head)
    except HttpProcessingError:
        return None
    return messages[0] if messages else None


async def door(**settings: object) -> Door:
    chosen = ServerSettings(anonymous=True, main_port=False, **{"debug": DebugSettings(profiling=True), **settings})  # type: ignore[arg-type]
    gate, ran = Recording(chosen), list[str]()
    server = KubeletServer(
        provider=Provider(),  # type: ignore[arg-type]
        pods=PodTable(),
        client=Client(Connection("http://127.0.0.1:1")),
        clock=ManualClock(),
        metrics=Metrics(CollectorRegistry()),
        settings=chosen,
    )
    application = attrs.evolve(server._routes(), gate=gate).application()
    for route in application.router.routes():
        route._handler = recorder(route.handler.__qualname__, ran)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    assert runner.server is not None
    return Door(chosen, gate, runner.server, runner.server(), ran)


def recorder(name: str, ran: list[str]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        ran.append(name)
        return web.Response()

    return handle


def written(path: str, random: Random) -> bytes:
    """The path as some client may write it."""
    text = bytearray(path.encode())
    match random.randrange(8):
        case 0:
            return bytes(text)
        case 1 | 2 | 3:
            share = random.choice((0.05, 0.3, 1.0))
            text = bytearray(
                b"".join(b"%%%02x" % each if random.random() < share and each not in b"/?" else bytes((each,)) for each in text)
            )
        case 4:
            text = bytearray(bytes(text).replace(b"/", random.choice((b"//", b"%2f", b"/./", b"/x/../")), random.randrange(1, 4)))
        case 5:
            text = bytearray(random.choice(PREFIXES) + text)
        case 6:
            text = bytearray(text.swapcase() if random.random() < 0.5 else text[random.randrange(len(text)) :])
    for _ in range(random.choice((0, 0, 0, 0, 1, 1, 2))):
        at = random.randrange(len(text) + 1)
        text[at:at] = random.choice(INSERTED)
    return bytes(text)


@contextmanager
def without_collector() -> Iterator[None]:
    """A fifth of the time goes to searching the objects of all other tests for cycles."""
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def check(door: Door, method: str, context: str) -> None:
    """The handler that ran is one that these settings open, and exactly its right was asked for."""
    (name,) = door.ran
    assert door.settings.debug.handlers or name not in DEBUGGING, f"{context}: {name} ran"
    verb = "create" if door.settings.exec_needs_create and name in INSIDE else VERBS.get(method, "get")
    asked = [(each.verb, each.subresource) for each in door.gate.asked]
    right = [(verb, subresource) for subresource in EXPECTED[name]]
    assert asked and asked == right[: len(asked)], f"{context}: {name} ran after {asked}, it needs one of {right}"


async def batch(door: Door, random: Random, seed: int, ran: Counter[str]) -> None:
    for _ in range(A_BATCH):
        method, path = random.choice(METHODS), random.choice(PATHS)
        target = written(path, random)
        head = method.encode() + b" " + target + b" HTTP/1.1\r\nHost: x\r\n" + random.choice(HEADERS) + b"\r\n"
        door.gate.allows = lambda: random.random() < 0.8
        status = await door.send(head)
        context = f"seed {seed}, request {head!r}"
        assert status < 500, f"{context}: answered {status}"
        if door.ran:
            check(door, method, context)
            ran[door.ran[0]] += target != path.encode()


async def campaign(seed: int) -> None:
    random, ran = Random(seed), Counter[str]()
    handlers_off = DebugSettings(handlers=False, profiling=True)
    doors = [await door(), await door(exec_needs_create=True), await door(debug=handlers_off)]
    with without_collector():
        for number in range(REQUESTS // A_BATCH):
            await batch(doors[number % 3], random, seed, ran)
            if number % 20 == 0:
                gc.collect()
    # Each handler was reached by many spellings other than its own path.
    assert set(ran) == set(EXPECTED)
    assert min(ran.values()) >= REQUESTS // 2500, ran


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(each, marks=pytest.mark.long) for each in SEEDS[1:])])
async def test_a_handler_runs_only_by_exactly_the_right_it_needs(seed: int) -> None:
    await campaign(seed)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/pods", ("GET", "pods", "false")),
        ("GET", "/metrics", ("GET", "metrics", "false")),
        ("GET", "/metrics/resource", ("GET", "metrics/resource", "false")),
        ("GET", "/metrics/invented", ("GET", "metrics", "false")),
        ("POST", "/exec/a/b/c", ("POST", "exec", "true")),
        ("GET", "/debug/pprof/goroutine", ("GET", "debug", "true")),
        ("GET", "/secret-name/x", ("GET", "other", "false")),
        ("GET", "/", ("GET", "other", "false")),
        ("GET", "*", ("GET", "other", "false")),
        ("INVENTED", "/pods", ("other", "pods", "false")),
    ],
)
def test_a_request_counts_by_method_and_first_part_of_its_path(method: str, path: str, expected: tuple[str, str, str]) -> None:
    told = series(method, path)
    assert (told[0], told[1], told[3]) == expected
    assert told[2] == "readwrite"
