"""A server with TLS on loopback, and a loop of either kind to play against it.

Invariant: the connection trusts the server's own CA, and nothing else.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from vkubelet.client.connection import Connection
from vkubelet.client.tls import Pem, Tls, TlsSource
from vkubelet.clock import SystemClock
from vkubelet.testing.cluster.pki import Authority

Loop = Callable[[], asyncio.AbstractEventLoop]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

loops = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@asynccontextmanager
async def encrypted(directory: Path, handler: Handler) -> AsyncIterator[Connection]:
    """Serves each connection with `handler`; yields what a client needs."""
    authority = Authority.create("server", SystemClock())
    files = authority.server("server", ["127.0.0.1"]).write(directory, "server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    async with await asyncio.start_server(handler, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        source = TlsSource(Pem("the server's CA", authority.pair.certificate))
        yield Connection(f"https://127.0.0.1:{port}", tls=Tls(source))


def play(run: Coroutine[None, None, None], loop: Loop) -> None:
    """Runs in a separate thread, as the loop is not the one of the tests."""

    def in_thread() -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(run)

    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(in_thread).result()
