"""A process provider on this host, with a directory and control groups of its own.

Invariant: when a test ends, however it ends, no process, mount, group or file that it made is left.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from tests.support.program import PATIENCE, eventually
from vkubelet import ContainerReport, Pod, PodRef, Running, Terminated
from vkubelet.clock import SystemClock
from vkubelet.provider import LogOptions, Mount, ResolvedContainer, ResolvedPod
from vkubelet.testing.host import RecordingHost, make_pod
from vkubelet_providers.process import Process

NODE = "node"


@define
class Bench:
    """A provider that runs, and the host that it tells."""

    provider: Process
    host: RecordingHost
    pods: list[PodRef] = field(factory=list)

    async def start(self, name: str, *command: str, restarts: int = 0, pod: Pod | None = None, **container: Any) -> Pod:
        """One pod with one container, `main`. `container` is part of its spec, but for `env` and `mounts`, which are resolved."""
        env, mounts = container.pop("env", {}), container.pop("mounts", ())
        spec = {"name": "main", "image": "image", **container}
        made = pod or make_pod(name, node=NODE, spec={"containers": [spec]})
        await self.begin(made, resolved(made, *command, env=env, mounts=mounts, spec=spec), restarts=restarts)
        return made

    async def begin(self, pod: Pod, whole: ResolvedPod, *, restarts: int = 0) -> None:
        if pod.ref not in self.pods:
            self.pods.append(pod.ref)
            await self.provider.prepare_pod(pod)
        for one in whole.containers.values():
            await self.provider.start_container(whole, one, restarts=restarts)

    def report(self, pod: Pod, container: str = "main") -> ContainerReport:
        latest = self.host.latest(pod.ref.uid)
        assert latest is not None, f"{pod.key} was never reported"
        return next(each for each in latest.containers if each.name == container)

    async def running(self, pod: Pod) -> Running:
        state = self.report(pod).state
        assert isinstance(state, Running)
        return state

    async def ended(self, pod: Pod, container: str = "main") -> Terminated:
        def state() -> Terminated | None:
            found = self.report(pod, container).state
            return found if isinstance(found, Terminated) else None

        found: Terminated = await eventually(state, f"{pod.key} ends", every=0.02)
        return found

    async def logs(self, pod: Pod, container: str = "main", **options: Any) -> str:
        """Without the times."""
        text = b"".join([chunk async for chunk in self.provider.stream_logs(pod.ref, container, LogOptions(**options))])
        return "".join(line.partition(" ")[2] for line in text.decode().splitlines(keepends=True))

    async def remove(self, pod: Pod) -> None:
        await self.provider.remove_pod(pod.ref)
        self.pods.remove(pod.ref)


def resolved(
    pod: Pod, *command: str, env: Mapping[str, str] | None = None, mounts: tuple[Mount, ...] = (), spec: Mapping[str, Any]
) -> ResolvedPod:
    """As the runtime would, for a pod that refers to nothing."""
    one = ResolvedContainer(
        name=spec["name"],
        image=spec["image"],
        command=command,
        env=env or {},
        working_dir=spec.get("workingDir", ""),
        mounts=mounts,
        spec=spec,
    )
    return ResolvedPod(pod=pod, containers={one.name: one}, hostname=pod.metadata.name, hosts="127.0.0.1 localhost\n10.1.2.3 other\n")


@asynccontextmanager
async def running(settings: Process.Settings) -> AsyncIterator[Bench]:
    """A provider until the block is left; its containers stay."""
    bench = Bench(Process(settings), RecordingHost(clock=SystemClock()))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(bench.provider.run(bench.host))
        await eventually(lambda: bench.host.complete or task.done(), "the provider declares its node", every=0.02)
        try:
            yield bench
        finally:
            bench.host.stop()


async def clear(settings: Process.Settings) -> None:
    """Everything that is left in a directory."""
    async with running(settings) as bench:
        for held in bench.provider.pods:
            await bench.provider.remove_pod(held.ref)


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Process.Settings]:
    """Of a node that allows everything."""
    group = f"vkubelet-test-{uuid.uuid4().hex[:8]}"
    tmp_path.chmod(0o711)
    yield Process.Settings(
        node=NODE, address="127.0.0.1", directory=str(tmp_path / "process"), allow_root=True, host_paths=["/tmp"], cgroup=group
    )
    remove_groups(group)


@pytest.fixture
async def bench(settings: Process.Settings) -> AsyncIterator[Bench]:
    async with running(settings) as bench:
        try:
            yield bench
        finally:
            for ref in list(bench.pods):
                await bench.provider.remove_pod(ref)


def groups(name: str) -> list[Path]:
    """Control groups below one of this name, deepest first."""
    tops = [Path(line.split()[1]) / name for line in Path("/proc/mounts").read_text().splitlines() if line.split()[2].startswith("cgroup")]
    found = [path for top in tops if top.exists() for path in (*(each for each in top.rglob("*") if each.is_dir()), top)]
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def remove_groups(name: str) -> None:
    """A keeper lets go of its lock a moment before it has left its group."""
    end = time.monotonic() + PATIENCE
    for path in groups(name):
        while path.exists():
            try:
                path.rmdir()
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)


def long_time() -> str:
    """Seconds for which nobody else sleeps, whatever runs on this machine beside the test: by them its processes are known."""
    return str(random.randrange(10**8, 10**9))


def sleeping(seconds: str) -> list[int]:
    """Processes that are `sleep SECONDS`, and nothing else."""
    return processes(seconds, whole=b"sleep\0%b\0" % seconds.encode())


def processes(mark: str, *, whole: bytes = b"") -> list[int]:
    """Whose command lines hold the mark, or are just that."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if line == whole if whole else mark.encode() in line:
                found.append(int(name))
    return found
