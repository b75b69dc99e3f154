"""Where a write is stopped whose process may no longer write."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.client.encrypted import Loop, encrypted, loops, play
from vkubelet.api.objects import PODS, Key
from vkubelet.client.rest import Client
from vkubelet.errors import Fenced

LIST = b'{"metadata":{},"items":[]}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(LIST), LIST)


class Fence:
    """Closes at its second check."""

    checks = 0

    def check(self) -> None:
        self.checks += 1
        if self.checks > 1:
            raise Fenced("another process leads")


@loops
def test_a_write_that_waited_for_its_connection_is_not_sent_after_the_fence_closed(tmp_path: Path, loop: Loop) -> None:
    verbs: list[bytes] = []

    async def list_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                verbs.append(head.partition(b" ")[0])
                writer.write(ANSWER)
        writer.close()

    async def run() -> None:
        async with encrypted(tmp_path, list_nothing) as connection, Client(connection) as client:
            for reads in (0, 1):
                for _ in range(reads):
                    await client.list(PODS)
                with pytest.raises(Fenced):
                    await client.fenced(Fence()).patch(PODS, Key("ns", "pod"), {"metadata": {"labels": {"a": "b"}}})
        assert verbs == [b"GET"], "neither on a new connection nor on one that is open"

    play(run(), loop)
