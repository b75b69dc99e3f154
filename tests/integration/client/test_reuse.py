"""Which of the open connections is used for the next request."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.integration.client.test_fence import ANSWER
from vkubelet.api.objects import PODS
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client

TOGETHER = 4


async def test_a_burst_of_requests_does_not_keep_its_connections_open() -> None:
    """What is not used is closed after a minute: requests one after the other use one connection, and the others stay idle."""
    used: list[int] = []
    all_sent = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                used.append(writer.get_extra_info("peername")[1])
                if len(used) == TOGETHER:
                    all_sent.set()
                await all_sent.wait()
                writer.write(ANSWER)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Client(Connection(f"http://127.0.0.1:{port}")) as client:
            await asyncio.gather(*(client.list(PODS) for _ in range(TOGETHER)))
            for _ in range(2 * TOGETHER):
                await client.list(PODS)
    assert len(set(used[:TOGETHER])) == TOGETHER
    assert len(set(used[TOGETHER:])) == 1
