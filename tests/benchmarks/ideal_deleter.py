"""`python -m tests.benchmarks.ideal_deleter HUB WORKER NAMESPACE`: the ideal deleter, what removing a leased pod takes at the very least.

For each pod of a namespace of the hub that is being deleted: the deletion of its physical pod with the same grace; and, when that is gone,
of the pod in the hub and of the Secret of its token. The pods are those of the ideal pipeline, found by their names and annotation.

Invariant: three requests for each pod, sent as soon as an event allows it. Nothing is repeated, checked or looked up.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from attrs import define, field

from tests.benchmarks.bare import IN_FLIGHT, Api, Body
from tests.benchmarks.ideal import HOME, MOUNT, physical_name


@define
class Deleter:
    """Follows one namespace of the hub."""

    hub: Api
    worker: Api
    namespace: str
    _slots: asyncio.Semaphore = field(factory=lambda: asyncio.Semaphore(IN_FLIGHT))
    _ending: set[str] = field(factory=set)
    _hub_opened: asyncio.Event = field(factory=asyncio.Event)
    _worker_opened: asyncio.Event = field(factory=asyncio.Event)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_hub(group))
            group.create_task(self._follow_worker(group))
            await self._hub_opened.wait()
            await self._worker_opened.wait()
            print("ready", flush=True)

    async def _follow_hub(self, group: asyncio.TaskGroup) -> None:
        async for kind, pod in self.hub.watch(f"/api/v1/namespaces/{self.namespace}/pods", opened=self._hub_opened):
            meta = pod["metadata"]
            if kind != "DELETED" and "deletionTimestamp" in meta and meta["uid"] not in self._ending:
                self._ending.add(meta["uid"])
                group.create_task(self._end(meta))

    async def _follow_worker(self, group: asyncio.TaskGroup) -> None:
        async for kind, pod in self.worker.watch(f"/api/v1/namespaces/{MOUNT}/pods", opened=self._worker_opened):
            if kind == "DELETED":
                group.create_task(self._remove(pod["metadata"]))

    async def _end(self, virtual: Body) -> None:
        grace = {"gracePeriodSeconds": virtual["deletionGracePeriodSeconds"]}
        async with self._slots:
            await self.worker.write("DELETE", f"/api/v1/namespaces/{MOUNT}/pods/{physical_name(virtual['uid'])}", grace)

    async def _remove(self, physical: Body) -> None:
        namespace, name, uid = physical["annotations"][HOME].split("/")
        at_once = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        async with self._slots:
            await self.hub.write("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", at_once)
            await self.worker.write("DELETE", f"/api/v1/namespaces/{MOUNT}/secrets/{physical['name']}")


async def main(hub: str, worker: str, namespace: str) -> None:
    await Deleter(Api(Path(hub)), Api(Path(worker)), namespace).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
