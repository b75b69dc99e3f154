"""Exec, attach, port-forward and ephemeral containers of mock pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from vkubelet.api.objects import Pod
from vkubelet.errors import NoSuchContainer, NoSuchPod
from vkubelet.provider import PodRef, Running, SupportsAttach, SupportsExec, SupportsPortForward, TerminalSize, Terminated
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost, make_pod
from vkubelet.testing.streams import MemoryIO, MemoryStream
from vkubelet_providers.mock import Mock
from vkubelet_providers.mock import exec as mock_exec
from vkubelet_providers.mock.exec import Session
from vkubelet_providers.mock.files import Files

DEBUGGER = {"ephemeralContainers": [{"name": "debug", "image": "busybox", "stdin": True, "tty": True}]}


@asynccontextmanager
async def running(*pods: Pod) -> AsyncIterator[tuple[Mock, RecordingHost]]:
    """A mock with these pods, as soon as nothing moves."""
    mock, host = Mock(), RecordingHost()
    async with asyncio.TaskGroup() as group:
        group.create_task(mock.run(host))
        await host.manual_clock.settle()
        for pod in pods:
            await mock.sync_pod(pod)
        await host.manual_clock.settle()
        yield mock, host
        host.stop()


def scripted(name: str = "web", *, spec: dict[str, object] | None = None, **script: object) -> Pod:
    annotations = {f"mock.vkubelet.io/{key.replace('_', '-')}": str(value) for key, value in script.items()}
    return make_pod(name, node="mock", metadata={"annotations": annotations}, spec=spec)


def test_mock_has_these_capabilities() -> None:
    mock = Mock()
    assert isinstance(mock, SupportsExec) and isinstance(mock, SupportsAttach) and isinstance(mock, SupportsPortForward)


# --- exec ------------------------------------------------------------------------------------------------------------------------------


async def run(*argv: str, stdin: bytes | None = None, files: Files | None = None) -> tuple[int, bytes, bytes]:
    """Runs a command without a pod: its exit code and both outputs."""
    io = MemoryIO(stdin)
    code = await Session(io=io, hostname="web", files=files or Files("web"), clock=ManualClock()).run(argv)
    return code, io.stdout, io.stderr


@pytest.mark.parametrize(
    ("script", "code", "out", "err"),
    [
        ("exit 7", 7, "", ""),
        ("exit 256; echo never", 0, "", ""),
        ("false; exit", 0, "", ""),
        ("false; true", 0, "", ""),
        ("true; false", 1, "", ""),
        ("sh -c 'exit 5'; echo on", 0, "on\n", ""),
        ("echo out; echo err >&2; kill -9 $$; echo never", 137, "out\n", "err\n"),
        ("hostname; cat /etc/hostname", 0, "web\nweb\n", ""),
        ("seq 2 4", 0, "2\n3\n4\n", ""),
        ("echo 'a  b;' c", 0, "a  b; c\n", ""),
        ("nothing-like-this", 127, "", "sh: nothing-like-this: not found\n"),
        ("stty size", 127, "", "sh: stty: not found\n"),
        ("cat /none", 1, "", "cat: /none: No such file or directory\n"),
        ("test -d /tmp", 0, "", ""),
        ("test -d /tmp/x", 1, "", ""),
        ("tar xf /tmp/a", 1, "", "tar: only `tar cf - PATH` and `tar -xmf - -C DIRECTORY` are supported\n"),
        ("echo a | cat", 2, "", "sh: |: not supported by the mock provider, which has no shell\n"),
        ("echo a >/tmp/x", 2, "", "sh: >/tmp/x: not supported by the mock provider, which has no shell\n"),
        (">&2", 0, "", ""),
        ("echo 'open", 2, "", "sh: syntax error: No closing quotation\n"),
    ],
)
async def test_scripts_run_the_few_commands_there_are(script: str, code: int, out: str, err: str) -> None:
    assert await run("sh", "-c", script) == (code, out.encode(), err.encode())


async def test_standard_input_reaches_the_command() -> None:
    data = bytes(range(256)) * 1000
    assert await run("cat", stdin=data) == (0, data, b"")
    assert await run("cat") == (0, b"", b"")
    assert await run("sh", stdin=b"echo one\nexit 4\necho never\n") == (4, b"one\n", b"")
    assert await run("sh", stdin=b"echo no newline") == (0, b"no newline\n", b"")


async def test_archives_pass_as_kubectl_cp_sends_them() -> None:
    source, target = Files("one"), Files("two")
    code, archive, _ = await run("tar", "cf", "-", "/etc", files=source)
    assert code == 0 and len(archive) % 512 == 0
    assert await run("tar", "-xmf", "-", "-C", "/tmp", stdin=archive, files=target) == (0, b"", b"")
    assert target.read("/tmp/etc/hostname") == b"one\n"
    assert await run("tar", "cf", "-", "/none") == (1, b"", b"tar: No such file or directory\n")
    assert (await run("tar", "-xmf", "-", stdin=b"no archive" * 100))[0] == 1


async def test_archive_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mock_exec, "LIMIT", 100)
    assert await run("tar", "-xmf", "-", stdin=bytes(101)) == (1, b"", b"tar: the archive has more than 100 bytes\n")


async def test_a_terminal_echoes_lines_and_knows_its_size() -> None:
    clock, io = ManualClock(), MemoryIO(tty=True, open_stdin=True, size=TerminalSize(80, 24))

    async def typed(text: str) -> str:
        before = len(io.stdout)
        io.type(text.encode())
        await clock.settle()
        return io.stdout[before:].decode()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(Session(io=io, hostname="web", files=Files("web"), clock=clock).run(["sh"]))
        await clock.settle()
        assert io.stdout == b"/ # "
        assert await typed("stty") == "stty"
        assert await typed(" size\r") == " size\r\n24 80\r\n/ # "
        io.resize(0, 0)
        io.resize(120, 40)
        assert await typed("stty size; echo err >&2\r") == "stty size; echo err >&2\r\n40 120\r\nerr\r\n/ # "
        assert await typed("exit 3\r") == "exit 3\r\n"
    assert task.result() == 3


@pytest.mark.parametrize("key", ["\x03", "\x04", ""])
async def test_a_terminal_ends_with_its_input(key: str) -> None:
    clock, io = ManualClock(), MemoryIO(tty=True, open_stdin=True)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(Session(io=io, hostname="web", files=Files("web"), clock=clock).run(["sh"]))
        io.type(f"echo last{key}".encode())
        if not key:
            io.end_stdin()
        await clock.settle()
    assert io.stdout == b"/ # echo lastlast\r\n/ # " and task.result() == 0


async def test_a_terminal_without_a_size_has_a_common_one() -> None:
    clock, io = ManualClock(), MemoryIO(tty=True, open_stdin=True)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(Session(io=io, hostname="web", files=Files("web"), clock=clock).run(["stty", "size"]))
        await clock.advance(1.0)
    assert (task.result(), io.stdout) == (0, b"24 80\r\n")


async def test_a_client_that_reads_nothing_blocks_the_command_and_can_leave() -> None:
    clock, io = ManualClock(), MemoryIO(b"x" * 1000, room=10, open_stdin=True)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(Session(io=io, hostname="web", files=Files("web"), clock=clock).run(["cat"]))
        for _ in range(10):
            io.type(b"y" * 10)
        await clock.settle()
        assert len(io.stdout) == 1000 and not task.done()
        task.cancel()
    assert task.cancelled()


async def test_files_belong_to_a_container_that_goes_by_the_hostname_of_its_pod() -> None:
    pod = scripted(spec={"hostname": "box"}, log_text="{hostname}")
    async with running(pod) as (mock, _):
        archive = (await run("tar", "cf", "-", "/etc"))[1]
        assert await mock.exec(pod.ref, "main", ["tar", "-xmf", "-", "-C", "/tmp"], MemoryIO(archive)) == 0
        io = MemoryIO()
        assert await mock.exec(pod.ref, "main", ["sh", "-c", "hostname; cat /etc/hostname /tmp/etc/hostname; exit 7"], io) == 7
        assert io.stdout == b"box\nbox\nweb\n"


async def test_sleep_takes_its_time() -> None:
    clock, io = ManualClock(), MemoryIO()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(Session(io=io, hostname="web", files=Files("web"), clock=clock).run(["sh", "-c", "sleep 2.5; echo done"]))
        await clock.advance(2.4)
        assert not task.done()
        await clock.advance(0.2)
    assert (task.result(), io.stdout) == (0, b"done\n")


async def test_scripted_command_waits_says_and_returns_what_the_annotations_tell() -> None:
    pod, silent = scripted(exec_delay=5, exec_output="done\n", exec_exit_code=3), scripted("silent", exec_exit_code=9)
    async with running(pod, silent) as (mock, host):
        io = MemoryIO()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(mock.exec(pod.ref, "main", ["anything"], io))
            await host.manual_clock.advance(4.9)
            assert not task.done()
            await host.manual_clock.advance(0.2)
        assert (task.result(), io.stdout) == (3, b"done\n")
        assert await mock.exec(silent.ref, "main", ["true"], MemoryIO()) == 9
        changed = make_pod("silent", node="mock")
        await mock.sync_pod(changed)
        assert await mock.exec(changed.ref, "main", ["true"], MemoryIO()) == 0


async def test_commands_want_a_container_that_runs() -> None:
    waiting, gone = scripted(start_delay=5), PodRef("default", "gone", "uid-gone", "mock")
    async with running(waiting) as (mock, _):
        for ref, container, error in (
            (waiting.ref, "main", NoSuchContainer), (waiting.ref, "other", NoSuchContainer), (gone, "main", NoSuchPod),
        ):  # fmt: skip
            with pytest.raises(error):
                await mock.exec(ref, container, ["true"], MemoryIO())
            with pytest.raises(error):
                await mock.attach(ref, container, MemoryIO())


@pytest.mark.parametrize("end", ["delete", "lose", "script"])
async def test_a_container_that_ends_takes_its_commands_along(end: str) -> None:
    pod = scripted(run_for=10) if end == "script" else scripted()
    async with running(pod) as (mock, host):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(mock.exec(pod.ref, "main", ["sleep", "1000"], MemoryIO()))
            await host.manual_clock.settle()
            if end == "delete":
                await mock.delete_pod(pod.ref, 0.0)
            elif end == "lose":
                mock.drop_pod(pod.ref.uid)
            else:
                await host.manual_clock.advance(10.0)
            await host.manual_clock.settle()
            assert task.done()
        assert task.result() == 137


async def test_a_failing_client_is_raised_as_it_is() -> None:
    class Broken(MemoryIO):
        async def write_stdout(self, data: bytes) -> None:
            raise ConnectionResetError("the client is gone")

    pod = scripted()
    async with running(pod) as (mock, _):
        for command in (["echo", "x"], ["sh", "-c", "sleep 0; echo x"]):
            with pytest.raises(ConnectionResetError):
                await mock.exec(pod.ref, "main", command, Broken())
        with pytest.raises(ConnectionResetError):
            await mock.exec(pod.ref, "main", ["sh"], Broken(tty=True, open_stdin=True))
        with pytest.raises(ConnectionResetError):
            await mock.attach(pod.ref, "main", Broken(b"x"))


# --- attach ----------------------------------------------------------------------------------------------------------------------------


async def test_attached_client_sees_what_comes_and_hears_itself() -> None:
    pod = scripted(log_interval=2)
    async with running(pod) as (mock, host):
        watching, talking, terminal = MemoryIO(), MemoryIO(b"hello\n", open_stdin=True), MemoryIO(tty=True, open_stdin=True)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(mock.attach(pod.ref, "main", io)) for io in (watching, talking, terminal)]
            await host.manual_clock.advance(2.0)
            terminal.type(b"x\r")
            await host.manual_clock.settle()
            assert watching.stdout == b"main: still runs, line 1\n"
            assert talking.stdout == b"hello\nmain: still runs, line 1\n"
            assert terminal.stdout == b"main: still runs, line 1\r\nx\r\n"
            talking.end_stdin()
            await host.manual_clock.settle()
            assert [task.done() for task in tasks] == [False, True, False]
            await mock.delete_pod(pod.ref, 0.0)


# --- ephemeral containers --------------------------------------------------------------------------------------------------------------


async def test_ephemeral_container_joins_a_running_pod_and_is_a_shell() -> None:
    pod = scripted()
    async with running(pod) as (mock, host):
        debugged = scripted(spec=DEBUGGER)
        await mock.sync_pod(debugged)
        report = host.latest(pod.ref.uid)
        assert report is not None and [container.name for container in report.containers] == ["main", "debug"]
        assert isinstance(report.containers[1].state, Running)
        io = MemoryIO(b"stty size\rhostname\rexit 5\r", tty=True, size=TerminalSize(90, 30))
        await mock.attach(pod.ref, "debug", io)
        assert io.stdout.endswith(b"30 90\r\n/ # web\r\n/ # ")
        ended = host.latest(pod.ref.uid)
        assert ended is not None and isinstance(ended.containers[0].state, Running)
        assert isinstance(ended.containers[1].state, Terminated) and ended.containers[1].state.exit_code == 5
        await mock.sync_pod(debugged)
        assert host.latest(pod.ref.uid) == ended
        with pytest.raises(NoSuchContainer):
            await mock.exec(pod.ref, "debug", ["true"], MemoryIO())


async def test_ephemeral_container_waits_for_its_pod_and_ends_with_it() -> None:
    pod = scripted(spec={**DEBUGGER, "restartPolicy": "Never"}, start_delay=5, run_for=10)
    async with running(pod) as (mock, host):
        states = []
        for _ in range(3):
            report = host.latest(pod.ref.uid)
            assert report is not None
            states.append(type(report.containers[1].state).__name__)
            await host.manual_clock.advance(6.0)
            await mock.sync_pod(pod)
        assert states == ["Waiting", "Running", "Running"]
        report = host.latest(pod.ref.uid)
        assert report is not None and isinstance(report.containers[1].state, Terminated) and report.containers[1].state.exit_code == 137


# --- port-forward ----------------------------------------------------------------------------------------------------------------------


async def forwarded(mock: Mock, pod: Pod, port: int, data: bytes) -> MemoryStream:
    stream = MemoryStream(data)
    stream.end()
    await mock.port_forward(pod.ref, port, stream)
    return stream


async def test_ports_answer_as_the_annotation_says() -> None:
    open_, listed, closed = scripted("open"), scripted("listed", ports="80=http,7=discard,9000"), scripted("closed", ports="")
    async with running(open_, listed, closed) as (mock, _):
        stream = await forwarded(mock, open_, 1234, b"data")
        assert stream.received == b"data" and stream.closed
        assert (await forwarded(mock, listed, 9000, b"data")).received == b"data"
        assert (await forwarded(mock, listed, 7, b"data")).received == b""
        answer = (await forwarded(mock, listed, 80, b"GET /x HTTP/1.1\r\nHost: web\r\n\r\n")).received
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"\r\n\r\nlisted answers at /x\n")
        for pod, port in ((listed, 81), (closed, 80)):
            with pytest.raises(ConnectionRefusedError, match=f"connection to port {port} of pod default/.* was refused"):
                await forwarded(mock, pod, port, b"")


async def test_a_pod_that_ends_cuts_its_connections_and_one_that_waits_has_none() -> None:
    pod, waiting = scripted(), scripted("waiting", start_delay=5)
    async with running(pod, waiting) as (mock, host):
        with pytest.raises(ConnectionRefusedError):
            await forwarded(mock, waiting, 80, b"")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(mock.port_forward(pod.ref, 80, MemoryStream(b"data")))
            await host.manual_clock.settle()
            assert not task.done()
            await mock.delete_pod(pod.ref, 0.0)
