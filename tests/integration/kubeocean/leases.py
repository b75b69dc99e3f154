"""What the tests of leasing ask of a scene: its virtual nodes, its policies and their conditions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from attrs import frozen

from tests.integration.kubeocean.conftest import Scene
from tests.support.bound import Body, get, pod
from tests.support.program import PATIENCE, eventually
from tests.support.witness import Record, Seen, watching
from vkubelet.testing.cluster import ControlPlane

POLICY = "resourceleasingpolicies"
CLOSED = "kubeocean.io/out-of-time-windows"


async def vnode(scene: Scene, number: int = 0) -> Body | None:
    """The virtual node of the physical one with this number."""
    found: Body | None = await get(scene.bound.hub, "node", scene.vnodes[number])
    return found


async def vnode_names(scene: Scene) -> set[str]:
    """All Nodes of the binding."""
    items = await listed(scene.bound.hub, "nodes", "-l", f"kubeocean.io/cluster-binding={scene.bound.name}")
    return {item["metadata"]["name"] for item in items}


async def listed(cluster: ControlPlane, *args: str) -> list[Body]:
    """`kubectl get ARGS` of a list, which may be empty."""
    found = await get(cluster, *args)
    return found["items"] if found else []


async def only_vnodes(scene: Scene, numbers: set[int], *, seconds: float = PATIENCE) -> None:
    """Wait until the binding has the virtual nodes of these physical ones and no others."""
    wanted = {scene.vnodes[number] for number in numbers}

    async def check() -> bool:
        return await vnode_names(scene) == wanted

    await eventually(check, f"the virtual nodes are {sorted(wanted)}", seconds=seconds)


async def allocatable(scene: Scene, number: int = 0) -> dict[str, str]:
    """Of one virtual node, which must exist."""
    node = await vnode(scene, number)
    assert node is not None
    amounts: dict[str, str] = node["status"]["allocatable"]
    return amounts


async def comes_to_offer(scene: Scene, *, seconds: float = PATIENCE, **amounts: str) -> None:
    """Wait until virtual node 0 has these amounts, as capacity and as allocatable."""

    seen: Body = {}

    async def check() -> bool:
        seen.update(await vnode(scene) or {})
        status = seen.get("status", {})
        return all(amounts.items() <= status.get(kind, {}).items() for kind in ("capacity", "allocatable"))

    try:
        await eventually(check, f"virtual node offers {amounts}", seconds=seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}; it offers {seen.get('status', {}).get('allocatable')}\n{scene.program.tail(20)}") from None


async def decided_by(scene: Scene, policy: str, *, seconds: float = PATIENCE, **amounts: str) -> None:
    """Wait until this policy decides about virtual node 0 and gives these amounts."""

    async def check() -> bool:
        node = await vnode(scene)
        return node is not None and node["metadata"]["annotations"].get("kubeocean.io/policies-applied") == policy

    await eventually(check, f"policy {policy} decides", seconds=seconds)
    await comes_to_offer(scene, seconds=seconds, **amounts)


async def patch_policy(scene: Scene, name: str, **spec: Any) -> None:
    await scene.bound.worker.kubectl("patch", POLICY, name, "--type=merge", "-p", json.dumps({"spec": spec}))


async def policy_observed(scene: Scene, name: str) -> None:
    """Wait until the process has seen the policy as it is: a pod that comes before is judged by the one that it knows."""

    async def check() -> bool:
        found = await get(scene.bound.worker, POLICY, name)
        return bool(found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])

    await eventually(check, f"{name} is observed")


async def policy_status(scene: Scene, name: str) -> Body:
    """Its phase, its flag `activeTimeWindow` and the conditions by type."""
    status = (await get(scene.bound.worker, POLICY, name)).get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    return {**status, "conditions": conditions}


async def policy_reports(scene: Scene, name: str, phase: str, *, seconds: float = PATIENCE) -> Body:
    """Wait for a phase; the whole status."""

    async def check() -> Body | None:
        status = await policy_status(scene, name)
        return status if status.get("phase") == phase else None

    out: Body = await eventually(check, f"policy {name} is {phase}", seconds=seconds)
    return out


def taints(node: Body) -> dict[str, Body]:
    """The taints of a Node by key."""
    return {taint["key"]: taint for taint in node["spec"].get("taints", ())}


async def first(record: Record, what: str, keep: Any, *, seconds: float = PATIENCE) -> Seen:
    """The first event that fits, waiting for it."""
    await eventually(lambda: record.where(keep), what, seconds=seconds, every=0.05)
    return record.where(keep)[0]


def share(percent: int, **more: Any) -> Body:
    return {"resourceLimits": [{"resource": "cpu", "percent": percent}], **more}


def window(start: timedelta, end: timedelta) -> Body:
    """A window, every day, by minutes relative to now in UTC; its last minute is the one `end` falls into."""
    now = datetime.now(UTC)
    return {"start": f"{now + start:%H:%M}", "end": f"{now + end:%H:%M}"}


def open_now() -> Body:
    return {"timeZone": "UTC", "timeWindows": [window(timedelta(hours=-2), timedelta(hours=2))]}


def closed_now() -> Body:
    return {"timeZone": "UTC", "timeWindows": [window(timedelta(hours=2), timedelta(hours=3))]}


def local_pod(name: str, namespace: str, node: str, *, cpu: str, memory: str = "0") -> Body:
    """A pod of the worker's own that its kubelet runs at once."""
    body = pod(name, namespace, node=node, restartPolicy="Never")
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu, "memory": memory}}
    return body


@frozen
class Follower:
    """Watches the worker's pods of one namespace, and the virtual node that follows them."""

    pods: Record
    nodes: Record

    async def delay(self, name: str, cause: Callable[[Seen], bool], **amounts: str) -> float:
        """Seconds from the first event of a pod that fits to the first later one of a virtual node with these amounts."""
        began = await first(self.pods, f"{name} changed", lambda event: event.object["metadata"]["name"] == name and cause(event))
        what = f"the virtual node offers {amounts}"
        followed = await first(self.nodes, what, lambda event: event.at > began.at and offers(event, amounts))
        return followed.at - began.at


@contextmanager
def following(scene: Scene, namespace: str) -> Iterator[Follower]:
    labels = f"kubeocean.io/cluster-binding={scene.bound.name}"
    with (
        watching(scene.bound.worker.kubeconfig, namespace=namespace) as pods,
        watching(scene.bound.hub.kubeconfig, "nodes", labels=labels) as nodes,
    ):
        yield Follower(pods, nodes)


def offers(event: Seen, amounts: dict[str, str]) -> bool:
    return bool(amounts.items() <= event.object["status"].get("allocatable", {}).items())
