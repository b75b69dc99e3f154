"""Deletions are carried out however many syncs hang."""

from __future__ import annotations

import asyncio

from tests.support.memory_api import Body, MemoryApi
from tests.unit.vkubelet.pods.running import pods_of
from vkubelet.api.objects import Pod, PodRef
from vkubelet.control.recorder import Recorder
from vkubelet.pods.lifecycle import IN_FLIGHT, WORKERS
from vkubelet.provider import Host, PodReport
from vkubelet.testing.clock import ManualClock


class Hanging:
    """A provider whose syncs hang until `answer` is set."""

    admits_pods = True

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.syncs, self.most, self.synced = 0, 0, set[str]()
        self.deleted = list[str]()

    async def run(self, host: Host) -> None: ...

    async def sync_pod(self, pod: Pod) -> None:
        self.syncs += 1
        self.most = max(self.most, self.syncs)
        try:
            await self.answer.wait()
            self.synced.add(pod.ref.name)
        finally:
            self.syncs -= 1

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        self.deleted.append(pod.name)

    async def list_pods(self, node: str) -> list[PodReport]:
        return []


def body(name: str, **metadata: object) -> Body:
    meta = {"name": name, "namespace": "d", "uid": f"uid-{name}", "generation": 1, **metadata}
    return {"metadata": meta, "spec": {"nodeName": "n", "containers": [{"name": "c"}]}, "status": {"phase": "Pending"}}


async def test_deletions_are_carried_out_while_more_syncs_hang_than_there_are_workers() -> None:
    api, clock, provider, count = MemoryApi(), ManualClock(), Hanging(), WORKERS + IN_FLIGHT
    for number in range(count):
        api.put(f"/api/v1/namespaces/d/pods/p{number}", body(f"p{number}"))
    client = api.client()
    pods = pods_of(provider, client, clock, recorder=Recorder(client, "vkubelet", clock=clock))
    pods.enable("n")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run()) for run in (pods.informer.run, pods.run)]
        await clock.advance(5.0)
        assert provider.syncs == IN_FLIGHT
        dying = {"deletionTimestamp": "2026-01-01T00:00:06Z", "deletionGracePeriodSeconds": 1}
        for name in ("p0", f"p{count - 1}"):
            api.put(f"/api/v1/namespaces/d/pods/{name}", body(name, **dying))
        await clock.advance(15.0)
        assert set(provider.deleted) == {"p0", f"p{count - 1}"}, "one whose sync hangs, and one that waits for its sync"
        provider.answer.set()
        await clock.advance(5.0)
        assert len(provider.synced) == count - 2
        assert provider.most == IN_FLIGHT
        for task in tasks:
            task.cancel()
