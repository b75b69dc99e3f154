"""Sessions in which nothing is said: the API server's pings keep them open, and only those that are silent in every way are closed."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE
from contextlib import AsyncExitStack
from pathlib import Path

from tests.integration.server.shells import SPDY, WEBSOCKETS, shells_on
from tests.integration.server.test_negotiation import V4, opened
from tests.integration.server.test_port_forward import echo, forwarded, listening
from tests.support.program import PATIENCE
from vkubelet.server import spdy_frames as spdy
from vkubelet.testing.cluster import ControlPlane

IDLE = 20.0
"""Twice the time between two pings, so that one may be late: 5 s between those of the API server, 10 s between those of kubectl."""


async def test_idle_sessions_outlive_the_limit_by_their_pings_and_silent_ones_do_not(
    hub: ControlPlane, streams_namespace: str, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        shells = await stack.enter_async_context(shells_on(hub, streams_namespace, tmp_path, stream_idle_timeout=IDLE))
        port = await stack.enter_async_context(listening(echo))
        args = ("exec", "-i", shells.name, "-c", "app", "--", "cat")
        executing = [await stack.enter_async_context(shells.kubectl(*args, websockets=mode, stdin=PIPE)) for mode in (WEBSOCKETS, SPDY)]
        forwards = [await stack.enter_async_context(forwarded(shells, port, websockets=mode)) for mode in (WEBSOCKETS, SPDY)]
        connections = [await asyncio.open_connection("127.0.0.1", local) for _, local in forwards]
        silent = await stack.enter_async_context(shells.spdy(shells.path("exec", "input=1&output=1&command=cat"), V4))
        await opened(silent, "error", "stdin", "stdout")
        began = asyncio.get_running_loop().time()
        frames = await silent.until_closed(within=2 * IDLE)
        assert asyncio.get_running_loop().time() - began > IDLE - 1
        assert spdy.Reset(1, spdy.CANCEL) in frames
        await asyncio.sleep(began + 1.35 * IDLE - asyncio.get_running_loop().time())
        async with asyncio.timeout(PATIENCE):
            for kubectl in executing:
                assert kubectl.stdin is not None and kubectl.stdout is not None
                kubectl.stdin.write(b"still here\n")
                assert await kubectl.stdout.readline() == b"still here\n"
            for reader, writer in connections:
                writer.write(b"here too")
                assert await reader.readexactly(8) == b"here too"
                writer.close()
