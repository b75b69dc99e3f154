"""What callers without credentials can take: connections, time, header bytes, memory, and lines of the log.

Invariant: no cluster is asked, as nobody here proves who they are; whoever waits for an end waits for that of the connection itself.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.integration.server.offline import ADDRESS, offline, unverified
from tests.integration.server.sessions import on_every_loop
from tests.support.program import eventually
from vkubelet.server import KubeletServer
from vkubelet.server.settings import LimitSettings
from vkubelet.server.tls import ServingTls

NEVER = 3600.0
REQUEST = b"GET /pods HTTP/1.1\r\nHost: n\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(server: KubeletServer) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(ADDRESS, server.main_port, ssl=unverified())
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ended(reader: asyncio.StreamReader, *, within: float = 20.0) -> bytes:
    """All that comes until the server closes the connection."""
    async with asyncio.timeout(within):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def asked(server: KubeletServer, request: bytes) -> bytes:
    async with connected(server) as (reader, writer):
        writer.write(request)
        return await ended(reader)


def limits(**values: float) -> LimitSettings:
    return LimitSettings(**{"handshake_timeout": NEVER, "head_timeout": NEVER, **values})  # type: ignore[arg-type]


async def certified(server: KubeletServer) -> None:
    await eventually(lambda: server.problem in (None, "no client CA yet"), "a certificate is there")


@on_every_loop
async def test_a_client_that_sends_no_request_is_closed_in_time() -> None:
    async with offline(limits=limits(head_timeout=0.5)) as server:
        await certified(server)
        async with connected(server) as (reader, _):
            assert await ended(reader) == b""


@on_every_loop
async def test_a_head_that_comes_byte_by_byte_is_not_waited_for() -> None:
    async with offline(limits=limits(head_timeout=0.5)) as server:
        await certified(server)
        async with connected(server) as (reader, writer):
            closed = asyncio.create_task(ended(reader))
            for byte in REQUEST * 100:
                writer.write(bytes((byte,)))
                if closed.done():
                    break
                await asyncio.sleep(0.05)
            assert await closed == b""


@on_every_loop
async def test_a_handshake_that_does_not_end_is_closed_in_time() -> None:
    async with offline(limits=limits(handshake_timeout=0.5)) as server:
        await certified(server)
        reader, writer = await asyncio.open_connection(ADDRESS, server.main_port)
        assert await ended(reader) == b""
        writer.close()
        await eventually(lambda: len(server._listeners.strangers) == 0, "its place is free")


@on_every_loop
async def test_strangers_have_few_places_and_the_oldest_makes_room() -> None:
    async with offline(limits=limits(unauthenticated_connections=5)) as server, AsyncExitStack() as stack:
        await certified(server)
        held = [await stack.enter_async_context(connected(server)) for _ in range(4)]
        silent = socket.create_connection((ADDRESS, server.main_port or 0))
        stack.callback(silent.close)
        await eventually(lambda: len(server._listeners.strangers) == 5, "all places are taken")
        # Each finds a place all the same, though nobody left by himself.
        for _ in range(3):
            assert (await asked(server, REQUEST)).startswith(b"HTTP/1.1 401 ")
            assert len(server._listeners.strangers) <= 5
        assert await ended(held[0][0]) == b""


@on_every_loop
async def test_connections_that_come_at_once_take_no_more_places_than_there_are() -> None:
    async with offline(limits=limits(unauthenticated_connections=5)) as server, AsyncExitStack() as stack:
        await certified(server)
        # All are in the kernel's queue before the server accepts the first.
        for _ in range(40):
            stack.callback(socket.create_connection((ADDRESS, server.main_port or 0)).close)
        await eventually(lambda: len(server._listeners.strangers) >= 5, "all places are taken")
        assert len(server._listeners.strangers) == 5


async def test_a_burst_waits_for_places_and_none_of_it_is_closed() -> None:
    async with offline(limits=limits(unauthenticated_connections=4)) as server:
        await certified(server)
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(asked(server, REQUEST)) for _ in range(60)]
        assert all(answer.result().startswith(b"HTTP/1.1 401 ") for answer in answers)


class Odd(ServingTls):
    """Fails at each connection in a way that no library documents."""

    failed = 0

    @property
    def context(self) -> ssl.SSLContext:
        self.failed += 1
        raise LookupError("unexpected")

    @context.setter
    def context(self, context: ssl.SSLContext) -> None: ...


@on_every_loop
async def test_an_unexpected_error_of_one_connection_ends_no_other() -> None:
    async with offline() as server:
        await certified(server)
        async with connected(server) as (reader, writer):
            server._listeners._tls = odd = Odd.__new__(Odd)
            for _ in range(2):
                silent, closing = await asyncio.open_connection(ADDRESS, server.main_port)
                assert await ended(silent) == b""
                closing.close()
            assert (odd.failed, len(server._listeners.strangers)) == (2, 1)
            writer.write(REQUEST)
            assert (await ended(reader)).startswith(b"HTTP/1.1 401 ")


@on_every_loop
async def test_an_unauthorized_connection_serves_no_second_request() -> None:
    async with offline() as server:
        await certified(server)
        assert (await asked(server, REQUEST * 3)).count(b"HTTP/1.1 401 ") == 1
        await eventually(lambda: len(server._listeners.strangers) == 0, "its place is free")


@on_every_loop
@pytest.mark.parametrize("end", [b"\r\n\r\n", b""], ids=["whole", "endless"])
async def test_a_head_of_too_many_bytes_is_refused(end: bytes) -> None:
    async with offline(limits=limits(header_bytes=20_000)) as server:
        await certified(server)
        lines = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 1000) for number in range(25))
        answer = await asked(server, REQUEST[:-2] + lines + end)
        assert answer.startswith(b"HTTP/1.1 431 ")
        within = await asked(server, REQUEST[:-2] + lines[:15_000].rpartition(b"\r\n")[0] + b"\r\n\r\n")
        assert within.startswith(b"HTTP/1.1 401 ")


@on_every_loop
@pytest.mark.parametrize(
    "request_",
    [
        b"GET /%ff%fe/\xc3\x28 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01 nonsense\r\n\r\n",
        b"GET /pods HTTP/9.9\r\n\r\n",
        b"GET /pods HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"GET /pods HTTP/1.1\r\nAuthorization: Bearer \xff\r\n\r\n",
        b"GET /pods HTTP/1.1\r\nSec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.\xc3\xa4\r\n\r\n",
        b"GET /pods HTTP/1.1\r\nExpect: nonsense\r\n\r\n",
        b"GET /pods HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\n\r\n",
        b"GET /pods HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_nonsense_is_refused_without_a_trace(request_: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with offline() as server:
        await certified(server)
        caplog.clear()
        answer = await asked(server, request_)
    assert answer[9:12] in (b"400", b"401", b"417"), answer
    assert b"server:" not in answer.lower() and b"python" not in answer.lower() and b"aiohttp" not in answer.lower()
    assert not [record for record in caplog.records if record.name.partition(".")[0] in ("aiohttp", "asyncio") or record.exc_info]


async def test_idle_connections_cost_little_memory() -> None:
    most = 64
    async with offline(limits=limits(unauthenticated_connections=2 * most)) as server, AsyncExitStack() as stack:
        await certified(server)

        async def hold(count: int) -> None:
            for _ in range(count):
                client = await asyncio.to_thread(socket.create_connection, (ADDRESS, server.main_port or 0))
                held = await asyncio.to_thread(unverified().wrap_socket, client)
                stack.callback(held.close)

        await hold(2)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            await hold(most)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (after - before) // most < 100 * 1024
