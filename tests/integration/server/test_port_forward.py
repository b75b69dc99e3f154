"""`kubectl port-forward` through a real API server, and the streams below it with a client that sends what it is told."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import struct
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as k8s
from kubernetes.stream import portforward

from tests.integration.server.backend import call
from tests.integration.server.shells import NOTICED, SPDY, WEBSOCKETS, Shells, shells_on
from tests.integration.server.test_websocket import connected as websocket
from tests.integration.tries import median_within
from tests.support.program import PATIENCE, eventually
from tests.support.spdy_client import SpdyClient, data_frame
from tests.support.witness import api_client
from vkubelet.errors import NoSuchPod
from vkubelet.server import spdy_frames as spdy
from vkubelet.testing.cluster import ControlPlane

both_modes = pytest.mark.parametrize("websockets", [WEBSOCKETS, SPDY], ids=["websockets", "spdy"])
PROTOCOL = "portforward.k8s.io"


@asynccontextmanager
async def listening(serve: Callable[[StreamReader, StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    """A server inside the pod; its port."""

    async def closing(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(closing, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def echo(reader: StreamReader, writer: StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def answer_at_the_end(reader: StreamReader, writer: StreamWriter) -> None:
    """First all is read, to the end, and only then answered."""
    data = await reader.read()
    writer.write(b"%d bytes\n" % len(data))
    await writer.drain()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Nobody listens there, and nobody else can begin to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@asynccontextmanager
async def forwarded(shells: Shells, port: int, *, websockets: bool) -> AsyncIterator[tuple[Process, int]]:
    """A kubectl that forwards to `port`, and its local port."""
    async with shells.kubectl("port-forward", shells.name, f":{port}", "--address=127.0.0.1", websockets=websockets) as kubectl:
        assert kubectl.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = (await kubectl.stdout.readline()).decode()
        found = re.search(r"127\.0\.0\.1:(\d+) -> ", line)
        assert found, line
        yield kubectl, int(found[1])


async def exchange(port: int, data: bytes) -> bytes:
    """Send all and say so, then read all."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


@both_modes
async def test_fifty_connections_at_once(shells: Shells, *, websockets: bool) -> None:
    async with listening(echo) as port, forwarded(shells, port, websockets=websockets) as (_, local):

        async def both_ways(number: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", local)
            data = os.urandom(100_000) + str(number).encode()
            writer.write(data)
            assert await reader.readexactly(len(data)) == data
            reached.append(number)
            await everybody.wait()
            writer.write(b"bye")
            assert await reader.readexactly(3) == b"bye"
            writer.close()

        reached: list[int] = []
        everybody = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(both_ways(number))
            await eventually(lambda: len(reached) == 50, "all fifty are open and have their data")
            assert shells.backend.calls.running["portforward"] == 50
            assert shells.streams("portforward") == 1
            everybody.set()
        await shells.until_idle()


@both_modes
async def test_a_client_that_has_said_all_still_gets_its_answer(shells: Shells, *, websockets: bool) -> None:
    async with listening(answer_at_the_end) as port, forwarded(shells, port, websockets=websockets) as (_, local):
        async with asyncio.timeout(PATIENCE):
            assert await exchange(local, bytes(300_000)) == b"300000 bytes\n"
            assert await exchange(local, b"") == b"0 bytes\n"
        await shells.until_idle()


@both_modes
async def test_a_port_where_nobody_listens(shells: Shells, closed_port: int, *, websockets: bool) -> None:
    port = closed_port
    async with forwarded(shells, port, websockets=websockets) as (kubectl, local), asyncio.timeout(PATIENCE):
        assert await exchange(local, b"") == b""
        # kubectl gives the whole session up for that.
        _, stderr = await kubectl.communicate()
    uid = shells.pod.metadata.uid
    assert f"error forwarding port {port} to pod {shells.name}, uid {uid}: connection refused" in stderr.decode()


@both_modes
async def test_killed_kubectl_closes_its_connections_within_two_seconds(shells: Shells, *, websockets: bool) -> None:
    async def once() -> float:
        async with listening(echo) as port, forwarded(shells, port, websockets=websockets) as (kubectl, local):
            connections = [await asyncio.open_connection("127.0.0.1", local) for _ in range(5)]
            for reader, writer in connections:
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
            kubectl.kill()
            seconds = await shells.until_idle()
            for _, writer in connections:
                writer.close()
        return seconds

    await median_within(NOTICED, once, "the end of a killed kubectl's connections")


# --- Streams ------------------------------------------------------------------------------------------------------------------------------


async def open_pair(client: SpdyClient, number: int, port: int, **headers: str) -> None:
    """The error stream `number`, whose side the client closes at once, and the data stream after it."""
    for kind, stream in (("error", number), ("data", number + 2)):
        await client.send(client.open_frame(stream, {"streamtype": kind, "port": str(port), **headers}))
        assert (await client.next(spdy.SynReply)).stream == stream
    await client.send(data_frame(number, b"", fin=True))


async def test_a_pod_that_has_said_all_still_hears_the_client(shells: Shells) -> None:
    heard: list[bytes] = []

    async def ends_first(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(b"that is all")
        writer.write_eof()
        heard.append(await reader.read())

    async with listening(ends_first) as port, shells.spdy(shells.path("portForward", ""), PROTOCOL) as client:
        # Old clients have no request id.
        for number, headers in ((1, {"requestid": "0"}), (5, {})):
            await open_pair(client, number, port, **headers)
            assert await client.read_stream(number + 2) == b"that is all"
            assert not [frame for frame in client.frames if isinstance(frame, spdy.Data) and frame.stream == number]
            await client.send(data_frame(number + 2, b"still "), data_frame(number + 2, b"talking", fin=True))
            assert await client.read_stream(number) == b"", "no error"
        await eventually(lambda: heard == [b"still talking"] * 2, "the pod has heard it")
        await shells.until_idle()


async def test_errors_are_told_on_the_error_stream_and_then_both_are_reset(shells: Shells, closed_port: int) -> None:
    uid, port = shells.pod.metadata.uid, closed_port
    async with listening(echo) as other, shells.spdy(shells.path("portForward", ""), PROTOCOL) as client:
        for number, failure, text in (
            (1, None, "connection refused"),
            (5, NoSuchPod("it went away"), "it went away"),
            (9, OSError("secret insides"), "connection failed"),
            (13, NotImplementedError("who knows"), "not implemented by the provider of this node"),
        ):
            shells.backend.failure = failure
            await open_pair(client, number, port, requestid=str(number))
            told = await client.next(spdy.Data, lambda frame, error=number: frame.stream == error)  # type: ignore[misc]
            assert told.data.decode() == f"error forwarding port {port} to pod {shells.name}, uid {uid}: {text}"
            resets = [await client.next(spdy.Reset) for _ in range(2)]
            assert {reset.stream for reset in resets} == {number, number + 2}
        shells.backend.failure = None
        # The session is none the worse for it.
        await open_pair(client, 17, other, requestid="17")
        await client.send(data_frame(19, b"fine", fin=True))
        assert await client.read_stream(19) == b"fine"


async def test_a_connection_that_the_client_gives_up_is_closed_without_a_word(shells: Shells) -> None:
    async with listening(echo) as port, shells.spdy(shells.path("portForward", ""), PROTOCOL) as client:
        await open_pair(client, 1, port, requestid="a")
        await client.send(data_frame(3, b"x"))
        await client.next(spdy.Data, lambda frame: frame.data == b"x")
        await client.send(spdy.rst_stream(3, spdy.CANCEL))
        assert await client.read_stream(1) == b""
        await shells.until_idle()


@pytest.mark.parametrize(
    "headers",
    [
        {"streamtype": "data"},
        {"streamtype": "data", "port": "0"},
        {"streamtype": "data", "port": "65536"},
        {"streamtype": "data", "port": "http"},
        {"port": "80"},
        {"streamtype": "stdin", "port": "80"},
    ],
)
async def test_streams_that_are_not_understood_are_refused(shells: Shells, headers: dict[str, str]) -> None:
    async with shells.spdy(shells.path("portForward", ""), PROTOCOL) as client:
        await client.send(client.open_frame(1, headers))
        assert (await client.next(spdy.Reset)).stream == 1


async def test_second_stream_of_one_kind_is_an_error_and_half_a_pair_after_a_timeout(
    hub: ControlPlane, streams_namespace: str, tmp_path: Path
) -> None:
    async with shells_on(hub, streams_namespace, tmp_path, stream_creation_timeout=1.0) as shells:
        async with shells.spdy(shells.path("portForward", ""), PROTOCOL) as client:
            for number in (1, 3):
                await client.send(client.open_frame(number, {"streamtype": "error", "port": "80", "requestid": "7"}))
            assert (await client.next(spdy.Reset)).stream == 3
            told = await client.next(spdy.Data)
            assert told == spdy.Data(1, b"error processing stream for request 7: error stream already assigned")
            told = await client.next(spdy.Data)
            assert told == spdy.Data(1, b"(request=7) timed out waiting for streams")
            assert (await client.next(spdy.Reset)).stream == 1
        assert shells.backend.calls.running.total() == 0


async def test_connections_one_after_another_leave_nothing_in_their_session(shells: Shells) -> None:
    async with listening(echo) as port, shells.spdy(shells.path("portForward", ""), PROTOCOL) as client:
        tasks = -1
        for at in range(300):
            number = 4 * at + 1
            await open_pair(client, number, port, requestid=str(at))
            await client.send(data_frame(number + 2, b"x", fin=True))
            assert await client.read_stream(number + 2) == b"x"
            assert await client.read_stream(number) == b""
            if at == 10:
                tasks = len(asyncio.all_tasks())
        await shells.until_idle()
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks + 2, "no task is left")


# --- WebSocket ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["", "v4.channel.k8s.io", "v4.base64.channel.k8s.io"])
@pytest.mark.parametrize("form", ["port={}&port={}", "port={},{}"])
async def test_two_ports_over_one_websocket(shells: Shells, protocol: str, form: str) -> None:
    async def shout(reader: StreamReader, writer: StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data.upper())

    async with listening(echo) as one, listening(shout) as two:
        async with websocket(shells, shells.path("portForward", form.format(one, two)), *filter(None, [protocol])) as client:
            for _ in range(4):
                await client.receive()
            assert client.messages == [(at, struct.pack("<H", port)) for at, port in enumerate((one, one, two, two))]
            client.got.clear()
            await client.send(2, b"loud")
            await client.send(0, b"quiet")
            await client.until(0, b"quiet")
            await client.until(2, b"LOUD")
            assert client.got == {0: b"quiet", 2: b"LOUD"}
    await shells.until_idle()


async def test_errors_over_a_websocket_come_with_their_port(shells: Shells, closed_port: int) -> None:
    port = closed_port
    async with listening(echo) as other:
        async with websocket(shells, shells.path("portForward", f"port={port}&port={other}"), "v4.channel.k8s.io") as client:
            await client.until(1, b"refused")
            expected = f"error forwarding port {port} to pod {shells.name}, uid {shells.pod.metadata.uid}: connection refused"
            assert client.got[1][2:].decode() == expected
            await client.send(2, b"the other")
            await client.until(2, b"the other")


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("", 'query parameter "port" is required'),
        ("port=x", 'unable to parse "x" as a port: strconv.ParseUint: parsing "x": invalid syntax'),
        ("port=0", 'port "0" must be > 0'),
        ("port=99999", 'unable to parse "99999" as a port: strconv.ParseUint: parsing "99999": value out of range'),
        ("port=" + ",".join(["80"] * 101), "at most 100 ports can be forwarded over one connection"),
    ],
)
async def test_wrong_ports_are_refused_before_the_upgrade(shells: Shells, query: str, text: str) -> None:
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    reply = await call(shells.hub, shells.endpoint, shells.path("portForward", query), headers=headers)
    assert (reply.status, reply.text) == (400, text)


async def test_the_kubernetes_package_forwards_two_ports(shells: Shells) -> None:
    async with listening(echo) as one, listening(answer_at_the_end) as two:

        def talk() -> tuple[bytes, Any]:
            core = k8s.CoreV1Api(api_client(shells.hub.kubeconfig))
            forward = portforward(core.connect_get_namespaced_pod_portforward, shells.name, shells.namespace, ports=f"{one},{two}")
            first, second = forward.socket(one), forward.socket(two)
            for connection in (first, second):
                connection.setblocking(True)
                connection.settimeout(PATIENCE)
            first.sendall(b"through")
            got = first.recv(100)
            second.sendall(b"unanswered")
            first.close()
            second.close()
            return got, forward.error(one)

        assert await asyncio.to_thread(talk) == (b"through", None)
    await shells.until_idle()
