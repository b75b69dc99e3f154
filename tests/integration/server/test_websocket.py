"""Exec and attach for WebSocket clients: straight to the kubelet in every subprotocol, and by the `kubernetes` package."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from attrs import define, field
from kubernetes import client as k8s
from kubernetes.stream import stream

from tests.integration.server.backend import granted, tls
from tests.integration.server.shells import NOTICED, Shells, Target, shells_on
from tests.integration.tries import median_within
from tests.support.program import PATIENCE, eventually
from tests.support.witness import api_client
from vkubelet.testing.cluster import ControlPlane

BINARY = ["channel.k8s.io", "v4.channel.k8s.io", "v5.channel.k8s.io"]
BASE64 = ["base64.channel.k8s.io", "v4.base64.channel.k8s.io"]
SCRIPT = "command=sh&command=-c&command=head+-c5%3B+echo+err+>%262%3B+exit+$CODE"
PLAIN = "command terminated with non-zero exit code: error executing command [sh -c head -c5; echo err >&2; exit 3], exit code 3"


@define
class Client:
    """A WebSocket; `got` is what came on each channel."""

    socket: aiohttp.ClientWebSocketResponse
    got: dict[int, bytes] = field(factory=dict)
    messages: list[tuple[int, bytes]] = field(factory=list)

    @property
    def base64(self) -> bool:
        return "base64" in (self.socket.protocol or "")

    async def send(self, channel: int, data: bytes) -> None:
        if self.base64:
            await self.socket.send_str(f"{channel}{base64.b64encode(data).decode()}")
        else:
            await self.socket.send_bytes(bytes([channel]) + data)

    async def receive(self) -> bool:
        """One message; False at the end."""
        message = await self.socket.receive(timeout=PATIENCE)
        if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
            return False
        assert (message.type is aiohttp.WSMsgType.TEXT) == self.base64
        if self.base64:
            channel, data = int(message.data[0]), base64.b64decode(message.data[1:])
        else:
            channel, data = message.data[0], message.data[1:]
        self.messages.append((channel, data))
        self.got[channel] = self.got.get(channel, b"") + data
        return True

    async def to_the_end(self) -> dict[int, bytes]:
        while await self.receive():
            pass
        return self.got

    async def until(self, channel: int, data: bytes) -> None:
        while data not in self.got.get(channel, b""):
            assert await self.receive(), self.got


@asynccontextmanager
async def connected(target: Target, path: str, *protocols: str, certificate: bool = True) -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(ssl=tls(target.hub, certificate=certificate))
    async with aiohttp.ClientSession(connector=connector) as session:
        url = f"https://{target.endpoint.address}:{target.endpoint.port}{path}"
        async with session.ws_connect(url, protocols=protocols) as socket:
            yield Client(socket)


@pytest.mark.parametrize("protocol", ["", *BINARY, *BASE64])
@pytest.mark.parametrize("code", [0, 3])
async def test_a_command_in_every_subprotocol(shells: Shells, protocol: str, *, code: int) -> None:
    path = shells.path("exec", f"input=1&output=1&error=1&{SCRIPT.replace('$CODE', str(code))}")
    async with connected(shells, path, *filter(None, [protocol])) as client:
        assert (client.socket.protocol or "") == protocol
        await client.send(0, b"hel")
        await client.send(0, b"lo and more")
        got = await client.to_the_end()
        assert client.messages[0] == (1, b""), "the first message tells that it has begun"
        assert (got[1], got[2]) == (b"hello", b"err\n")
        assert client.socket.close_code == 1000
    told = got.get(3, b"").decode()
    if protocol.startswith(("v4.", "v5.")):
        assert json.loads(told)["status"] == ("Failure" if code else "Success")
        assert json.loads(told).get("details") == ({"causes": [{"reason": "ExitCode", "message": "3"}]} if code else None)
    else:
        assert told == (PLAIN if code else "")
    await shells.until_idle()


async def test_v5_closes_stdin_by_a_signal_of_its_own(shells: Shells) -> None:
    async with connected(shells, shells.path("exec", "input=1&output=1&command=cat"), "v5.channel.k8s.io") as client:
        await client.send(0, b"all there is")
        await client.send(255, bytes([0]))
        await client.send(0, b"dropped")
        got = await client.to_the_end()
    assert got[1] == b"all there is"
    assert json.loads(got[3]) == {"metadata": {}, "status": "Success"}


@pytest.mark.parametrize("protocol", ["v4.channel.k8s.io", "v4.base64.channel.k8s.io"])
async def test_a_terminal_with_a_size(shells: Shells, protocol: str) -> None:
    async with connected(shells, shells.path("exec", "input=1&output=1&error=1&tty=1&command=sh"), protocol) as client:
        await client.send(4, b'{"Width":99,"Height":33}')
        await eventually(lambda: [size.width for size in shells.backend.calls.sizes] == [99], "the size has come")
        await client.send(0, b"stty size; echo err''or >&2; exit\n")
        got = await client.to_the_end()
    assert b"33 99\r\nerror\r\n" in got[1]
    assert 2 not in got


async def test_messages_that_make_no_sense_are_dropped(shells: Shells) -> None:
    for protocol, garbage in (
        ("v4.channel.k8s.io", [b"", b"\x07x", b"\x01x", b"\x63", b"\x04{no size"]),
        (BASE64[0], ["", "9eA==", "0%%", "1"]),
    ):
        async with connected(shells, shells.path("exec", "input=1&output=1&command=head&command=-c2"), protocol) as client:
            for message in garbage:
                if isinstance(message, bytes):
                    await client.socket.send_bytes(message)
                else:
                    await client.socket.send_str(message)
            await client.send(0, b"ok")
            assert (await client.to_the_end())[1] == b"ok"


async def test_the_subprotocol_that_carries_a_token_is_never_chosen(shells: Shells) -> None:
    token = "base64url.bearer.authorization.k8s.io.bm90aGluZw"
    path = shells.path("exec", "output=1&command=echo&command=hello")
    async with connected(shells, path, token, "v4.channel.k8s.io") as client:
        assert client.socket.protocol == "v4.channel.k8s.io"
        assert (await client.to_the_end())[1] == b"hello\n"
    for protocols in ([token], ["v9.channel.k8s.io"]):
        with pytest.raises(aiohttp.WSServerHandshakeError) as error:
            async with connected(shells, path, *protocols):
                pass
        assert error.value.status == 403


@pytest.fixture
async def reader_token(hub: ControlPlane, streams_namespace: str) -> AsyncIterator[str]:
    """Of a ServiceAccount that may `get nodes/proxy` and nothing else."""
    name = f"reader-{uuid.uuid4().hex[:8]}"
    await hub.kubectl("create", "serviceaccount", "-n", streams_namespace, name)
    await hub.kubectl("create", "clusterrole", name, "--verb=get", "--resource=nodes/proxy")
    await hub.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--serviceaccount={streams_namespace}:{name}")
    await granted(hub, f"system:serviceaccount:{streams_namespace}:{name}", "nodes/proxy")
    yield (await hub.kubectl("create", "token", "-n", streams_namespace, name)).strip()
    await hub.kubectl("delete", "clusterrole,clusterrolebinding", name)


async def test_get_is_enough_for_a_websocket_unless_the_strict_mode_asks_for_create(
    hub: ControlPlane, streams_namespace: str, reader_token: str, tmp_path: Path
) -> None:
    carried = f"base64url.bearer.authorization.k8s.io.{base64.urlsafe_b64encode(reader_token.encode()).decode().rstrip('=')}"
    protocols = (carried, "v4.channel.k8s.io")
    async with shells_on(hub, streams_namespace, tmp_path) as shells:
        path = shells.path("exec", "output=1&command=echo&command=hello")
        async with connected(shells, path, *protocols, certificate=False) as client:
            assert (await client.to_the_end())[1] == b"hello\n"
    async with shells_on(hub, streams_namespace, tmp_path, exec_needs_create=True) as shells:
        for verb, query in (("exec", "output=1&command=true"), ("attach", "output=1"), ("portForward", "port=1")):
            with pytest.raises(aiohttp.WSServerHandshakeError) as error:
                async with connected(shells, shells.path(verb, query), *protocols, certificate=False):
                    pass
            assert error.value.status == 403


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_websocket_that_goes_ends_the_process_within_two_seconds(shells: Shells, how: str) -> None:
    async def once() -> float:
        async with connected(shells, shells.path("exec", "input=1&output=1&command=cat"), "v4.channel.k8s.io") as client:
            await client.send(0, b"here")
            await client.until(1, b"here")
            began = asyncio.get_running_loop().time()
            if how == "close":
                await client.socket.close()
            else:
                transport = client.socket.get_extra_info("socket")
                assert transport is not None
                client.socket._response.connection.transport.abort()  # type: ignore[union-attr]
            await shells.until_idle()
            return asyncio.get_running_loop().time() - began

    tries = await median_within(NOTICED, once, "the end of the process")
    assert shells.backend.calls.cancelled["exec"] == len(tries)


async def test_pings_are_answered_and_count_as_life(hub: ControlPlane, streams_namespace: str, tmp_path: Path) -> None:
    idle, every = 5.0, 0.5
    async with shells_on(hub, streams_namespace, tmp_path, stream_idle_timeout=idle) as shells:
        async with connected(shells, shells.path("exec", "input=1&output=1&command=cat"), "v4.channel.k8s.io") as client:
            for _ in range(round(idle / every) + 1):
                await asyncio.sleep(every)
                await client.socket.ping(b"still here")
            await client.send(0, b"alive")
            await client.until(1, b"alive")
            # And without them.
            assert 3 in await client.to_the_end()
            assert client.socket.close_code == 1011
        await shells.until_idle()


async def test_the_kubernetes_package_gets_outputs_and_the_exit_code(shells: Shells) -> None:
    def run() -> tuple[str, str, int]:
        core = k8s.CoreV1Api(api_client(shells.hub.kubeconfig))
        answer = stream(
            core.connect_get_namespaced_pod_exec,
            shells.name,
            shells.namespace,
            container="app",
            command=["sh", "-c", "read -r word; echo out $word; echo err >&2; exit 7"],
            stdin=True,
            stdout=True,
            stderr=True,
            tty=False,
            _preload_content=False,
        )
        answer.write_stdin("hello\n")
        answer.run_forever(timeout=PATIENCE)
        said = answer.read_stdout(timeout=1), answer.read_stderr(timeout=1)
        answer.close()
        return *said, answer.returncode

    assert await asyncio.to_thread(run) == ("out hello\n", "err\n", 7)
