"""Logs, exec, attach, and port-forward of real processes.

Invariant: clients are those of `vkubelet.testing.streams`; what they get is compared with what the programs were made to say.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from attrs import evolve

from tests.integration.process.conftest import Bench, long_time, processes, running, sleeping
from tests.support.program import PATIENCE, eventually
from vkubelet import BadRequest, NoSuchContainer, Pod
from vkubelet.provider import LogOptions, TerminalSize
from vkubelet.testing.streams import MemoryIO, MemoryStream
from vkubelet_providers.process import Process, keepers


async def test_following_through_rotations_gives_every_line_once(settings: Process.Settings) -> None:
    """4 MB in files of 100 KB, of which only two are kept; the reader keeps up because the writer waits for it."""
    count, ahead = 40_000, 500
    async with running(evolve(settings, log_size=100_000, log_files=3)) as bench:
        pod = await bench.start("web", "python3", "-S", "-u", "-c", _WRITER.format(count=count, ahead=ahead), stdin=True)
        try:
            io = MemoryIO(open_stdin=True)
            seen: list[int] = []
            async with asyncio.TaskGroup() as group:
                attached = group.create_task(bench.provider.attach(pod.ref, "main", io))
                io.type(b"go\n")
                await group.create_task(_follow(bench, pod, io, seen=seen, ahead=ahead))
                io.end_stdin()
                await attached
            assert seen == list(range(count))
            files = sorted(Path(settings.directory).glob("pods/*/containers/main/0/log/*.log"))
            assert len(files) == 3 and all(file.stat().st_size <= 100_000 for file in files)
            assert int(files[-1].stem) > 20
            tail = [c async for c in bench.provider.stream_logs(pod.ref, "main", LogOptions(tail=1))]
            assert b"".join(tail).endswith(f"line {count - 1} {'x' * 60}\n".encode())
        finally:
            await bench.remove(pod)


async def _follow(bench: Bench, pod: Pod, io: MemoryIO, *, seen: list[int], ahead: int) -> None:
    """Let the writer go on whenever so many lines more were seen."""
    rest = b""
    async for chunk in bench.provider.stream_logs(pod.ref, "main", LogOptions(follow=True)):
        *lines, rest = (rest + chunk).split(b"\n")
        before = len(seen)
        seen += [int(line.split()[2]) for line in lines]
        io.type(b"on\n" * (len(seen) // ahead - before // ahead))


_WRITER = """
import sys
sys.stdin.readline()
for i in range({count}):
    if i >= 2 * {ahead} and i % {ahead} == 0:
        sys.stdin.readline()
    sys.stdout.write("line %d %s\\n" % (i, "x" * 60))
"""


async def test_one_very_long_line_comes_back_as_one(bench: Bench) -> None:
    pod = await bench.start("web", "python3", "-S", "-c", "print('a' * 1_000_000); print('b')")
    await bench.ended(pod)
    assert await bench.logs(pod) == "a" * 1_000_000 + "\nb\n"


async def test_logs_of_what_is_not_there(bench: Bench) -> None:
    pod = await bench.start("web", "true")
    with pytest.raises(BadRequest, match="previous terminated container"):
        await bench.logs(pod, previous=True)
    with pytest.raises(NoSuchContainer):
        await bench.logs(pod, container="other")


@pytest.fixture
async def pod(bench: Bench) -> Pod:
    """A pod that runs and says nothing."""
    return await bench.start("web", "sleep", "1000", env={"COLOUR": "blue"}, securityContext={"runAsUser": 65534})


@pytest.mark.parametrize("code", [0, 1, 7, 255])
async def test_exec_brings_back_the_exit_code(bench: Bench, pod: Pod, code: int) -> None:
    io = MemoryIO()
    assert await bench.provider.exec(pod.ref, "main", ["sh", "-c", f"echo out; echo err >&2; exit {code}"], io) == code
    assert (io.stdout, io.stderr) == (b"out\n", b"err\n")


async def test_exec_has_what_the_container_has(bench: Bench, pod: Pod) -> None:
    io = MemoryIO()
    await bench.provider.exec(pod.ref, "main", ["sh", "-c", "id -u; echo $COLOUR; hostname; cat /proc/self/cgroup"], io)
    uid, colour, hostname, *cgroups = io.stdout.decode().splitlines()
    assert (uid, colour) == ("65534", "blue")
    if bench.provider.ways.mounts:
        assert hostname == "web"
    if bench.provider.ways.cgroups.limits("memory"):
        assert any("poduid-web/main.0" in line for line in cgroups if "memory" in line or line.startswith("0:"))


async def test_exec_tells_signals_and_what_is_not_there(bench: Bench, pod: Pod) -> None:
    assert await bench.provider.exec(pod.ref, "main", ["sh", "-c", "kill -9 $$"], MemoryIO()) == -9
    with pytest.raises(BadRequest, match="executable file not found"):
        await bench.provider.exec(pod.ref, "main", ["no-such-program"], MemoryIO())


@pytest.mark.parametrize("size", [100, 30_000_000])
async def test_exec_passes_big_input_through(bench: Bench, pod: Pod, size: int) -> None:
    data = hashlib.sha512(b"seed").digest() * (size // 64 + 1)
    io = MemoryIO(data)
    assert await bench.provider.exec(pod.ref, "main", ["cat"], io) == 0
    assert hashlib.sha256(io.stdout).digest() == hashlib.sha256(data).digest()


def shows_size(io: MemoryIO, size: bytes) -> bool:
    """Ask once more: what is typed may be read before the size that was told with it."""
    io.type(b"stty size\n")
    return size in io.stdout


async def test_exec_at_a_terminal_follows_its_size(bench: Bench, pod: Pod) -> None:
    io, long = MemoryIO(tty=True, open_stdin=True, size=TerminalSize(91, 17)), long_time()
    async with asyncio.TaskGroup() as group:
        session = group.create_task(bench.provider.exec(pod.ref, "main", ["sh"], io))
        await eventually(lambda: b"$ " in io.stdout or b"# " in io.stdout, "there is a prompt", every=0.02)
        io.type(b"tty && stty size\n")
        await eventually(lambda: b"17 91" in io.stdout, "the first size is there", every=0.02)
        io.resize(120, 40)
        await eventually(lambda: shows_size(io, b"40 120"), "the second size is there")
        io.type(b"sleep %b\n" % long.encode())
        await eventually(lambda: sleeping(long), "it sleeps", every=0.02)
        io.type(b"\x03")
        io.type(b"exit 9\n")
        assert await session == 9
    assert b"/dev/pts/" in io.stdout


async def test_a_command_at_a_terminal_finds_the_first_size(bench: Bench, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks at once, and the client tells it a moment later."""
    monkeypatch.setattr(keepers, "_SIZE_SECONDS", PATIENCE)
    io = MemoryIO(tty=True, open_stdin=True)
    async with asyncio.TaskGroup() as group:
        session = group.create_task(bench.provider.exec(pod.ref, "main", ["stty", "size"], io))
        await bench.host.clock.sleep(0.05)
        io.resize(93, 19)
        assert await session == 0
    assert io.stdout == b"19 93\r\n"


async def test_a_client_that_leaves_ends_its_command(bench: Bench, pod: Pod) -> None:
    long = long_time()
    async with asyncio.TaskGroup() as group:
        command = ["sh", "-c", f"setsid sleep {long} & sleep {long}"]
        session = group.create_task(bench.provider.exec(pod.ref, "main", command, MemoryIO(open_stdin=True)))
        await eventually(lambda: len(sleeping(long)) == 2, "it runs", every=0.02)
        session.cancel()
    await eventually(lambda: not processes(long), "it ends", every=0.02)


async def test_the_end_of_the_container_ends_its_commands(bench: Bench, pod: Pod) -> None:
    long = long_time()
    async with asyncio.TaskGroup() as group:
        session = group.create_task(bench.provider.exec(pod.ref, "main", ["sleep", long], MemoryIO()))
        await eventually(lambda: sleeping(long), "it runs", every=0.02)
        await bench.provider.stop_container(pod.ref, "main", grace=0)
        assert await session in (-9, 137)
    with pytest.raises(NoSuchContainer):
        await bench.provider.exec(pod.ref, "main", ["true"], MemoryIO())


async def test_attach_gives_input_once_and_shows_both_outputs(bench: Bench) -> None:
    pod = await bench.start("web", "sh", "-c", "cat; echo done >&2; exit 3", stdin=True, stdinOnce=True)
    io = MemoryIO(b"hello\n" * 1000)
    await bench.provider.attach(pod.ref, "main", io)
    assert (io.stdout, io.stderr) == (b"hello\n" * 1000, b"done\n")
    assert (await bench.ended(pod)).exit_code == 3
    assert (await bench.logs(pod)).count("hello") == 1000


async def test_attach_to_a_terminal_can_be_left_and_come_back_to(bench: Bench) -> None:
    pod = await bench.start("web", "sh", stdin=True, tty=True)
    for number in (1, 2):
        async with asyncio.TaskGroup() as group:
            io = MemoryIO(tty=True, open_stdin=True, size=TerminalSize(70 + number, 20))
            session = group.create_task(bench.provider.attach(pod.ref, "main", io))
            io.type(b"echo again-$((40 + %d))\n" % number)
            await eventually(lambda io=io, number=number: shows_size(io, b"20 %d" % (70 + number)), "it answers")
            assert b"again-%d" % (40 + number) in io.stdout
            session.cancel()
    assert (await bench.running(pod)) is not None
    assert "again-41" in await bench.logs(pod)


async def test_a_client_that_reads_nothing_holds_the_container_only_for_a_while(bench: Bench) -> None:
    pod = await bench.start("web", "sh", "-c", "read go; seq 1 400000; echo end", stdin=True)
    io = MemoryIO(open_stdin=True, room=10)
    async with asyncio.TaskGroup() as group:
        session = group.create_task(bench.provider.attach(pod.ref, "main", io))
        io.type(b"go\n")
        assert (await bench.ended(pod)).exit_code == 0
        session.cancel()
    assert (await bench.logs(pod, tail=1)).endswith("end\n")


async def test_port_forward_reaches_a_server_of_the_pod(bench: Bench, tmp_path: Path) -> None:
    script = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); c, _ = s.accept(); "
        "c.sendall(b'got ' + c.makefile('rb').read())"
    )
    pod = await bench.start("web", "python3", "-S", "-c", script)
    await eventually(lambda: bench.logs(pod), "it listens", every=0.05)
    stream = MemoryStream(b"hello")
    stream.end()
    await bench.provider.port_forward(pod.ref, int(await bench.logs(pod)), stream)
    assert stream.received == b"got hello" and stream.closed
    with pytest.raises(ConnectionRefusedError):
        await bench.provider.port_forward(pod.ref, 1, MemoryStream())
