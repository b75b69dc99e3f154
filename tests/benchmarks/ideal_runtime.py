"""`python -m tests.benchmarks.ideal_runtime KUBECONFIG NODE`: the ideal runtime, what running a pod of nothing takes at the very least.

For each pod that appears on a node without being in a phase: one status, by which it runs. No retry, no check, nothing is looked up.

Invariant: nothing of the code that is compared with it is used.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.benchmarks.bare import IN_FLIGHT, Api, Body
from tests.benchmarks.ideal import MERGE

_NOW = "2026-01-01T00:00:00Z"
_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


async def main(kubeconfig: str, node: str) -> None:
    """Reports the pods of a node as running, until cancelled."""
    api = Api(Path(kubeconfig))
    slots, opened = asyncio.Semaphore(IN_FLIGHT), asyncio.Event()

    async def report(pod: Body) -> None:
        meta = pod["metadata"]
        async with slots:
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
            await api.write("PATCH", path, {"metadata": {"uid": meta["uid"]}, "status": _running(pod)}, kind=MERGE)

    async def ready() -> None:
        await opened.wait()
        print("ready", flush=True)

    async with asyncio.TaskGroup() as group:
        group.create_task(ready())
        async for kind, pod in api.watch("/api/v1/pods", f"&fieldSelector=spec.nodeName%3D{node}", opened=opened):
            if kind == "ADDED" and pod["status"]["phase"] == "Pending":
                group.create_task(report(pod))


def _running(pod: Body) -> Body:
    containers = [
        {
            **{"name": each["name"], "image": each["image"], "imageID": each["image"], "containerID": f"ideal://{pod['metadata']['uid']}"},
            **{"ready": True, "started": True, "restartCount": 0, "state": {"running": {"startedAt": _NOW}}},
        }
        for each in pod["spec"]["containers"]
    ]
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": _NOW} for kind in _CONDITIONS]
    addresses = {"hostIP": "127.0.0.1", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}
    return {"phase": "Running", "startTime": _NOW, **addresses, "conditions": conditions, "containerStatuses": containers}


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
