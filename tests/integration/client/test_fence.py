"""Where a write is stopped whose process may no longer write."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from attrs import define, field

from tests.integration.client.test_gathered import loops
from vkubelet.api.objects import PODS, Key
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.client.tls import Pem, Tls, TlsSource
from vkubelet.clock import SystemClock
from vkubelet.errors import Fenced
from vkubelet.testing.cluster.pki import Authority

LIST = b'{"metadata":{},"items":[]}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(LIST), LIST)


@define
class Server:
    """An API server with empty lists; `requests` are the verbs that it received."""

    connection: Connection
    requests: list[bytes] = field(factory=list)


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Server]:
    authority = Authority.create("server", SystemClock())
    files = authority.server("server", ["127.0.0.1"]).write(directory, "server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                served.requests.append(head.partition(b" ")[0])
                writer.write(ANSWER)
        writer.close()

    async with await asyncio.start_server(receive, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        source = TlsSource(Pem("the server's CA", authority.pair.certificate))
        served = Server(Connection(f"https://127.0.0.1:{port}", tls=Tls(source)))
        yield served


class Fence:
    """Closes at its second check."""

    checks = 0

    def check(self) -> None:
        self.checks += 1
        if self.checks > 1:
            raise Fenced("another process leads")


@loops
def test_a_write_that_waited_for_its_connection_is_not_sent_after_the_fence_closed(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def run() -> None:
        async with serving(tmp_path) as server, Client(server.connection) as client:
            for reads in (0, 1):
                for _ in range(reads):
                    await client.list(PODS)
                with pytest.raises(Fenced):
                    await client.fenced(Fence()).patch(PODS, Key("ns", "pod"), {"metadata": {"labels": {"a": "b"}}})
        assert server.requests == [b"GET"], "neither on a new connection nor on one that is open"

    # In a thread of its own, as the loop is not the one of the tests.
    with ThreadPoolExecutor(max_workers=1) as pool, asyncio.Runner(loop_factory=loop) as runner:
        pool.submit(runner.run, run()).result()
