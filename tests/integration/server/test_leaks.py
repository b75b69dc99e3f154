"""What is left when clients leave at any moment, and what a client costs that does not read."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import socket
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.integration.server.backend import tls
from tests.integration.server.processes import children, descriptors
from tests.integration.server.shells import SPDY, WEBSOCKETS, Shells, shells_on
from tests.integration.server.test_negotiation import opened
from tests.integration.server.test_websocket import connected as websocket
from tests.support.program import eventually
from tests.support.spdy_client import SpdyClient, connected, data_frame, upgrade_request
from vkubelet.provider import ContainerIO
from vkubelet.server import spdy_frames as spdy
from vkubelet.server import wire
from vkubelet.testing.cluster import ControlPlane

V4 = "v4.channel.k8s.io"
ROUNDS, BY_KUBECTL, AT_ONCE = 1000, 24, 12
COMMANDS = ("command=cat", "command=yes", "command=sleep&command=1000", "command=true")
KINDS = ("error", "stdin", "stdout", "stderr", "resize")


async def leave_spdy(shells: Shells, chance: random.Random) -> None:
    """Stop after a random number of steps, each of which may be the last one of a client."""
    tty = chance.random() < 0.2
    path = shells.path("exec", f"input=1&output=1&error=1&tty={int(tty)}&{chance.choice(COMMANDS)}")
    kinds = [kind for kind in KINDS if kind != ("stderr" if tty else "resize")]
    async with connected(shells.endpoint.address, shells.endpoint.port, tls(shells.hub, certificate=True)) as client:
        steps = chance.randrange(9)
        if steps == 0:
            return
        if steps == 1:
            await client.send(upgrade_request(path, V4)[: chance.randrange(1, 200)])
            return
        await client.upgrade(upgrade_request(path, V4))
        for at, kind in enumerate(kinds[: steps - 1]):
            await client.send(client.open_frame(2 * at + 1, {"streamtype": kind}))
        if steps > 5:
            await client.send(data_frame(3, bytes(chance.randrange(100_000))))
        if steps > 6:
            await asyncio.sleep(chance.random() * 0.05)
        if steps > 7 and chance.random() < 0.5:
            await client.send(data_frame(3, b"", fin=True), spdy.goaway(0))


async def leave_websocket(shells: Shells, chance: random.Random) -> None:
    path = shells.path("exec", f"input=1&output=1&{chance.choice(COMMANDS)}")
    async with websocket(shells, path, chance.choice(["v4.channel.k8s.io", "base64.channel.k8s.io", "v5.channel.k8s.io"])) as client:
        steps = chance.randrange(4)
        if steps > 0:
            await client.receive()
        if steps > 1:
            await client.send(0, bytes(chance.randrange(50_000)))
        if steps > 2:
            await asyncio.sleep(chance.random() * 0.05)
        client.socket._response.close()


async def leave_port_forward(shells: Shells, chance: random.Random, *, port: int) -> None:
    async with shells.spdy(shells.path("portForward", ""), "portforward.k8s.io") as client:
        for pair in range(chance.randrange(4)):
            for at, kind in enumerate(("error", "data")[: chance.randrange(1, 3)]):
                headers = {"streamtype": kind, "port": str(port), "requestid": str(pair)}
                await client.send(client.open_frame(4 * pair + 2 * at + 1, headers))
                if kind == "data":
                    await client.send(data_frame(4 * pair + 3, bytes(chance.randrange(20_000)), fin=chance.random() < 0.3))
        await asyncio.sleep(chance.random() * 0.02)


async def leave_kubectl(shells: Shells, chance: random.Random) -> None:
    args = ("exec", "-i", shells.name, "-c", "app", "--", "sh", "-c", "echo begun; exec cat")
    async with shells.kubectl(*args, websockets=chance.random() < 0.5, stdin=PIPE) as kubectl:
        assert kubectl.stdout is not None
        if chance.random() < 0.5:
            await kubectl.stdout.readline()
        await asyncio.sleep(chance.random() * 0.1)
        kubectl.kill()


@asynccontextmanager
async def echo_port() -> AsyncIterator[int]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.timeout(900)
async def test_a_thousand_clients_that_leave_at_random_moments_leave_nothing(shells: Shells) -> None:
    """They are work, of which a busy machine does a small part at a time; what hangs, hangs for good."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with echo_port() as port:
        # Once of each, so that everything that is made once is there.
        for _ in range(3):
            for leave in (leave_spdy, leave_websocket, leave_kubectl):
                await leave(shells, chance)
            await leave_port_forward(shells, chance, port=port)
        await eventually(lambda: shells.backend.calls.running.total() == 0, "all calls have ended")
        await asyncio.sleep(0.5)
        gc.collect()
        before = (len(asyncio.all_tasks()), descriptors(), children())
        left = iter(range(ROUNDS))

        async def clients() -> None:
            for at in left:
                lot = chance.random()
                if at % (ROUNDS // BY_KUBECTL) == 0:
                    await leave_kubectl(shells, chance)
                elif lot < 0.25:
                    await leave_websocket(shells, chance)
                elif lot < 0.35:
                    await leave_port_forward(shells, chance, port=port)
                else:
                    await leave_spdy(shells, chance)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(clients())
        await eventually(lambda: shells.backend.calls.running.total() == 0, f"all calls have ended (seed {seed})")
        assert children() <= before[2]
        await eventually(lambda: len(asyncio.all_tasks()) <= before[0], f"no task is left (seed {seed})")
        # Each later than the client's: those of its pool, and of the API server's. Ours are kept for a minute.
        await eventually(lambda: descriptors() <= before[1], f"no descriptor is left (seed {seed})", seconds=90)
        assert not shells.backend.processes
        assert [shells.streams(kind) for kind in ("exec", "portforward")] == [0, 0]


@pytest.mark.parametrize("websockets", [WEBSOCKETS, SPDY], ids=["websockets", "spdy"])
async def test_a_client_that_goes_is_noticed_while_nothing_of_it_is_read(shells: Shells, *, websockets: bool) -> None:
    """The process takes no input, so there is more of it under way than anybody has room for, and the end of it comes behind all that."""
    path = shells.path("exec", "input=1&output=1&command=sleep&command=1000")
    async with AsyncExitStack() as stack:
        if websockets:
            socket = await stack.enter_async_context(websocket(shells, path, V4))
            send, leave = partial(socket.send, 0), socket.socket._response.close
        else:
            client = await stack.enter_async_context(shells.spdy(path, V4))
            await opened(client, "error", "stdin", "stdout")
            send, leave = lambda data: client.send(data_frame(3, data)), client.abort  # type: ignore[assignment]
        await eventually(lambda: shells.backend.calls.running["exec"] == 1, "the process runs")
        with pytest.raises(TimeoutError):
            while True:
                # Nothing was taken for a whole second.
                async with asyncio.timeout(1.0):
                    await send(bytes(256 * 1024))
        assert shells.backend.calls.running["exec"] == 1
        leave()
        await shells.until_idle()


async def test_killed_kubectl_is_noticed_while_nothing_of_it_is_read(shells: Shells) -> None:
    """In the mode in which the API server passes on what it gets; where it translates, it does not notice the loss itself."""
    args = ("exec", "-i", shells.name, "-c", "app", "--", "sh", "-c", "echo begun; exec sleep 1000")
    with open("/dev/zero", "rb") as zeros:
        async with shells.kubectl(*args, websockets=SPDY, stdin=zeros.fileno()) as kubectl:
            assert kubectl.stdout is not None
            assert await kubectl.stdout.readline() == b"begun\n"
            await asyncio.sleep(1.0)
            kubectl.kill()
            await shells.until_idle()


# --- Slow readers -------------------------------------------------------------------------------------------------------------------------

BOUND = 16 * 1024 * 1024
"""More than the kernel's buffers of both ends and our own together."""


class Flood:
    """A command that writes as fast as it is taken; `taken` bytes so far, `total` at most."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0
        self.written = False

    async def __call__(self, io: ContainerIO) -> int:
        while self.taken < self.total:
            piece = min(16 * 1024, self.total - self.taken)
            await io.write_stdout(bytes(piece))
            self.taken += piece
        self.written = True
        return 0


async def reads_nothing(shells: Shells, path: str) -> SpdyClient:
    """A client with small buffers that has opened its streams."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (shells.endpoint.address, shells.endpoint.port))
    context = tls(shells.hub, certificate=True)
    reader, writer = await asyncio.open_connection(sock=connection, ssl=context, server_hostname=shells.endpoint.address, limit=16 * 1024)
    client = SpdyClient(reader, writer)
    assert await client.upgrade(upgrade_request(path, V4)) == 101
    for at, kind in enumerate(("error", "stdout")):
        await client.send(client.open_frame(2 * at + 1, {"streamtype": kind}))
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return client


async def standstill(flood: Flood) -> int:
    """How much was taken when no more is."""
    taken = -1
    while taken != flood.taken or not taken:
        taken = flood.taken
        await asyncio.sleep(0.5)
    return taken


def resident() -> int:
    """Memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_a_client_that_does_not_read_costs_no_memory_and_holds_up_nobody(shells: Shells) -> None:
    floods = [Flood(10**12) for _ in range(4)]
    waiting = iter(floods)
    before = resident()

    async def exec(pod: object, container: object, command: object, io: ContainerIO) -> int:
        return await next(waiting)(io) if command == ["flood"] else 0

    real, shells.backend.exec = shells.backend.exec, exec  # type: ignore[method-assign, assignment]
    clients = [await reads_nothing(shells, shells.path("exec", "output=1&command=flood")) for _ in floods]
    try:
        for flood in floods:
            assert await standstill(flood) < BOUND
        assert resident() - before < len(floods) * BOUND
        shells.backend.exec = real  # type: ignore[method-assign]
        ran = await shells.exec("echo", "still quick")
        assert ran.stdout == b"still quick\n"
        async with websocket(shells, shells.path("exec", "output=1&command=yes"), V4) as other:
            while len(other.got.get(1, b"")) < 3_000_000:
                assert await other.receive()
        assert all(not flood.written for flood in floods)
    finally:
        for client in clients:
            client.abort()


async def test_a_slow_client_gets_everything_however_late_it_reads(
    hub: ControlPlane, streams_namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All was written and the process has ended, but the last of it still waits in our own buffers."""
    monkeypatch.setattr(wire, "_STALLED", 0.5)
    async with shells_on(hub, streams_namespace, tmp_path) as shells:
        flood = Flood(10**12)

        async def exec(pod: object, container: object, command: object, io: ContainerIO) -> int:
            return await flood(io)

        shells.backend.exec = exec  # type: ignore[method-assign, assignment]
        client = await reads_nothing(shells, shells.path("exec", "output=1&command=flood"))
        most = await standstill(flood)
        client.abort()
        flood = Flood(most - 32 * 1024)
        client = await reads_nothing(shells, shells.path("exec", "output=1&command=flood"))
        try:
            await eventually(lambda: flood.written, "all was written")
            # Longer than a connection is given to close.
            await asyncio.sleep(2.0)
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert len(await client.read_stream(3)) == flood.total
            assert json.loads(await client.read_stream(1))["status"] == "Success"
        finally:
            client.abort()
