"""What people do with kubectl in a pod of another cluster: exec, attach, cp, port-forward, debug, by either transport of kubectl.

Invariant: the judge is kubectl against the computing cluster: its exit code, what it prints, and the files it leaves.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import re
import signal
import socket
import struct
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from tests.integration.server.terminal import kubectl_at_terminal
from tests.support.bound import Bound, apply, get, items, pod, running
from tests.support.kubectl import Kubectl
from tests.support.outside import Outside
from tests.support.program import PATIENCE, Program, eventually
from tests.support.sockets import connections_to
from vkubelet.testing.fixtures import run_apart

POD = "busy"
ECHO_PORT = 7777
CLOSED_PORT = 81
CONNECTIONS = 50
MEGABYTES = 100
TRAPPED = "trap 'exit 0' TERM; "
ECHOING = f"{TRAPPED}nc -ll -p {ECHO_PORT} -e cat & wait"
REPEATING = f"{TRAPPED}while read word; do echo heard $word; done; echo deaf; while true; do sleep 0.2; done"
INTERRUPTIBLE = b"sh -c 'trap \"exit 5\" INT; echo soon; while true; do sleep 0.1; done'; echo code $?\r"


@pytest.fixture(scope="module")
def busy(leased: Bound) -> Kubectl:
    """A pod with a container that echoes on a port, one that reads, and one that has a terminal."""

    async def start() -> Kubectl:
        namespace = await leased.hub.namespace("exec")
        body = pod(POD, namespace)
        (main,) = body["spec"]["containers"]
        body["spec"]["containers"] = [
            main,
            {**main, "name": "echo", "command": ["sh", "-c", ECHOING]},
            {**main, "name": "reading", "stdin": True, "command": ["sh", "-c", REPEATING]},
            {**main, "name": "screen", "stdin": True, "tty": True, "command": ["sh"]},
        ]
        await apply(leased.hub, body)
        await running(leased, namespace, POD)
        return Kubectl(leased.hub, namespace)

    return run_apart(start())


@pytest.fixture(params=["websocket", "spdy"])
def kubectl(busy: Kubectl, request: pytest.FixtureRequest) -> Kubectl:
    return evolve(busy, websockets=request.param == "websocket")


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def test_exec_returns_the_exit_code_and_keeps_the_outputs_apart(kubectl: Kubectl) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = {code: group.create_task(kubectl.sh(POD, f"echo out; echo err >&2; exit {code}", "-c", "main")) for code in (0, 1, 7, 137)}
    for code, task in tasks.items():
        ran = task.result()
        assert (ran.code, ran.stdout) == (code, b"out\n")
        assert ran.stderr == ("err\n" if code == 0 else f"err\ncommand terminated with exit code {code}\n")


async def test_what_can_not_be_run_is_told_in_the_words_of_a_kubelet(kubectl: Kubectl) -> None:
    missing = await kubectl.run("exec", POD, "-c", "main", "--", "no-such-program")
    assert missing.code == 1
    assert missing.stderr.count("error executing command in container: ") == 1
    assert 'exec: "no-such-program": executable file not found in $PATH' in missing.stderr
    nowhere = await kubectl.run("exec", POD, "-c", "nowhere", "--", "true")
    assert (nowhere.code, "container nowhere is not valid for pod busy" in nowhere.stderr) == (1, True)


async def test_a_hundred_megabytes_arrive_and_come_back(kubectl: Kubectl) -> None:
    block = random.Random(7).randbytes(1 << 20)
    sent, back = hashlib.sha256(), hashlib.sha256()
    # The command ends with its stdin, and that when all came back: an API server that hangs up on a client that still reads takes from it
    # what it has not read, if the client has just pinged.
    script = f"head -c {MEGABYTES << 20} | tee /tmp/sent | sha256sum >&2; cat /tmp/sent; rm /tmp/sent; cat"

    async def send(writer: asyncio.StreamWriter) -> None:
        for number in range(MEGABYTES):
            sent.update(piece := struct.pack(">I", number) + block[4:])
            writer.write(piece)
            await writer.drain()

    async with asyncio.timeout(120), kubectl.kubectl("exec", "-i", POD, "-c", "main", "--", "sh", "-c", script, stdin=PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(send(process.stdin))
            left = MEGABYTES << 20
            while left and (piece := await process.stdout.read(left)):
                back.update(piece)
                left -= len(piece)
        process.stdin.close()
        rest, said = await process.communicate()
    assert (process.returncode, left, rest) == (0, 0, b"")
    assert said.split()[0].decode() == sent.hexdigest() == back.hexdigest()


async def test_a_terminal_is_resized_while_the_shell_runs(kubectl: Kubectl) -> None:
    async with kubectl_at_terminal(kubectl, "exec", "-it", POD, "-c", "main", "--", "sh", websockets=kubectl.websockets) as terminal:
        await terminal.expect(rb"/ # ")
        terminal.type(b"stty size\r")
        await terminal.expect(rb"\n24 80\r\n")
        terminal.resize(rows=41, columns=133)

        async def resized() -> bool:
            terminal.type(b"stty size\r")
            await terminal.expect(rb"\n\d+ \d+\r\n")
            return b"\n41 133\r\n" in terminal.seen

        await eventually(resized, "the size of the terminal is known to the command")
        terminal.type(INTERRUPTIBLE)
        await terminal.expect(rb"\nsoon\r\n")
        terminal.type(b"\x03")
        await terminal.expect(rb"\^Ccode 5\r\n")
        terminal.type(b"exit 7\r")
        async with asyncio.timeout(PATIENCE):
            assert await terminal.process.wait() == 7


async def answer_to(attached: asyncio.subprocess.Process, line: bytes) -> bytes:
    """The first line that comes back. It is said until then: a runtime passes stdin on before it listens to what the container answers."""
    assert attached.stdin is not None and attached.stdout is not None
    answer = asyncio.ensure_future(attached.stdout.readline())
    while not answer.done():
        attached.stdin.write(line)
        await attached.stdin.drain()
        await asyncio.wait([answer], timeout=2)
    return answer.result()


async def is_logged(kubectl: Kubectl, container: str, said: bytes) -> bool:
    """A runtime hands what a container says to those who are attached and to its log, in any order."""
    return said in (await kubectl.run("logs", POD, "-c", container)).stdout


async def test_attach_reaches_the_process_of_the_container(kubectl: Kubectl) -> None:
    word = "socket" if kubectl.websockets else "frame"
    async with asyncio.timeout(60), kubectl.kubectl("attach", "-i", POD, "-c", "reading", stdin=PIPE) as attached:
        assert attached.stdin is not None and attached.stdout is not None
        assert await answer_to(attached, f"{word}\n".encode()) == f"heard {word}\n".encode()
    async with kubectl_at_terminal(kubectl, "attach", "-it", POD, "-c", "screen", websockets=kubectl.websockets) as terminal:
        await terminal.prompted(rb"/ # ")
        terminal.type(f"echo {word}-$((40+2))\r".encode())
        await terminal.expect(f"\n{word}-42\r\n".encode())
    await eventually(lambda: is_logged(kubectl, "reading", f"heard {word}\n".encode()), "what it said is in the log, too")


async def test_files_are_copied_both_ways(kubectl: Kubectl, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "large").write_bytes(random.Random(1).randbytes(5_000_000))
    (source / "deep" / "er" / "small").write_text("hello\n")
    (source / "deep" / "empty").touch()
    target = f"/tmp/{'websocket' if kubectl.websockets else 'spdy'}"
    there = await kubectl.run("cp", str(source), f"{POD}:{target}", "-c", "main")
    assert there.code == 0, there.stderr
    back = await kubectl.run("cp", f"{POD}:{target}", str(tmp_path / "back"), "-c", "main")
    assert back.code == 0, back.stderr
    assert contents(tmp_path / "back") == contents(source)


# --- ports -----------------------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def forwarded(kubectl: Kubectl, port: int) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    """The local port."""
    async with kubectl.kubectl("port-forward", POD, f":{port}", "--address=127.0.0.1") as process:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = (await process.stdout.readline()).decode()
        found = re.search(r"127\.0\.0\.1:(\d+) -> ", line)
        assert found, line
        yield int(found[1]), process


async def test_fifty_forwarded_connections_do_not_mix(kubectl: Kubectl) -> None:
    payloads = [struct.pack(">I", number) * 25_000 for number in range(CONNECTIONS)]
    all_open = asyncio.Barrier(CONNECTIONS)

    async def talk(port: int, payload: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(payload[:4])
            first = await reader.readexactly(4)
            # All have been answered before the first one says the rest.
            await all_open.wait()
            writer.write(payload[4:])
            return first + await reader.readexactly(len(payload) - 4)
        finally:
            writer.close()

    async with forwarded(kubectl, ECHO_PORT) as (port, _):
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            tasks = [group.create_task(talk(port, payload)) for payload in payloads]
    assert [task.result() for task in tasks] == payloads


async def test_a_closed_port_is_told_as_a_kubelet_tells_it(kubectl: Kubectl) -> None:
    async with forwarded(kubectl, CLOSED_PORT) as (port, process):
        assert process.stderr is not None
        with socket.create_connection(("127.0.0.1", port), 20):
            async with asyncio.timeout(PATIENCE):
                said = b""
                while b"connection refused" not in said:
                    line = await process.stderr.readline()
                    assert line, said
                    said += line
    assert said.count(b"error forwarding port 81 to pod ") == 1


# --- the client is slow, or leaves -------------------------------------------------------------------------------------------------------


@contextmanager
def ends(*descriptors: int) -> Iterator[tuple[int, ...]]:
    """Of a pipe, to be closed."""
    try:
        yield descriptors
    finally:
        for each in descriptors:
            os.close(each)


async def test_a_client_that_neither_reads_nor_lets_go_costs_little_and_holds_up_nobody(
    served: tuple[Bound, Program], kubectl: Kubectl
) -> None:
    process = Outside(served[1].process.pid)
    before = process.rss_mib()
    endless = ("exec", "-i", POD, "-c", "main", "--", "sh", "-c")
    with open("/dev/zero", "rb") as zeros, ends(*os.pipe()) as (unread, told):
        async with (
            kubectl.kubectl(*endless, "cat /dev/zero", stdout=told),
            kubectl.kubectl(*endless, "echo begun; exec sleep 1000", stdin=zeros.fileno()) as writing,
        ):
            assert writing.stdout is not None
            async with asyncio.timeout(PATIENCE):
                assert await asyncio.to_thread(os.read, unread, 1) == b"\0"
                assert await writing.stdout.readline() == b"begun\n"
            for _ in range(10):
                assert (await kubectl.sh(POD, "exit 7", "-c", "main")).code == 7
            assert process.rss_mib() - before < 60
            # A command that nobody reads from would go on for ever.
            await kubectl.sh(POD, "killall cat sleep", "-c", "main")


async def test_streams_in_the_worker_end_with_their_clients(served: tuple[Bound, Program], kubectl: Kubectl) -> None:
    """The kubelet closes the stdin of a command whose client has left; a command that reads is thereby ended."""

    bound, program = served

    def connections() -> int:
        return connections_to(program.process.pid, bound.worker.port)

    before = connections()
    mark = f"/tmp/left-{kubectl.websockets}"
    script = f"echo begun; cat; touch {mark}"
    async with (
        kubectl.kubectl("exec", "-i", POD, "-c", "main", "--", "sh", "-c", script, stdin=PIPE) as reading,
        kubectl.kubectl(
            "exec", POD, "-c", "main", "--", "sh", "-c", "echo begun; for i in $(seq 3000); do sleep 0.1; echo on; done"
        ) as talking,
        kubectl.kubectl("attach", "-i", POD, "-c", "reading", stdin=PIPE) as attached,
        forwarded(kubectl, ECHO_PORT) as (port, forward),
    ):
        for process in (reading, talking):
            assert process.stdout is not None
            async with asyncio.timeout(PATIENCE):
                assert await process.stdout.readline() == b"begun\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        await eventually(lambda: connections() > before, "the streams have connections to the worker")
        for process in (reading, talking, attached, forward):
            process.send_signal(signal.SIGKILL)
        writer.close()
    # Those of other calls, which may have come meanwhile, are kept for a minute; the streams would go on for five.
    await eventually(lambda: connections() <= before, "no connection of a stream remains", seconds=90)

    async def ended() -> bool:
        return (await kubectl.sh(POD, f"test -e {mark}", "-c", "main")).code == 0

    await eventually(ended, "the command has read the end of its stdin", every=0.5)


# --- ephemeral containers --------------------------------------------------------------------------------------------------------------


async def ephemeral(bound: Bound, kubectl: Kubectl, name: str, *, state: Callable[[Any], bool]) -> Any:
    """The status of an ephemeral container, once its state is as wanted."""

    async def check() -> Any:
        found = await get(bound.hub, "pod", POD, "-n", kubectl.namespace)
        statuses = found["status"].get("ephemeralContainerStatuses") or ()
        return next((each for each in statuses if each["name"] == name and state(each["state"])), None)

    return await eventually(check, f"ephemeral container {name} is as wanted", every=0.3)


async def test_a_debugger_joins_the_pod_and_can_be_left_and_met_again(leased: Bound, kubectl: Kubectl) -> None:
    name = "debug-websocket" if kubectl.websockets else "debug-spdy"
    begin = ("debug", "-it", POD, "--profile=baseline", "--image=localhost/busybox:dev", "--target=main", f"--container={name}", "--", "sh")
    async with kubectl_at_terminal(kubectl, *begin, websockets=kubectl.websockets) as terminal:
        await terminal.expect(rb"/ # ", within=PATIENCE)
        # It sees the processes of its target.
        terminal.type(b"tr '\\0' ' ' < /proc/1/cmdline | grep -c 'while true'; echo seen-$((40+2))\r")
        await terminal.expect(rb"\n1\r\nseen-42\r\n")
    inside = await kubectl.sh(POD, "echo $HOSTNAME", "-c", name)
    assert (inside.code, inside.stdout) == (0, b"busy\n")
    await eventually(lambda: is_logged(kubectl, name, b"seen-42"), "it is in the log")
    async with kubectl_at_terminal(kubectl, "attach", "-it", POD, "-c", name, websockets=kubectl.websockets) as terminal:
        await terminal.prompted(rb"/ # ")
        terminal.type(b"echo again-$((40+2)); exit 3\r")
        await terminal.expect(rb"again-42\r\n")
    status = await ephemeral(leased, kubectl, name, state=lambda state: "terminated" in state)
    assert status["state"]["terminated"]["exitCode"] == 3


async def test_a_debugger_that_the_worker_refuses_says_so_and_keeps_no_other_out(leased: Bound, busy: Kubectl) -> None:
    level = "pod-security.kubernetes.io/enforce"
    await leased.worker.kubectl("label", "namespace", leased.mount, f"{level}=baseline", "--overwrite")
    image = "--image=localhost/busybox:dev"
    try:
        async with busy.kubectl("debug", "-i", POD, "--profile=sysadmin", image, "--container=mighty", "--", "true") as mighty:
            assert mighty.stderr is not None
            said = ""
            async with asyncio.timeout(PATIENCE):
                while "violates PodSecurity" not in said:
                    line = (await mighty.stderr.readline()).decode()
                    assert line, said
                    said += line
        assert 'pods "busy" is forbidden' in said
        status = await ephemeral(leased, busy, "mighty", state=lambda state: "waiting" in state)
        assert "the worker cluster refuses the container" in status["state"]["waiting"]["message"]

        async def told() -> list[Any]:
            events = await items(leased.hub, "events", "-n", busy.namespace)
            return [each for each in events if each["reason"] == "FailedEphemeralContainer"]

        (event,) = await eventually(told, "an event says so")
        assert "violates PodSecurity" in event["message"] and event["involvedObject"]["name"] == POD
        humble = await busy.run("debug", "-i", POD, "--profile=baseline", image, "--container=humble", "--", "echo", "here")
        assert b"here\n" in humble.stdout, humble.stderr
        assert (await running(leased, busy.namespace, POD))["status"]["phase"] == "Running"
    finally:
        await leased.worker.kubectl("label", "namespace", leased.mount, f"{level}-")
