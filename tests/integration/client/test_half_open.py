"""Streams whose other end does not answer, or has vanished."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tests.support.program import eventually
from vkubelet.api.objects import PODS
from vkubelet.client.connection import Connection, Timeouts
from vkubelet.client.rest import Client
from vkubelet.client.tls import Tls, TlsSource
from vkubelet.client.transport import OPENED_AT_ONCE
from vkubelet.errors import Unreachable


@asynccontextmanager
async def mute_proxy() -> AsyncIterator[str]:
    """Accepts connections and never answers CONNECT."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(1024):
                pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def watch(client: Client) -> None:
    await anext(client.watch(PODS, since="5"))


async def stream(client: Client) -> None:
    async with client.stream("/api/v1/namespaces/d/pods/p/log"):
        pytest.fail("nothing was connected")


@pytest.mark.parametrize("attempt", [watch, stream], ids=lambda attempt: attempt.__name__)
async def test_a_proxy_that_does_not_answer_ends_the_attempt(attempt: Callable[[Client], Awaitable[None]]) -> None:
    async with mute_proxy() as proxy:
        timeouts = Timeouts(read=0.3, connect=0.3, silence=0.3)
        connection = Connection("https://192.0.2.1", tls=Tls(TlsSource()), timeouts=timeouts, proxy=proxy)
        async with Client(connection) as client:
            with pytest.raises(Unreachable):
                # Without a limit it would hang until the limit of the test.
                await asyncio.wait_for(attempt(client), 20)


async def test_every_connection_notices_that_the_other_end_has_vanished(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[socket.socket]()
    connect = asyncio.get_running_loop().sock_connect

    async def noted(made: socket.socket, address: object) -> None:
        opened.append(made)
        await connect(made, address)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", noted)
    app = web.Application()
    app.router.add_get("/log", lambda request: web.Response(text="line"))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with Client(Connection(f"http://127.0.0.1:{runner.addresses[0][1]}")) as client, client.stream("/log") as chunks:
        assert [chunk async for chunk in chunks] == [b"line"]
        (used,) = opened
        assert used.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, every, count = (used.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{name}")) for name in ("IDLE", "INTVL", "CNT"))
        assert idle + every * count <= 60
        assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
    await runner.cleanup()


async def test_few_connections_are_opened_at_once_and_all_in_the_end() -> None:
    waiting, at_once = list[asyncio.StreamWriter](), list[int]()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting.append(writer)
        at_once.append(len(waiting))
        if await reader.read(1024):
            # A TLS handshake begins; the rest of it never comes.
            await reader.read()

    async def ask(client: Client) -> None:
        with pytest.raises(Unreachable):
            await client.request("GET", "/readyz")

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    connection = Connection(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", tls=Tls(TlsSource()))
    async with server, Client(connection) as client, asyncio.TaskGroup() as group:
        asking = [group.create_task(ask(client)) for _ in range(3 * OPENED_AT_ONCE)]
        while not all(task.done() for task in asking):
            await eventually(lambda: len(waiting) >= min(OPENED_AT_ONCE, sum(not task.done() for task in asking)), "connections are opened")
            for writer in waiting:
                writer.close()
            waiting.clear()
            await eventually(lambda: waiting or all(task.done() for task in asking), "the next follow")
    assert max(at_once) == OPENED_AT_ONCE and len(at_once) == len(asking)
