"""Which failures of a real connection show that the server is silent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from vkubelet.client.connection import Connection, Timeouts
from vkubelet.client.rest import Client
from vkubelet.client.tls import Tls, TlsSource
from vkubelet.errors import Unreachable


@asynccontextmanager
async def _listening(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _failure(url: str, *, tls: bool = True, proxy: str = "") -> Unreachable:
    connection = Connection(url, tls=Tls(TlsSource()) if tls else None, timeouts=Timeouts(read=0.6, connect=0.3), proxy=proxy)
    async with Client(connection) as client:
        with pytest.raises(Unreachable) as caught:
            await client.request("GET", "/readyz")
    return caught.value


async def _never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take whatever comes and answer nothing."""
    with contextlib.suppress(OSError):
        while await reader.read(1024):
            pass
    writer.close()


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def test_no_connection_to_the_server_is_silence() -> None:
    async with _listening(_never) as port:
        assert (await _failure(f"https://127.0.0.1:{port}")).silent
    # The server has ended: its port refuses.
    assert (await _failure(f"https://127.0.0.1:{port}")).silent
    async with _listening(_reset) as port:
        assert (await _failure(f"https://127.0.0.1:{port}")).silent


async def test_a_server_that_accepts_the_connection_is_not_silent() -> None:
    async with _listening(_never) as port:
        assert not (await _failure(f"http://127.0.0.1:{port}", tls=False)).silent


async def test_a_proxy_that_does_not_answer_says_nothing_of_the_server() -> None:
    async with _listening(_reset) as port:
        assert not (await _failure("https://192.0.2.1", proxy=f"http://127.0.0.1:{port}")).silent
    assert not (await _failure("https://192.0.2.1", proxy=f"http://127.0.0.1:{port}")).silent
