"""`kubectl attach` through a real API server: what the container's own process has is what the client gets."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE

import pytest

from tests.integration.server.shells import SPDY, WEBSOCKETS, Shells
from tests.integration.server.terminal import interrupt, kubectl_at_terminal
from tests.integration.server.test_negotiation import opened
from tests.support.program import PATIENCE, eventually
from tests.support.spdy_client import data_frame
from vkubelet.provider import TerminalSize

both_modes = pytest.mark.parametrize("websockets", [WEBSOCKETS, SPDY], ids=["websockets", "spdy"])

READING = "while read -r line; do echo got $line; echo noted $line >&2; test $line != stop || exit 5; done; echo input ended"


@both_modes
async def test_stdin_and_both_outputs_until_the_container_ends(shells: Shells, *, websockets: bool) -> None:
    async with shells.backend.container(shells.pod.metadata.uid, "reading", ["sh", "-c", READING]):
        args = ("attach", "-i", "-q", shells.name, "-c", "reading")
        async with asyncio.timeout(PATIENCE), shells.kubectl(*args, websockets=websockets, stdin=PIPE) as kubectl:
            assert kubectl.stdin is not None and kubectl.stdout is not None and kubectl.stderr is not None
            kubectl.stdin.write(b"one\n")
            assert await kubectl.stdout.readline() == b"got one\n"
            assert await kubectl.stderr.readline() == b"noted one\n"
            assert shells.streams("attach") == 1
            kubectl.stdin.write(b"stop\n")
            # An attach tells nothing of the exit code; the pod's status does.
            assert await kubectl.wait() == 0
            assert await kubectl.stdout.read() == b"got stop\n"


@both_modes
async def test_leaving_leaves_the_container_alone_and_one_can_come_back(shells: Shells, *, websockets: bool) -> None:
    async with shells.backend.container(shells.pod.metadata.uid, "reading", ["sh", "-c", READING]) as container:
        for word in (b"first", b"second"):
            args = ("attach", "-i", "-q", shells.name, "-c", "reading")
            async with asyncio.timeout(PATIENCE), shells.kubectl(*args, websockets=websockets, stdin=PIPE) as kubectl:
                assert kubectl.stdin is not None and kubectl.stdout is not None
                kubectl.stdin.write(word + b"\n")
                assert await kubectl.stdout.readline() == b"got " + word + b"\n"
                kubectl.kill()
            await shells.until_idle()
        assert container.process.returncode is None
        assert shells.backend.calls.cancelled["attach"] == 2


@both_modes
async def test_a_client_without_stdin_only_looks_on(shells: Shells, *, websockets: bool) -> None:
    async with shells.backend.container(shells.pod.metadata.uid, "reading", ["sh", "-c", READING]) as container:
        args = ("attach", "-q", shells.name, "-c", "reading")
        async with asyncio.timeout(PATIENCE), shells.kubectl(*args, websockets=websockets) as kubectl:
            assert kubectl.stdout is not None
            await eventually(lambda: shells.backend.calls.running["attach"] == 1, "it is attached")
            container.writer.write(b"from elsewhere\n")
            assert await kubectl.stdout.readline() == b"got from elsewhere\n"
    await shells.until_idle()


async def test_a_container_without_stdin_gets_none_whatever_the_client_sends(shells: Shells) -> None:
    async with shells.backend.container(shells.pod.metadata.uid, "app", ["sh", "-c", READING]) as container:
        path = shells.path("attach", "input=1&output=1&error=1")
        async with shells.spdy(path, "v4.channel.k8s.io") as client:
            await opened(client, "error", "stdin", "stdout", "stderr")
            await client.send(data_frame(3, b"ignored\n"))
            await eventually(lambda: shells.backend.calls.running["attach"] == 1, "it is attached")
            container.writer.write(b"stop\n")
            assert await client.read_stream(5) == b"got stop\n"
            assert await client.read_stream(1) == b'{"metadata":{},"status":"Success"}'


@both_modes
async def test_a_terminal_is_the_containers_matter_and_not_the_clients(shells: Shells, *, websockets: bool) -> None:
    uid = shells.pod.metadata.uid
    async with shells.backend.container(uid, "screen", ["sh"], tty=True) as container:
        args = ("attach", "-it", "-q", shells.name, "-c", "screen")
        async with kubectl_at_terminal(shells, *args, websockets=websockets) as terminal:
            await eventually(lambda: TerminalSize(80, 24) in shells.backend.calls.sizes, "the size has come")
            terminal.type(b"stty size\n")
            await terminal.expect(rb"24 80\r\n")
            terminal.type(b"sh -c \"echo be''gun; exec sleep 1000\"\n")
            await terminal.expect(rb"begun\r\n")
            await interrupt(terminal)
            terminal.type(b"echo interrupted by $?\n")
            await terminal.expect(rb"interrupted by 130\r\n")
            terminal.type(b"exit 9\n")
            async with asyncio.timeout(PATIENCE):
                await terminal.process.wait()
        assert await container.process.wait() == 9
    await shells.until_idle()


async def test_terminal_output_goes_to_clients_as_they_requested_it(shells: Shells) -> None:
    script = "test -t 1 && echo terminal; echo error >&2"
    async with shells.backend.container(shells.pod.metadata.uid, "screen", ["sh", "-c", f"read -r go; {script}"], tty=True) as container:
        path = shells.path("attach", "output=1&error=1", container="screen")
        async with shells.spdy(path, "v4.channel.k8s.io") as client:
            await opened(client, "error", "stdout", "stderr")
            await eventually(lambda: shells.backend.calls.running["attach"] == 1, "it is attached")
            container.writer.write(b"go\n")
            assert (await client.read_stream(3)).endswith(b"terminal\r\nerror\r\n")
            assert await client.read_stream(1) == b'{"metadata":{},"status":"Success"}'
    async with shells.backend.container(shells.pod.metadata.uid, "app", ["sh", "-c", f"read -r go; {script}"]) as container:
        async with shells.spdy(shells.path("attach", "output=1&tty=1"), "v4.channel.k8s.io") as client:
            await opened(client, "error", "stdout", "resize")
            await eventually(lambda: shells.backend.calls.running["attach"] == 1, "it is attached")
            container.writer.write(b"go\n")
            assert await client.read_stream(3) == b""
    assert shells.backend.calls.terminals == [True, False]
