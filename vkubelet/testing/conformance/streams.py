"""Rules of exec, attach, port-forwarding and logs.

Invariant: the client is kubectl, through the API server; the return of a call is observed at the provider, and what the runtime hides from
callers is requested from the provider itself.
"""

import asyncio
import hashlib
import random
import uuid
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from vkubelet.api.objects import PodRef
from vkubelet.clock import parse_rfc3339
from vkubelet.errors import NoSuchPod, NotSupported, ProviderError
from vkubelet.provider import LogOptions, SupportsAttach, SupportsExec, SupportsLogs, SupportsPortForward, TerminalSize
from vkubelet.testing.conformance.judge import on_terminal
from vkubelet.testing.conformance.rules import Broken, Inapplicable, expect, rule
from vkubelet.testing.conformance.stand import Made, Stand

END_SECONDS = 10.0
"""Seconds in which a call has to return when its client has disconnected, and a follower of a log when its container has terminated."""

STDIN_BYTES = 1 << 20
FORWARDED_BYTES = 64 << 10
CONNECTIONS = 3
AGAIN = 0.2
"""Seconds after which a port without a listener is tried again, and an empty log read again."""


@rule(needs=SupportsExec)
async def exec_exit_code(stand: Stand) -> None:
    """exec returns the exit code of its command."""
    (pod,) = await stand.running("exits")
    for code in (0, 1, 7, 137):
        outcome = await stand.judge.run("exec", pod.name, "--", "sh", "-c", f"exit {code}")
        expect(outcome.code == code, f"a command that exits with {code} returned {outcome.code}: {outcome.complaint}")
    await stand.delete(pod.name)
    await stand.ended(pod)


@rule(needs=SupportsExec)
async def exec_output(stand: Stand) -> None:
    """exec without a terminal keeps standard output and standard error apart, and loses nothing of either."""
    (pod,) = await stand.running("speaks")
    outcome = await stand.judge.run("exec", pod.name, "--", "sh", "-c", "echo to out; echo to err >&2; seq 1 20000")
    wanted = b"to out\n" + b"".join(b"%d\n" % number for number in range(1, 20001))
    expect(outcome.stdout == wanted, f"of {len(wanted)} bytes of standard output {len(outcome.stdout)} arrived, or they differ")
    expect(outcome.stderr == b"to err\n", f"standard error was {outcome.stderr[:80]!r}")
    await stand.delete(pod.name)
    await stand.ended(pod)


@rule(needs=SupportsExec)
async def exec_input(stand: Stand) -> None:
    """exec passes standard input to the command byte by byte, and EOF too."""
    (pod,) = await stand.running("listens")
    data = random.Random(7).randbytes(STDIN_BYTES)
    outcome = await stand.judge.run("exec", "-i", pod.name, "--", "cat", stdin=data, seconds=2 * stand.patience)
    expect(outcome.code == 0, f"cat ended with {outcome.code}: {outcome.complaint}")
    same = hashlib.sha256(outcome.stdout).digest() == hashlib.sha256(data).digest()
    expect(same, f"cat received {len(data)} bytes and returned {len(outcome.stdout)}, or they differ")
    await stand.delete(pod.name)
    await stand.ended(pod)


@rule(needs=SupportsExec)
async def exec_terminal(stand: Stand) -> None:
    """exec on a terminal knows its size, and has one output for both."""
    (pod,) = await stand.running("typed")
    command = stand.judge.command("exec", "-it", pod.name, "--", "sh", "-c", "stty size; echo to err >&2; exit 3")
    code, shown = await on_terminal(command, TerminalSize(width=117, height=43), seconds=stand.patience)
    lines = [line.strip() for line in shown.decode(errors="replace").splitlines()]
    expect("43 117" in lines, f"a terminal of 43 rows and 117 columns was shown as {lines}")
    expect("to err" in lines, f"standard error did not arrive: {lines}")
    expect(code == 3, f"a command that exits with 3 returned {code}")
    await stand.delete(pod.name)
    await stand.ended(pod)


@rule(needs=SupportsExec)
async def exec_left(stand: Stand) -> None:
    """When the client of an exec disconnects, the call returns: it can be cancelled."""
    (pod,) = await stand.running("deserted")
    async with stand.judge.started("exec", pod.name, "--", "sh", "-c", "echo begun; sleep 600") as process:
        await _says(process, b"begun", stand.patience)
        process.kill()
        await process.wait()
    await _over(stand, "exec", pod)
    await stand.delete(pod.name)
    await stand.ended(pod)


@rule(needs=SupportsExec)
async def exec_unknown(stand: Stand) -> None:
    """exec into a pod the backend does not have is NoSuchPod."""
    stranger = PodRef(stand.judge.namespace, "never-was", str(uuid.uuid4()), stand.node)
    try:
        code = await stand.capability(SupportsExec).exec(stranger, "main", ["true"], _NoClient())
    except NoSuchPod:
        return
    except NotSupported as error:
        raise Inapplicable(str(error)) from error
    except ProviderError as error:
        raise Broken(f"exec into a pod that does not exist raised {type(error).__name__}, not NoSuchPod") from error
    raise Broken(f"exec into a pod that does not exist returned {code} instead of raising NoSuchPod")


@rule(needs=SupportsAttach)
async def attach_speaks(stand: Stand) -> None:
    """attach connects a client with the process of the container, both ways; when the client disconnects, the call returns."""
    (pod,) = await stand.running("attached", container={"stdin": True, "command": ["sh", "-c", "echo begins; cat"]})
    async with stand.judge.started("attach", "-i", pod.name, stdin=PIPE) as process:
        assert process.stdin is not None
        await stand.recording.changes.until(lambda: stand.recording.of("attach", pod.uid), "attach is called", seconds=stand.patience)
        process.stdin.write(b"are you there\n")
        await _says(process, b"are you there", stand.patience)
        process.kill()
        await process.wait()
    await _over(stand, "attach", pod)
    await stand.delete(pod.name)
    await stand.ended(pod)


@rule(needs=SupportsPortForward)
async def port_forward(stand: Stand) -> None:
    """port_forward carries bytes both ways, several connections beside one another, and closes when either side has."""
    port = stand.options.port
    (pod,) = await stand.running("forwarded", container={"command": ["sh", "-c", stand.options.echo.replace("PORT", str(port))]})
    await _listens(stand, pod)
    before = len(stand.recording.of("port_forward", pod.uid))
    async with _forwarded(stand, pod) as local:
        for number in range(CONNECTIONS):
            async with asyncio.TaskGroup() as group:
                for each in range(number + 1):
                    group.create_task(_echoed(local, random.Random(each).randbytes(FORWARDED_BYTES), stand.patience))
        await _over(stand, "port_forward", pod)
        reader, writer = await asyncio.open_connection("127.0.0.1", local)
        writer.write(b"and gone")
        await writer.drain()
        await reader.read(1)
        writer.transport.abort()
        await _over(stand, "port_forward", pod)
    calls = len(stand.recording.of("port_forward", pod.uid)) - before
    expected = CONNECTIONS * (CONNECTIONS + 1) // 2 + 1
    expect(calls == expected, f"{expected} connections were {calls} calls of port_forward")
    await stand.delete(pod.name)
    await stand.ended(pod)


@asynccontextmanager
async def _forwarded(stand: Stand, pod: Made) -> AsyncIterator[int]:
    """Starts a kubectl that forwards the pod's port; yields the local one."""
    async with stand.judge.started("port-forward", f"pod/{pod.name}", f":{stand.options.port}", "--address=127.0.0.1") as process:
        words = (await _says(process, b"Forwarding from", stand.patience)).split()
        yield int(words[2].rpartition(b":")[2])


async def _listens(stand: Stand, pod: Made) -> None:
    """Waits until the port echoes: a container runs before its server listens, and kubectl gives up at the first refusal. Raises Broken."""
    end = stand.clock.monotonic() + stand.patience
    while True:
        try:
            async with _forwarded(stand, pod) as local:
                await _echoed(local, b"are you there", stand.patience)
            break
        except Broken:
            if stand.clock.monotonic() > end or stand.recording.refusal(pod.uid):
                raise
        await stand.clock.sleep(AGAIN)
    await _over(stand, "port_forward", pod)


async def _echoed(port: int, data: bytes, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            answer = await reader.readexactly(len(data))
            expect(answer == data, "the echo through a forwarded port differs from what was sent")
            writer.write_eof()
            rest = await reader.read()
            expect(not rest, f"{len(rest)} bytes arrived after the whole echo")
            writer.close()
            await writer.wait_closed()
    except TimeoutError:
        raise Broken(f"a forwarded connection did not echo and close within {seconds:g} s") from None
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise Broken(f"a forwarded connection broke: {error}; the command of --echo must listen at the port") from None


async def _says(process: Process, wanted: bytes, seconds: float) -> bytes:
    """Returns the first line of a command's output that contains this text. Raises Broken."""
    assert process.stdout is not None and process.stderr is not None
    try:
        async with asyncio.timeout(seconds):
            async for line in process.stdout:
                if wanted in line:
                    return line
            complaint = (await process.stderr.read()).decode(errors="replace").strip()
    except TimeoutError:
        raise Broken(f"within {seconds:g} s the client was not shown {wanted.decode()!r}") from None
    raise Broken(f"the client ended without being shown {wanted.decode()!r}: {complaint}")


async def _over(stand: Stand, method: str, pod: Made) -> None:
    """Waits until no call of this method is in progress for the pod. Raises Broken."""

    def over() -> bool:
        return all(call.ended is not None for call in stand.recording.of(method, pod.uid))

    await stand.recording.changes.until(over, f"{method} ends when its client has left", seconds=END_SECONDS)


class _NoClient:
    """A client that sends and receives nothing."""

    tty = False
    stdin: AsyncIterator[bytes] | None = None

    @property
    async def resizes(self) -> AsyncIterator[TerminalSize]:
        return
        yield

    async def write_stdout(self, data: bytes) -> None:
        return None

    async def write_stderr(self, data: bytes) -> None:
        return None


@rule(needs=SupportsLogs)
async def log_times(stand: Stand) -> str:
    """Each line of a log starts with an RFC 3339 time, and the times do not run backwards."""
    (pod,) = await stand.running("logged")
    data = await _written(stand, pod)
    lines = data.decode(errors="replace").splitlines()
    expect(data.endswith(b"\n"), f"the last line does not end: {lines[-1]!r}")
    _expect_times(lines)
    shown = (await stand.judge.ok("logs", "logged", "--timestamps")).decode(errors="replace").splitlines()
    _expect_times(shown)
    plain = (await stand.judge.ok("logs", "logged", "--tail=1")).decode(errors="replace").splitlines()
    expect(len(plain) == 1, f"kubectl logs --tail=1 showed {len(plain)} lines")
    await stand.delete("logged")
    await stand.ended(pod)
    return f"{len(lines)} lines"


async def _written(stand: Stand, pod: Made) -> bytes:
    """Returns the log once it is not empty: a container runs before it has written. Raises Broken."""
    provider, end = stand.capability(SupportsLogs), stand.clock.monotonic() + stand.patience
    while True:
        data = b"".join([chunk async for chunk in provider.stream_logs(pod.ref, "main", LogOptions(timestamps=True))])
        if data:
            return data
        expect(stand.clock.monotonic() < end, "the log of a container that writes is empty")
        await stand.clock.sleep(AGAIN)


def _expect_times(lines: list[str]) -> None:
    times = []
    for line in lines:
        first = line.partition(" ")[0]
        try:
            times.append(parse_rfc3339(first))
        except ValueError:
            raise Broken(f"a line does not begin with an RFC 3339 time and a space: {line[:80]!r}") from None
    expect(times == sorted(times), "the times of the lines run backwards")


@rule(needs=SupportsLogs)
async def log_follow(stand: Stand) -> None:
    """A followed log shows the existing lines at once, continues while the container runs, and stops with it."""
    (pod,) = await stand.running("followed")
    async with stand.judge.started("logs", "--follow", "followed") as process:
        assert process.stdout is not None
        await _line(process.stdout, stand.patience)
        await stand.clock.sleep(0.5)
        expect(process.returncode is None, "kubectl logs --follow ended while the container ran")
        await stand.delete("followed", grace=1)
        await stand.ended(pod)
        try:
            async with asyncio.timeout(END_SECONDS):
                await process.stdout.read()
                code = await process.wait()
        except TimeoutError:
            raise Broken(f"kubectl logs --follow did not end within {END_SECONDS:g} s after the container had") from None
        expect(code == 0, f"kubectl logs --follow ended with {code} when the container had ended")


@rule(needs=SupportsLogs)
async def log_left(stand: Stand) -> None:
    """When the reader of a followed log disconnects, the stream is closed: it can be cancelled."""
    (pod,) = await stand.running("left")
    async with stand.judge.started("logs", "--follow", "left") as process:
        assert process.stdout is not None
        await _line(process.stdout, stand.patience)
        process.kill()
        await process.wait()

    def closed() -> bool:
        return all(call.ended is not None for call in stand.recording.of("stream_logs", pod.uid))

    await stand.recording.changes.until(closed, "stream_logs ends when its reader has left", seconds=END_SECONDS)
    await stand.delete("left")
    await stand.ended(pod)


@rule(needs=SupportsLogs)
async def log_unknown(stand: Stand) -> None:
    """The log of a pod the backend does not have is NoSuchPod, so that a caller does not take it for an empty one."""
    stranger = PodRef(stand.judge.namespace, "never-was", str(uuid.uuid4()), stand.node)
    try:
        data = b"".join([chunk async for chunk in stand.capability(SupportsLogs).stream_logs(stranger, "main", LogOptions())])
    except NoSuchPod:
        return
    except ProviderError as error:
        raise Broken(f"the log of a pod that does not exist raised {type(error).__name__}, not NoSuchPod") from error
    raise Broken(f"the log of a pod that does not exist is {data[:80]!r}")


async def _line(stream: asyncio.StreamReader, seconds: float) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            line = await stream.readline()
    except TimeoutError:
        raise Broken(f"kubectl logs --follow showed nothing within {seconds:g} s") from None
    expect(line, "kubectl logs --follow ended without a line")
    return line


LOGS = (log_times, log_follow, log_left, log_unknown)
RULES = (exec_exit_code, exec_output, exec_input, exec_terminal, exec_left, exec_unknown, attach_speaks, port_forward)
