"""The adapter over a ContainerProvider in memory, and a clock that stands still: a test moves the time and ends containers.

Invariant: what is looked at is what the runtime is reported, and what the provider was asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import define

from tests.support.starter import Backend, Box, Executor, Starter
from vkubelet.api.objects import Pod
from vkubelet.containers.adapter import adapt
from vkubelet.errors import Unavailable
from vkubelet.provider import ContainerReport, Provider, ResolvedPod, Running, Waiting
from vkubelet.testing.host import RecordingHost, make_pod, with_status


class ResolvingHost(RecordingHost):
    """`missing` is raised when it is set."""

    missing: Exception | None = None

    async def resolve(
        self, pod: Pod, *, files: Path | None = None, pod_ips: Sequence[str] = (), containers: Collection[str] | None = None
    ) -> ResolvedPod:
        if self.missing is not None:
            raise self.missing
        return await super().resolve(pod, files=files, pod_ips=pod_ips, containers=containers)


@define
class Bench:
    """The runtime's side: syncs and deletes one pod, and looks at the reports."""

    provider: Any
    host: ResolvingHost
    adapter: Provider
    pod: Pod

    @property
    def uid(self) -> str:
        return self.pod.ref.uid

    @property
    def backend(self) -> Backend:
        found: Backend = self.provider.backend
        return found

    async def sync(self, spec: dict[str, Any] | None = None, *, status: dict[str, Any] | None = None, generation: int = 1) -> None:
        if spec is not None:
            self.pod = make_pod(self.pod.ref.name, spec=spec, metadata={"generation": generation})
        if status is not None:
            self.pod = with_status(self.pod, status)
        self.host.pods.put(self.pod)
        await self.adapter.sync_pod(self.pod)
        await self.pass_time(0)

    async def delete(self, grace: float = 30.0) -> None:
        await self.adapter.delete_pod(self.pod.ref, grace)
        await self.pass_time(0)

    async def pass_time(self, seconds: float) -> None:
        await self.host.manual_clock.advance(seconds)

    async def end(self, name: str, code: int) -> None:
        self.backend.end(self.uid, name, code)
        await self.pass_time(0)

    def runs(self, name: str) -> bool:
        """By the backend."""
        box = self.backend.boxes.get(self.uid, {}).get(name)
        return box is not None and isinstance(box.state, Running)

    def running(self) -> list[str]:
        return [name for name in self.backend.boxes.get(self.uid, {}) if self.runs(name)]

    def shown(self, name: str) -> ContainerReport:
        """The last report of a container."""
        report = self.host.latest(self.uid)
        assert report is not None
        return next(c for c in report.containers if c.name == name)

    def waits(self, name: str) -> str:
        state = self.shown(name).state
        return state.reason if isinstance(state, Waiting) else ""

    def events(self, *reasons: str) -> list[str]:
        return [event.message for event in self.host.events.events if event.reason in reasons]

    def starts(self, name: str) -> int:
        return sum(call.startswith(f"start {name} ") for call in self.backend.calls)

    def conditions(self) -> dict[str, dict[str, Any]]:
        report = self.host.latest(self.uid)
        assert report is not None
        return {c["type"]: dict(c) for c in report.conditions or ()}


@asynccontextmanager
async def bench(spec: dict[str, Any], provider: Any = None, *, name: str = "web") -> AsyncIterator[Bench]:
    """With a running provider; the pod is not synced yet."""
    host, made = ResolvingHost(), provider or Executor()
    adapter = adapt(made)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(adapter.run(host))
        ready = Bench(made, host, adapter, make_pod(name, spec=spec))
        await ready.pass_time(0)
        try:
            yield ready
        finally:
            host.stop()
            await host.manual_clock.settle()
            running.cancel()


def app(name: str = "main", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "image", **more}


def sidecar(name: str = "side", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "image", "restartPolicy": "Always", **more}


def probe(command: str, **more: Any) -> dict[str, Any]:
    return {"exec": {"command": [command]}, **more}


def unavailable(text: str, **more: Any) -> Unavailable:
    return Unavailable(text, **more)


__all__ = ["Backend", "Bench", "Box", "Executor", "ResolvingHost", "Starter", "app", "bench", "probe", "sidecar", "unavailable"]
