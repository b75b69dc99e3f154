"""Exec, attach, port-forward and ephemeral containers of mock pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from vkubelet.api.objects import Pod
from vkubelet.errors import NoSuchContainer, NoSuchPod
from vkubelet.provider import PodRef, Running, SupportsAttach, SupportsExec, SupportsPortForward, TerminalSize, Terminated
from vkubelet.testing.host import RecordingHost, make_pod
from vkubelet.testing.streams import MemoryIO, MemoryStream
from vkubelet_providers.mock import Mock

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


async def test_commands_run_in_a_container_and_files_stay_in_it() -> None:
    pod = scripted()
    async with running(pod) as (mock, _):
        assert await mock.exec(pod.ref, "main", ["sh", "-c", "hostname > /tmp/name"], MemoryIO()) == 0
        io = MemoryIO()
        assert await mock.exec(pod.ref, "main", ["sh", "-c", "cat /tmp/name; echo $HOSTNAME; exit 7"], io) == 7
        assert io.stdout == b"web\nweb\n"


async def test_a_container_goes_by_the_hostname_of_its_pod() -> None:
    pod = scripted(spec={"hostname": "box"}, log_text="{hostname}")
    async with running(pod) as (mock, _):
        io = MemoryIO()
        assert await mock.exec(pod.ref, "main", ["sh", "-c", "hostname; cat /etc/hostname; echo $HOSTNAME"], io) == 0
        assert io.stdout == b"box\nbox\nbox\n"


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
                mock.lose(pod.ref.uid)
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
        for command in (["echo", "x"], ["sh", "-c", "yes | cat"]):
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
