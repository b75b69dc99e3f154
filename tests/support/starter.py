"""A ContainerProvider in memory, whose containers do only what a test says, and what they are asked to.

Invariant: what it holds outlives its `run`, as the containers of a real backend.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from attrs import define, field

from vkubelet.api.objects import Pod, PodRef
from vkubelet.provider import (
    ContainerIO,
    ContainerReport,
    ContainerState,
    Host,
    LogOptions,
    NodeDescription,
    PodReport,
    ResolvedContainer,
    ResolvedPod,
    Running,
    Sandbox,
    Terminated,
)

NODE = "node"


@define
class Box:
    """One container that the backend holds."""

    state: ContainerState
    restarts: int
    stopping: float | None = None


@define
class Backend:
    """What outlives the process. `linger`: seconds that a container needs to end when it is asked to; None: it must be killed."""

    host: Any = None
    boxes: dict[str, dict[str, Box]] = field(factory=dict)
    pods: dict[str, PodRef] = field(factory=dict)
    calls: list[str] = field(factory=list)
    linger: dict[str, float | None] = field(factory=dict)
    group: asyncio.TaskGroup | None = None

    def report(self, uid: str, name: str) -> None:
        box = self.boxes[uid][name]
        if self.host is not None:
            self.host.report(PodReport(self.pods[uid], [ContainerReport(name, box.state, restarts=box.restarts, id=f"x://{name}")]))

    def end(self, uid: str, name: str, code: int, *, at: Any = None) -> None:
        box = self.boxes[uid][name]
        if isinstance(box.state, Running):
            moment = at or (self.host.clock.now() if self.host is not None else None)
            box.state = Terminated(code, started_at=box.state.started_at, finished_at=moment)
            self.report(uid, name)


class Starter:
    """A ContainerProvider that can only start and stop."""

    def __init__(self, backend: Backend | None = None, *, node: str = NODE, address: str = "10.0.0.1") -> None:
        self.backend = backend or Backend()
        self.node, self.address = node, address
        self.timers: list[asyncio.Task[None]] = []
        self.refuse: dict[str, Exception] = {}
        self.gate: asyncio.Event | None = None
        self.resolved: dict[str, ResolvedContainer] = {}

    async def run(self, host: Host) -> None:
        async with asyncio.TaskGroup() as group:
            self.backend.host, self.backend.group = host, group
            host.set_node(NodeDescription(self.node, capacity={"cpu": "4", "memory": "8Gi", "pods": "50"}))
            host.nodes_complete()
            await host.until_stopped()
            for task in self.timers:
                task.cancel()
        self.backend.host = self.backend.group = None

    async def prepare_pod(self, pod: Pod) -> Sandbox:
        self.backend.pods[pod.ref.uid] = pod.ref
        self.backend.calls.append(f"prepare {pod.ref.name}")
        return Sandbox([self.address])

    async def start_container(self, pod: ResolvedPod, container: ResolvedContainer, *, restarts: int) -> None:
        uid, name = pod.pod.ref.uid, container.name
        self.backend.calls.append(f"start {name} {restarts}")
        if self.gate is not None:
            await self.gate.wait()
        if name in self.refuse:
            raise self.refuse[name]
        self.resolved[name] = container
        self.backend.boxes.setdefault(uid, {})[name] = Box(Running(self.backend.host.clock.now()), restarts)
        self.backend.report(uid, name)

    async def stop_container(self, pod: PodRef, container: str, *, grace: float) -> None:
        self.backend.calls.append(f"stop {container} {grace:g}")
        box = self.backend.boxes.get(pod.uid, {}).get(container)
        if box is None or not isinstance(box.state, Running) or self.backend.group is None:
            return
        linger = self.backend.linger.get(container, 0.0)
        killed = linger is None or linger > grace
        self.timers.append(self.backend.group.create_task(self._end(pod.uid, container, grace if killed else linger or 0.0, killed)))

    async def _end(self, uid: str, name: str, after: float, killed: bool) -> None:
        await self.backend.host.clock.sleep(after)
        if name in self.backend.boxes.get(uid, {}):
            self.backend.end(uid, name, 137 if killed else 143)

    async def remove_pod(self, pod: PodRef) -> None:
        self.backend.calls.append(f"remove {pod.name}")
        self.backend.boxes.pop(pod.uid, None)
        self.backend.pods.pop(pod.uid, None)

    async def list_containers(self, node: str) -> Iterable[PodReport]:
        return [
            PodReport(self.backend.pods[uid], [ContainerReport(name, box.state, restarts=box.restarts) for name, box in boxes.items()])
            for uid, boxes in self.backend.boxes.items()
        ]


class Executor(Starter):
    """One that runs commands: `codes` by the first word, with what they print."""

    def __init__(self, backend: Backend | None = None, *, node: str = NODE, address: str = "10.0.0.1") -> None:
        super().__init__(backend, node=node, address=address)
        self.codes: dict[str, int | Exception] = {}
        self.commands: list[str] = []
        self.takes: dict[str, float] = {}
        self.logs = b""

    async def exec(self, pod: PodRef, container: str, command: Sequence[str], io: ContainerIO) -> int:
        word = command[0]
        self.commands.append(word)
        self.backend.calls.append(f"exec {word}")
        await self.backend.host.clock.sleep(self.takes.get(word, 0.0))
        code = self.codes.get(word, 0)
        if isinstance(code, Exception):
            raise code
        await io.write_stdout(f"{word} says {code}".encode())
        return code

    async def stream_logs(self, pod: PodRef, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        await self.backend.host.clock.sleep(self.takes.get("logs", 0.0))
        yield self.logs
