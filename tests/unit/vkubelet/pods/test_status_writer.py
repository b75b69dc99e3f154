"""What was written before the API server was restored from a backup is written again."""

from __future__ import annotations

import asyncio
import json

from tests.support.memory_api import MemoryApi
from vkubelet.api.objects import Pod
from vkubelet.control.informer import Change
from vkubelet.pods.status_writer import StatusWriter
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import PodTable

PATH = "/api/v1/namespaces/d/pods/web"


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
