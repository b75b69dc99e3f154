"""Which status is published where several follow each other quickly, and after the API server was restored from a backup."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.memory_api import Body, MemoryApi
from tests.unit.vkubelet.pods.running import pods_of
from vkubelet.api.objects import Pod, PodRef
from vkubelet.client.transport import Call
from vkubelet.control.informer import Change
from vkubelet.errors import Unreachable
from vkubelet.pods.status_writer import StatusWriter
from vkubelet.provider import Host, PodFailure, PodReport
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import PodTable

PATH = "/api/v1/namespaces/d/pods/web"
BODY: Body = {
    "metadata": {"name": "web", "namespace": "d", "uid": "uid-web", "generation": 1},
    "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
    "status": {"phase": "Pending"},
}


class Silent:
    """A provider that leaves every status to the test."""

    admits_pods = True

    async def run(self, host: Host) -> None: ...

    async def sync_pod(self, pod: Pod) -> None: ...

    async def delete_pod(self, pod: PodRef, grace: float) -> None: ...

    async def list_pods(self, node: str) -> list[PodReport]:
        return []


class Restorable(MemoryApi):
    """An API server that crashes after it accepted a write and before its watches received that, and returns with a backup."""

    away = False
    silent = False

    def _publish(self, type_: str, path: str) -> None:
        if not self.silent:
            super()._publish(type_, path)

    async def fetch(self, call: Call, timeout: float) -> bytes:
        self._reached(call)
        return await super().fetch(call, timeout)

    @asynccontextmanager
    async def open(self, call: Call, timeout: object) -> AsyncIterator[Any]:
        self._reached(call)
        async with super().open(call, timeout) as stream:
            yield stream

    def _reached(self, call: Call) -> None:
        if self.away:
            raise Unreachable(call.attempt, "connection refused")

    def crash(self) -> None:
        self.away = True
        for stream in self._streams:
            stream._lines.put_nowait(b"")

    def restore(self, objects: dict[str, Body], version: int) -> None:
        self.objects, self._version, self.away, self.silent = dict(objects), version, False, False


async def test_lost_pod_stays_lost_when_its_backend_becomes_unreachable_at_once() -> None:
    """A provider that publishes all its pods as not ready knows of each what the watch has delivered: that it runs."""
    api, clock = Restorable(), ManualClock()
    api.put(PATH, BODY)
    client, ref = api.client(), PodRef("d", "web", "uid-web", "n")
    pods = pods_of(Silent(), client, clock)
    pods.enable("n")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run()) for run in (pods.informer.run, pods.run)]
        await clock.advance(5.0)
        pods.set_pod_status(ref, {"phase": "Running"})
        await clock.advance(1.0)
        pods.fail_pod(ref, PodFailure("PhysicalPodLost", "it was deleted"))
        pods.set_pod_status(ref, {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]})
        await clock.advance(1.0)
        for task in tasks:
            task.cancel()
    status = api.objects[PATH]["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "PhysicalPodLost")


async def test_status_whose_write_a_restored_server_has_lost_is_published_again() -> None:
    api, clock = Restorable(), ManualClock()
    api.put(PATH, BODY)
    client = api.client()
    pods = pods_of(Silent(), client, clock)
    pods.enable("n")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run()) for run in (pods.informer.run, pods.run)]
        await clock.advance(20.0)
        backup, version = dict(api.objects), api._version
        api.put(PATH.replace("web", "other"), {**BODY, "metadata": {**BODY["metadata"], "name": "other", "uid": "uid-other"}})
        await clock.advance(1.0)
        api.silent = True
        pods.set_pod_status(PodRef("d", "web", "uid-web", "n"), {"phase": "Running"})
        await clock.advance(1.0)
        assert api.objects[PATH]["status"]["phase"] == "Running"
        api.crash()
        await clock.advance(30.0)
        api.restore(backup, version)
        await clock.advance(60.0)
        for task in tasks:
            task.cancel()
    assert api.objects[PATH]["status"]["phase"] == "Running"


def stored(api: MemoryApi, *, after: int) -> Pod:
    """The pod as a server at that resourceVersion stores it, Running."""
    api._version = after
    body = {"metadata": {"name": "web", "namespace": "d", "uid": "uid-web"}, "spec": {"nodeName": "n", "containers": []}}
    api.put(PATH, {**body, "status": {"phase": "Running"}})
    return Pod.decode(json.dumps(api.objects[PATH]).encode())


async def test_status_that_a_restored_server_has_lost_is_written_again() -> None:
    api, clock, pods = MemoryApi(), ManualClock(), PodTable()
    client, versions, terminal = api.client(), list[str](), list[str]()
    writer = StatusWriter(
        pods=pods,  # type: ignore[arg-type]
        node_client=lambda node: client,
        node_ips=lambda node: (),
        clock=clock,
        record_version=versions.append,
    )
    writer.on_terminal(terminal.append)
    before = stored(api, after=999)
    pods.put(before)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(writer.controller.run())
        writer.set_pod_status(before.ref, {"phase": "Succeeded"})
        await clock.advance(1.0)
        assert terminal == ["uid-web"] and writer.terminal(before) and versions == ["1001"]
        # The event of that write never arrived, and the backup is older than both versions.
        restored = stored(api, after=7)
        pods.put(restored)
        writer.observe(Change(before.key, before, restored, restored=True))
        assert not writer.terminal(restored)
        await clock.advance(1.0)
        running.cancel()
    assert api.objects[PATH]["status"]["phase"] == "Succeeded" and versions == ["1001", "9"]
