"""A leased pod is resized in place: its container gets other limits in the worker, and goes on.

What a lease and a quota have to say to that is in integration/kubeocean/test_pods_down and test_refusals.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.bound import Bound, apply, get, items, physical, pod, running, vacate
from tests.support.program import eventually
from tests.support.witness import watching
from vkubelet.testing.cluster import WorkerNode

# The CPU that the kernel grants in each 100 ms, in µs: with cgroup v2, or v1.
QUOTA = "cut -d' ' -f1 /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us"
MEMORY = "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes"
NAME = "grows"


def amounts(cpu: str, limit: str, memory: str) -> dict[str, dict[str, str]]:
    return {"requests": {"cpu": cpu, "memory": "32Mi"}, "limits": {"cpu": limit, "memory": memory}}


def resizing(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is said of a resize, by type."""
    return {each["type"]: each for each in body["status"].get("conditions") or () if each["type"].startswith("PodResize")}


async def resize(leased: Bound, namespace: str, wanted: dict[str, dict[str, str]]) -> None:
    change = json.dumps({"spec": {"containers": [{"name": "main", "resources": wanted}]}})
    await leased.hub.kubectl("patch", "pod", NAME, "-n", namespace, "--subresource=resize", "-p", change)


async def until_resized(leased: Bound, namespace: str, wanted: dict[str, dict[str, str]]) -> dict[str, Any]:
    """The virtual pod when its container has these amounts, by its own word, and nothing is left to do."""

    async def check() -> Any:
        found = await get(leased.hub, "pod", NAME, "-n", namespace)
        done = found["status"]["containerStatuses"][0].get("resources") == wanted and not resizing(found)
        return found if done and found["status"]["observedGeneration"] == found["metadata"]["generation"] else None

    out: dict[str, Any] = await eventually(check, f"the container has {wanted}", every=0.2)
    below = await physical(leased, out)
    assert below["spec"]["containers"][0]["resources"] == below["status"]["containerStatuses"][0]["resources"] == wanted
    return out


async def kernel(leased: Bound, namespace: str) -> list[int]:
    """CPU and memory that the container may have, as it reads them itself."""
    out = await leased.hub.kubectl("exec", NAME, "-n", namespace, "--", "sh", "-c", f"{QUOTA}; {MEMORY}")
    return [int(line) for line in out.split()]


async def test_container_has_other_limits_after_a_resize_and_goes_on(leased: Bound, worker_node: WorkerNode) -> None:
    hub, namespace = leased.hub, await leased.hub.namespace("resize")
    body = pod(NAME, namespace, node=leased.vnode(worker_node.name))
    body["spec"]["containers"][0]["resources"] = amounts("50m", "200m", "64Mi")
    await apply(hub, body)
    first = await running(leased, namespace, NAME)
    assert await kernel(leased, namespace) == [20_000, 64 << 20]
    with watching(hub.kubeconfig, namespace=namespace) as seen:
        for wanted, granted in ((amounts("60m", "300m", "96Mi"), [30_000, 96 << 20]), (amounts("50m", "150m", "96Mi"), [15_000, 96 << 20])):
            await resize(leased, namespace, wanted)
            last = await until_resized(leased, namespace, wanted)
            assert await kernel(leased, namespace) == granted
        # More than the whole node has; after that something that fits.
        await resize(leased, namespace, amounts("500", "500", "96Mi"))
        told = await eventually(lambda: infeasible(leased, namespace), "it is said that this can not be")
        assert "the virtual node leases less cpu than the pod requests" in told["message"] and told["observedGeneration"] == 4
        assert await kernel(leased, namespace) == granted
        await resize(leased, namespace, amounts("50m", "100m", "96Mi"))
        last = await until_resized(leased, namespace, amounts("50m", "100m", "96Mi"))
        assert (await kernel(leased, namespace))[0] == 10_000
    assert seen.where(lambda event: event.condition("PodResizeInProgress") == "True"), "what the worker's kubelet was doing"
    assert last["metadata"]["uid"] == first["metadata"]["uid"] and last["status"]["containerStatuses"][0]["restartCount"] == 0
    assert last["status"]["containerStatuses"][0]["containerID"] == first["status"]["containerStatuses"][0]["containerID"]

    async def told_by_events() -> bool:
        return {"ResizeCompleted", "ResizeInfeasible"} <= {event["reason"] for event in await items(hub, "events", "-n", namespace)}

    await eventually(told_by_events, "events tell of the resizes")
    await vacate(hub, namespace, workloads=True)


async def infeasible(leased: Bound, namespace: str) -> Any:
    found = resizing(await get(leased.hub, "pod", NAME, "-n", namespace)).get("PodResizePending", {})
    return found if found.get("reason") == "Infeasible" else None
