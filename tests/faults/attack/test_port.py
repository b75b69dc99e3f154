"""Floods of connections and credentials that are used again, against the kubelet port.

Invariant: what is served meanwhile is asked over connections of their own, as an API server does.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.faults.attack import port as ports
from tests.faults.attack.memory import resident
from tests.faults.attack.port import FrozenLoop, Port, Reviews
from tests.integration.server.offline import ADDRESS, unverified
from tests.support.program import eventually
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.clock import SystemClock
from vkubelet.metrics import Metrics
from vkubelet.server import KubeletServer, ServerSettings
from vkubelet.server.auth import ALLOW_HELD, TOKEN_HELD
from vkubelet.testing.host import PodTable
from vkubelet_providers.mock import Mock

IDLE = 10_000
ADMIN_TOKEN = "t0ken-of-the-admin"
HEALTHZ = f"GET /healthz HTTP/1.1\r\nHost: n\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n\r\n".encode()
HELD = 64 << 20
"""Bytes that the process may hold more during a flood; the flood's own sockets are in it."""


@asynccontextmanager
async def listening() -> AsyncIterator[KubeletServer]:
    """A server on loopback; the hub that reviews its callers is in memory."""
    client = Client(Connection("https://hub.invalid"))
    client.transport = Reviews()  # type: ignore[assignment]
    settings = ServerSettings(bind_address=ADDRESS, node_address=ADDRESS, main_port=0, certificate="self-signed", client_ca_file="")
    made = KubeletServer(
        provider=Mock(),
        pods=PodTable(),
        client=client,
        clock=SystemClock(),
        metrics=Metrics(CollectorRegistry()),
        settings=settings,
    )
    async with made as server, asyncio.TaskGroup() as group:
        certify = group.create_task(server._ports._certify(server._until_addresses_known))
        await eventually(lambda: server.problem is None, "a certificate is there")
        yield server
        certify.cancel()


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Raises the limit of open files; the hard limit takes root."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = hard if hard == resource.RLIM_INFINITY else max(hard, count)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), raised))
    except (ValueError, OSError):
        pytest.fail(f"this test needs {count} open files; raise the hard limit `nofile` from {hard}")
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def flooded(port: int, count: int, stack: ExitStack) -> None:
    """Opens connections on which nothing is ever sent; those that find no place wait in the kernel."""
    for _ in range(count):
        client = socket.socket()
        stack.callback(client.close)
        client.setblocking(False)
        assert client.connect_ex((ADDRESS, port)) in (0, errno.EINPROGRESS)


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(HEALTHZ)
    head = await reader.readuntil(b"\r\n\r\n")
    return head + await reader.readexactly(2)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_ten_thousand_idle_connections_cost_neither_memory_nor_service() -> None:
    with descriptors(IDLE + 2000), ExitStack() as flood:
        async with listening() as server:
            reader, writer = await asyncio.open_connection(ADDRESS, server.main_port, ssl=unverified())
            assert (await asked(reader, writer)).endswith(b"ok")
            files, held = open_files(), resident()
            flooded(server.main_port or 0, IDLE, flood)
            strangers = server._listeners.strangers
            await eventually(lambda: len(strangers) >= server.settings.limits.unauthenticated_connections, "all places are taken")
            for _ in range(20):
                assert (await asked(reader, writer)).startswith(b"HTTP/1.1 200 ")
                assert len(strangers) <= server.settings.limits.unauthenticated_connections
                assert open_files() <= files + IDLE + server.settings.limits.unauthenticated_connections + 16
            assert resident() - held < HELD
            flood.close()
            await eventually(lambda: len(strangers) == 0, "all places are free")
            second = await asyncio.open_connection(ADDRESS, server.main_port, ssl=unverified())
            assert (await asked(*second)).endswith(b"ok")
            for each in (writer, second[1]):
                each.transport.abort()


# --- Credentials that are used again ---------------------------------------------------------------------------------------------------


def in_memory(scene: Callable[[Port], Awaitable[None]]) -> None:
    """Runs a scene on a port without a network, whose time stands still."""

    async def run() -> None:
        async with ports.serving() as port:
            await scene(port)

    with asyncio.Runner(loop_factory=FrozenLoop) as runner:
        runner.run(run())


async def status(port: Port, token: str, path: str = "/healthz") -> int:
    """The answer to a request with this token, over a connection of its own."""
    caller = port.connect(None)
    caller.send(f"GET {path} HTTP/1.1\r\nHost: n\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    await port.settle()
    answer = bytes(caller.line.sent)
    caller.leave()
    await port.check()
    return int(answer.split()[1])


def test_a_token_that_is_revoked_is_refused_once_its_review_is_too_old() -> None:
    async def scene(port: Port) -> None:
        assert await status(port, ADMIN_TOKEN) == 200
        port.reviews.tokens.clear()
        assert await status(port, ADMIN_TOKEN) == 200
        await port.advance(TOKEN_HELD)
        assert await status(port, ADMIN_TOKEN) == 401

    in_memory(scene)


def test_a_right_that_is_withdrawn_is_refused_once_its_review_is_too_old() -> None:
    async def scene(port: Port) -> None:
        assert await status(port, ADMIN_TOKEN) == 200
        port.reviews.rights[ports.ADMIN] = frozenset()
        await port.advance(ALLOW_HELD)
        assert await status(port, ADMIN_TOKEN) == 403

    in_memory(scene)


@pytest.mark.parametrize(
    "token", [f"{ADMIN_TOKEN} ", f"{ADMIN_TOKEN}x", ADMIN_TOKEN[:-1], ADMIN_TOKEN.upper(), f"x{ADMIN_TOKEN}", "null", "%00"]
)
def test_only_the_very_token_opens_the_port(token: str) -> None:
    async def scene(port: Port) -> None:
        assert await status(port, ADMIN_TOKEN) == 200
        assert await status(port, token) == (200 if token.strip() == ADMIN_TOKEN else 401)

    in_memory(scene)


RUNS_INSIDE = (
    "GET /exec/ns/pod/app?command=id&output=1",
    "POST /exec/ns/pod/app?command=id&output=1",
    "POST /run/ns/pod/app?cmd=id",
    "GET /attach/ns/pod/app?output=1",
    "GET /portForward/ns/pod?port=80",
    "GET /containerLogs/ns/pod/app",
    "GET /logs/../exec/ns/pod/app?command=id&output=1",
    "GET /logs/%2e%2e/exec/ns/pod/app?command=id&output=1",
    "GET //exec/ns/pod/app?command=id&output=1",
    "GET /exec/ns/pod/app/?command=id&output=1",
    "GET /logs/..%2fexec/ns/pod/app?command=id&output=1",
)


@pytest.mark.parametrize("request_", RUNS_INSIDE)
@pytest.mark.parametrize("upgrade", ["", "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n", "Connection: Upgrade\r\nUpgrade: websocket\r\n"])
@pytest.mark.parametrize("by", ["certificate", "token"])
def test_the_right_to_read_log_files_of_a_node_opens_no_pod(request_: str, upgrade: str, by: str) -> None:
    """In every spelling; over a connection on which a request for a log file was just allowed."""

    async def scene(port: Port) -> None:
        caller = port.connect(ports.LOGS if by == "certificate" else None)
        bearer = "" if by == "certificate" else "Authorization: Bearer t0ken-of-the-reader\r\n"
        caller.send(f"GET /logs/mock.log HTTP/1.1\r\nHost: n\r\n{bearer}\r\n".encode())
        await port.settle()
        assert bytes(caller.line.sent).startswith(b"HTTP/1.1 200 ")
        del caller.line.sent[:]
        caller.send(f"{request_} HTTP/1.1\r\nHost: n\r\n{bearer}{upgrade}X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n".encode())
        await port.advance(5.0)
        assert int(bytes(caller.line.sent).split()[1]) in (403, 404)
        assert set(port.served) <= {"NodeLogs.serve"}
        caller.leave()
        await port.check()

    in_memory(scene)
