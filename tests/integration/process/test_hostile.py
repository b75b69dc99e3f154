"""What goes wrong around a container, or what its program does on purpose: others and the host stay as they are.

Invariant: what is asserted is what the kernel says of files, processes and groups, or what a program of another user is able to do.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from tests.integration.process.conftest import NODE, Bench, long_time, processes, running, sleeping
from tests.support.program import PATIENCE, eventually
from vkubelet import BadRequest, Pod, Running, Terminated, Unavailable
from vkubelet.api.podspec import Kind, Reference
from vkubelet.resolve.references import Content
from vkubelet.testing.host import make_pod
from vkubelet.testing.streams import MemoryIO, MemoryStream
from vkubelet_providers.process import Process, local_pods, provider
from vkubelet_providers.process.cgroups import Cgroups
from vkubelet_providers.process.keeper import frames
from vkubelet_providers.process.keeper.mounts import mount_tmpfs, unmount
from vkubelet_providers.process.local_pods import Container
from vkubelet_providers.process.machine import mount_points
from vkubelet_providers.process.usage import Meters

root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root has mounts and other users")


def container(bench: Bench, pod: Pod) -> Container:
    held = bench.provider.pods.get(pod.ref.uid)
    assert held is not None
    return held.containers["main"]


async def mounted(bench: Bench, name: str, script: str, *, volumes: dict[str, Any], at: dict[str, str], user: int = 65534) -> Pod:
    """A pod whose volumes are resolved as the runtime does it."""
    main = {"name": "main", "image": "image", "command": ["sh", "-c", script], "securityContext": {"runAsUser": user}}
    main["volumeMounts"] = [{"name": volume, "mountPath": path} for volume, path in at.items()]
    spec = {"containers": [main], "volumes": [{"name": volume, **source} for volume, source in volumes.items()]}
    pod = make_pod(name, node=NODE, spec=spec)
    sandbox = await bench.provider.prepare_pod(pod)
    await bench.begin(pod, await bench.host.resolve(pod, files=sandbox.files, pod_ips=sandbox.ips))
    return pod


def _open(directory: Path) -> None:
    """The directories of a node are not hidden behind one of its administrator either."""
    for path in directory.parents:
        if path.stat().st_uid == os.getuid() and not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o011)


@root_only
async def test_a_command_does_not_take_a_device_of_the_host(bench: Bench) -> None:
    pod = await bench.start("web", "sleep", "1000", securityContext={"runAsUser": 12345})
    assert await bench.provider.exec(pod.ref, "main", ["true"], MemoryIO()) == 0
    assert os.stat(os.devnull).st_uid != 12345


async def test_a_program_gets_nothing_of_ours(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "ours")
    keep = os.open("/", os.O_RDONLY)
    os.set_inheritable(keep, True)
    try:
        script = "env; for each in /proc/self/fd/*; do readlink $each; done; echo END; sleep 1000"
        pod = await bench.start("web", "sh", "-c", script + " & wait")
        io = MemoryIO()
        await bench.provider.exec(pod.ref, "main", ["sh", "-c", "env; ls -l /proc/self/fd"], io)

        async def spoken() -> str:
            text = await bench.logs(pod)
            return text if text.endswith("END\n") else ""

        first = await eventually(spoken, "it has spoken", every=0.05)
    finally:
        os.close(keep)
    assert "KUBECONFIG" not in first and b"KUBECONFIG" not in io.stdout
    for text in (first, io.stdout.decode()):
        assert "socket:" not in text and "lock" not in text and "log" not in text.replace("logs", "")


async def test_a_start_that_nobody_waits_for_any_more_is_found_again(bench: Bench) -> None:
    """As if we were killed after the order was sent, and before the answer was read."""
    nursery = bench.provider._nursery
    usual = nursery.launch

    async def cut_off(order: Any, lock: int) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        await nursery._send(frames.frame(frames.ASK, json.dumps(order).encode()), [lock, writing])
        os.close(writing)
        raise asyncio.CancelledError

    long = long_time()
    nursery.launch = cut_off  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await bench.start("web", "sleep", long)
    nursery.launch = usual  # type: ignore[method-assign]
    (before,) = await eventually(lambda: sleeping(long), "it runs", every=0.02)
    pod = await bench.start("web", "sleep", long)
    assert await bench.running(pod) and container(bench, pod).state.pid == before
    assert container(bench, pod).attempt.is_kept()


@root_only
@pytest.mark.parametrize("top", [f"/data-{uuid.uuid4().hex}", "/tmp"], ids=["beside", "over the provider's own files"])
async def test_a_volume_below_a_volume_leaves_the_upper_one_what_it_is(bench: Bench, tmp_path: Path, top: str) -> None:
    (tmp_path / "key").write_text("inner")
    sub = f"{top}/sub-{uuid.uuid4().hex}"
    volumes = {"data": {"emptyDir": {}}, "inner": {"hostPath": {"path": str(tmp_path)}}}
    script = f"echo kept > {top}/file; cat {sub}/deep/key; dd if=/dev/zero of={top}/big bs=1M count=20 2>&1"
    pod = await mounted(bench, "web", script, volumes=volumes, at={"inner": f"{sub}/deep", "data": top})
    ended = await bench.ended(pod)
    assert ended.exit_code == 0, await bench.logs(pod)
    held = bench.provider.pods.get(pod.ref.uid)
    assert held is not None and (held.volumes / "data/file").read_text() == "kept\n"
    assert (await bench.logs(pod)).startswith("inner") and not Path(sub).exists()
    assert top == "/tmp" or not Path(top).exists()


@root_only
async def test_without_mounts_a_program_does_not_write_to_what_the_runtime_fills(settings: Process.Settings, tmp_path: Path) -> None:
    """There we write as root, and would follow the links that it leaves."""
    _open(tmp_path)
    async with running(evolve(settings, mounts=False)) as bench:
        bench.host.objects[Reference(Kind.CONFIGMAP, "config")] = Content(text={"key": "value"})
        script = "cd $VKUBELET_ROOT/srv/config && cat key && ! touch x && ! ln -sfn /tmp ..data && ! mv ..data y"
        pod = await mounted(bench, "web", script, volumes={"config": {"configMap": {"name": "config"}}}, at={"config": "/srv/config"})
        try:
            assert (await bench.ended(pod)).exit_code == 0, await bench.logs(pod)
            assert "value" in await bench.logs(pod)
        finally:
            await bench.remove(pod)


@root_only
async def test_secrets_are_in_memory_alone_also_after_a_restart_and_go_with_their_pod(settings: Process.Settings) -> None:
    async def filesystem(bench: Bench) -> str:
        io = MemoryIO()
        assert await bench.provider.exec(pod.ref, "main", ["stat", "-f", "-c", "%T", "/srv/s/key"], io) == 0
        return io.stdout.decode().strip()

    async with running(settings) as bench:
        bench.host.objects[Reference(Kind.SECRET, "s")] = Content(binary={"key": b"password"}, secret=True)
        volumes = {"s": {"secret": {"secretName": "s"}}}
        pod = await mounted(bench, "web", "sleep 1000", volumes=volumes, at={"s": "/srv/s"}, user=1001)
        assert await filesystem(bench) == "tmpfs"
    async with running(settings) as bench:
        bench.pods.append(pod.ref)
        await bench.provider.prepare_pod(pod)
        assert await filesystem(bench) == "tmpfs"
        await bench.remove(pod)
    assert not [point for point in mount_points() if point.startswith(settings.directory)]


@root_only
async def test_a_disk_that_is_full_costs_lines_and_neither_the_container_nor_its_exit_code(settings: Process.Settings) -> None:
    Path(settings.directory).mkdir()
    mount_tmpfs(settings.directory, "size=1m")
    try:
        async with running(settings) as bench:
            pod = await bench.start("web", "sh", "-c", "seq 1 400000; exit 3")
            try:
                assert (await bench.ended(pod)).exit_code == 3
                lines = (await bench.logs(pod)).splitlines()
                assert lines[:1000] == [str(number) for number in range(1, 1001)] and all(line.isdigit() for line in lines)
                assert len(lines) < 400_000 and (await bench.ended(pod)).reason == "Error"
            finally:
                await bench.remove(pod)
    finally:
        unmount(settings.directory)


async def test_numbers_of_many_containers_hold_up_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.start("web", "sleep", "1000")
    usual, threads = bench.provider._meters.read, set[int]()

    def noted(*args: Any, **kwargs: Any) -> Any:
        threads.add(threading.get_ident())
        return usual(*args, **kwargs)

    monkeypatch.setattr(Meters, "read", lambda self, *args, **kwargs: noted(*args, **kwargs))
    await bench.provider.stats_summary(NODE)
    assert threads and threading.get_ident() not in threads


@root_only
async def test_pods_do_not_reach_the_files_of_one_another(bench: Bench, tmp_path: Path) -> None:
    _open(tmp_path)
    volumes = {"data": {"emptyDir": {}}}
    mine = await mounted(bench, "mine", "echo 1 > /srv/own/x; sleep 1000", volumes=volumes, at={"data": "/srv/own"}, user=1001)
    held = bench.provider.pods.get(mine.ref.uid)
    assert held is not None
    await eventually(lambda: (held.volumes / "data/x").exists(), "it writes", every=0.02)
    tries = [
        f"ls {bench.provider.directory}/pods",
        f"ls {held.directory}",
        f"cat {held.volumes}/data/x",
        f"touch {held.volumes}/data/y",
        f"sh -c 'echo forged > {container(bench, mine).attempt.message_file}'",
        f"sh -c 'echo forged > {container(bench, mine).attempt.directory}/state.json'",
        f"cat {container(bench, mine).attempt.logs}/000000.log",
        f"kill -9 {container(bench, mine).state.keeper}",
    ]
    script = "; ".join(f"{each} 2>&1 && echo DONE {number}" for number, each in enumerate(tries)) + "; exit 0"
    other = await bench.start("other", "sh", "-c", script, securityContext={"runAsUser": 1002})
    await bench.ended(other)
    assert "DONE" not in await bench.logs(other), await bench.logs(other)
    assert await bench.running(mine)


async def test_a_keeper_that_is_killed_takes_the_session_along_without_groups(settings: Process.Settings) -> None:
    long = long_time()
    async with running(evolve(settings, cgroup="")) as bench:
        pod = await bench.start("web", "sh", "-c", f"sleep {long} & sleep {long} & wait")
        try:
            await eventually(lambda: len(sleeping(long)) == 2, "both run", every=0.02)
            os.kill(container(bench, pod).state.keeper, signal.SIGKILL)
            await bench.ended(pod)
            await eventually(lambda: not processes(long), "all end", every=0.02)
        finally:
            for pid in sleeping(long):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await bench.remove(pod)


@pytest.mark.parametrize("group", [True, False], ids=["with groups", "without"])
async def test_a_keeper_that_does_not_answer_is_ended_with_its_pod(
    settings: Process.Settings, monkeypatch: pytest.MonkeyPatch, group: bool
) -> None:
    monkeypatch.setattr(local_pods, "_PATIENCE", 0.3)
    long = long_time()
    async with running(settings if group else evolve(settings, cgroup="")) as bench:
        pod = await bench.start("web", "sh", "-c", f"sleep {long}; true")
        keeper = container(bench, pod).state.keeper
        os.kill(keeper, signal.SIGSTOP)
        try:
            await asyncio.wait_for(bench.remove(pod), PATIENCE)
        finally:
            with suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGCONT)
        await eventually(lambda: not processes(long), "it has ended", every=0.02)


@pytest.mark.parametrize("text", ['{"namespace": "default", "name": "web", "uid": "uid-web", "node": "node", "later": 1}', "{"])
async def test_what_can_not_be_read_of_a_pod_does_not_cost_its_life(settings: Process.Settings, text: str) -> None:
    """Such as what a later version has written."""
    long = long_time()
    async with running(settings) as bench:
        pod = await bench.start("web", "sleep", long)
        reference, before = container(bench, pod).attempt.directory.parents[2] / "pod.json", container(bench, pod).state
    reference.write_text(text)
    async with running(settings) as bench:
        bench.pods.append(pod.ref)
        await bench.provider.prepare_pod(pod)
        await bench.start("web", "sleep", long, pod=pod)
        assert container(bench, pod).state == before and await bench.running(pod)
        assert len(sleeping(long)) == 1
        await bench.remove(pod)


async def test_half_a_record_is_told_as_unknown_and_runs_nothing_again(settings: Process.Settings) -> None:
    async with running(settings) as bench:
        pod = await bench.start("web", "true")
        await bench.ended(pod)
        (container(bench, pod).attempt.directory / "state.json").write_text("")
    async with running(settings) as bench:
        (report,) = await bench.provider.list_containers(NODE)
        state = report.containers[0].state
        assert isinstance(state, Terminated) and (state.exit_code, state.reason) == (137, "ContainerStatusUnknown")
        await bench.provider.remove_pod(pod.ref)


async def test_a_keeper_that_says_nothing_does_not_hold_up_the_others(settings: Process.Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_pods, "_STARTING_SECONDS", 0.2)
    async with running(settings) as bench:
        pod, other = await bench.start("web", "sleep", "1000"), await bench.start("xother", "sleep", "1000")
        lock = (container(bench, pod).attempt.directory.parent / "1").absolute()
    lock.mkdir()
    held = os.open(lock / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        async with running(settings) as bench:
            reports = {each.pod.name: each for each in await bench.provider.list_containers(NODE)}
            assert isinstance(reports["xother"].containers[0].state, Running)
            with pytest.raises(Unavailable, match="does not respond"):
                await bench.start("web", "sleep", "1000", pod=pod, restarts=1)
            os.close(held)
            for ref in (pod.ref, other.ref):
                await bench.provider.remove_pod(ref)
    finally:
        shutil.rmtree(lock, ignore_errors=True)


async def test_another_nursery_takes_the_place_of_one_that_is_killed(bench: Bench) -> None:
    pod = await bench.start("before", "sleep", "1000")
    nursery = bench.provider._nursery._process
    assert nursery is not None
    nursery.kill()
    await nursery.wait()
    other = await bench.start("after", "sleep", "1000")
    assert await bench.running(pod) and await bench.running(other)
    assert all(container(bench, each).attempt.is_kept() for each in (pod, other))


async def test_a_keeper_leaves_the_groups_of_a_service(bench: Bench, settings: Process.Settings) -> None:
    """Those by which a service manager knows its processes, too."""
    trees = [line.split() for line in Path("/proc/mounts").read_text().splitlines() if line.split()[2] in ("cgroup", "cgroup2")]
    tracked = [tree[1] for tree in trees if "name=" in tree[3] or tree[2] == "cgroup2"]
    if not tracked or not os.access(tracked[0], os.W_OK) or os.getuid() != 0:
        pytest.skip("no such groups here")
    pod = await bench.start("web", "sleep", "1000")
    lines = Path(f"/proc/{container(bench, pod).state.keeper}/cgroup").read_text().splitlines()
    kept = [line for line in lines if "name=" in line or line.startswith("0:")]
    assert kept and all(settings.cgroup in line for line in kept), kept


@contextmanager
def listening_on_one_family() -> Iterator[socket.socket]:
    """A server of IPv6 whose port nobody else serves by IPv4 meanwhile. Raises OSError."""
    while True:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as server, socket.socket() as other:
            try:
                other.bind(("127.0.0.1", server.getsockname()[1]))
            except OSError:
                continue
            yield server
            return


async def test_port_forward_reaches_a_server_of_the_other_family(bench: Bench) -> None:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(listening_on_one_family())
        except OSError:
            pytest.skip("no IPv6 here")
        server.settimeout(PATIENCE)
        pod = await bench.start("web", "sleep", "1000")
        stream = MemoryStream(b"hello")
        stream.end()

        def answer() -> bytes:
            connection, _ = server.accept()
            with connection:
                return connection.recv(100)

        async with asyncio.TaskGroup() as group:
            got = group.create_task(asyncio.to_thread(answer))
            await bench.provider.port_forward(pod.ref, server.getsockname()[1], stream)
        assert got.result() == b"hello"


@pytest.fixture
def fifo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file that processes of pods named `hang…` open when they start: that lasts until there is a reader, as with a disk that hangs."""
    path, usual = str(tmp_path / "fifo"), Cgroups.join_files
    os.mkfifo(path)
    monkeypatch.setattr(Cgroups, "join_files", lambda self, uid, name: [path] if "hang" in uid else usual(self, uid, name))
    return path


async def test_starts_that_hang_do_not_keep_others_from_starting(bench: Bench, fifo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "_PLACE_SECONDS", 0.2)
    async with asyncio.TaskGroup() as group:
        hanging = [group.create_task(bench.start(f"hang-{number}", "sleep", "1000")) for number in range(2 * provider._STARTS_AT_ONCE)]
        other = await bench.start("other", "sleep", "1000")
        assert await bench.running(other) and not any(task.done() for task in hanging)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    assert all([await bench.running(task.result()) for task in hanging])
    os.close(reader)


async def test_a_command_that_hangs_stops_neither_the_container_nor_its_log(settings: Process.Settings, fifo: str) -> None:
    async with running(evolve(settings, start_timeout=1.0)) as bench:
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        pod = await bench.start("hang", "sh", "-c", "while echo line; do sleep 0.02; done")
        os.close(reader)
        async with asyncio.TaskGroup() as group:
            command = group.create_task(refused(bench, pod))
            before = (await bench.logs(pod)).count("line")

            async def more() -> bool:
                return (await bench.logs(pod)).count("line") > before + 5

            await eventually(more, "the log grows", every=0.05)
            assert not command.done()
        assert "cgroup: not done within 1 s" in command.result()
        await bench.remove(pod)


async def refused(bench: Bench, pod: Pod) -> str:
    with pytest.raises(BadRequest) as error:
        await bench.provider.exec(pod.ref, "main", ["true"], MemoryIO())
    return str(error.value)


async def test_limits_are_written_in_a_thread(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """To lower a limit the kernel may first write out what is in memory."""
    if not bench.provider.ways.cgroups.hierarchies:
        pytest.skip("no control group can be written to")
    usual, threads = Cgroups.update, set[int]()

    def noted(self: Cgroups, uid: str, name: str, **limits: Any) -> None:
        threads.add(threading.get_ident())
        usual(self, uid, name, **limits)

    monkeypatch.setattr(Cgroups, "update", noted)
    pod = await bench.start("web", "sleep", "1000")
    await bench.provider.resize_container(pod.ref, "main", {"limits": {"memory": "64Mi"}})
    assert threads and threading.get_ident() not in threads
