"""Whatever happens to our process, no pod of a user does: judged by watches of another client on both clusters."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import pytest
from attrs import frozen

from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene, lasting_scene
from tests.support.bound import apply, get, items, pod
from tests.support.program import eventually
from tests.support.witness import Record, watching
from vkubelet.testing.cluster import ControlPlane

PODS = 50
QUICK = {"provider": {"reconnect_interval": 2.0}, "lease": {"renew_every": 2.0}}


@frozen
class Fifty:
    """Fifty running pods on the virtual nodes of a scene, in a namespace; no test of this module touches them, and each sees to that."""

    scene: Scene
    namespace: str


@pytest.fixture(scope="module")
def fifty(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fifty]:
    with (
        lasting_scene(hub, worker, tmp_path_factory.mktemp("restarts"), nodes=2, settings=QUICK) as scene,
        closing(asyncio.new_event_loop()) as loop,
    ):
        yield Fifty(scene, loop.run_until_complete(_fifty(scene)))


async def _fifty(scene: Scene) -> str:
    namespace = await scene.bound.hub.namespace()
    vnodes = scene.vnodes
    await apply(scene.bound.hub, *(pod(f"p{i}", namespace, node=vnodes[i % len(vnodes)]) for i in range(PODS)))
    await eventually(lambda: _running(scene, namespace), f"{PODS} pods Running", seconds=STARTS_WITHIN, every=0.5)
    return namespace


async def _running(scene: Scene, namespace: str) -> bool:
    pods = await items(scene.bound.hub, "pods", "-n", namespace)
    return sum(found["status"]["phase"] == "Running" and ready(found) for found in pods) == PODS


def ready(item: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in item["status"].get("conditions", ()))


@contextmanager
def witnesses(scene: Scene, namespace: str) -> Iterator[tuple[Record, Record, Record]]:
    """Watches on the virtual pods, the physical pods and the virtual nodes."""
    bound = scene.bound
    labels = f"kubeocean.io/cluster-binding={bound.name}"
    with (
        watching(bound.hub.kubeconfig, namespace=namespace) as above,
        watching(bound.worker.kubeconfig, namespace=bound.mount) as below,
        watching(bound.hub.kubeconfig, "nodes", labels=labels) as nodes,
    ):
        yield above, below, nodes


def assert_untouched(above: Record, below: Record, nodes: Record) -> None:
    """No pod deleted or restarted on either side, no flap, no Node that was not Ready."""
    for record in (above, below):
        assert not record.where(lambda event: event.kind in ("DELETED", "ADDED") or event.deleting or event.restarts > 0)
        assert not record.where(lambda event: event.phase != "Running")
        assert not record.where(lambda event: event.condition("Ready") != "True")
    assert not nodes.where(lambda event: event.kind == "DELETED" or event.condition("Ready") != "True")


async def one_physical_pod_per_uid(scene: Scene) -> Counter[str]:
    pods = await items(scene.bound.worker, "pods", "-n", scene.bound.mount)
    copies = Counter(found["metadata"]["annotations"]["kubeocean.io/virtual-pod-uid"] for found in pods)
    assert set(copies.values()) <= {1}, copies
    return copies


async def settled(scene: Scene) -> None:
    """The process has taken everything up again: it says it is ready, and renewed the lease of each node since its start."""
    before = await _renewals(scene)

    async def renewed() -> bool:
        now = await _renewals(scene)
        return all(now[node] > before[node] for node in scene.vnodes)

    await eventually(renewed, "leases renewed by the new process", seconds=STARTS_WITHIN, every=0.3)


async def _renewals(scene: Scene) -> dict[str, str]:
    leases = await items(scene.bound.hub, "leases", "-n", "kube-node-lease")
    return {lease["metadata"]["name"]: lease["spec"]["renewTime"] for lease in leases}


async def test_kill_9_and_start_again_touches_no_pod(fifty: Fifty) -> None:
    made = fifty.scene
    with witnesses(made, fifty.namespace) as seen:
        made.program.kill()
        made.program.start()
        await settled(made)
    assert_untouched(*seen)
    assert len(await one_physical_pod_per_uid(made)) == PODS


async def test_sigterm_and_start_again_touches_no_pod(fifty: Fifty) -> None:
    made = fifty.scene
    with witnesses(made, fifty.namespace) as seen:
        assert made.program.terminate() == 0
        made.program.start()
        await settled(made)
    assert_untouched(*seen)
    assert len(await one_physical_pod_per_uid(made)) == PODS


@asynccontextmanager
async def unreadable_policies(scene: Scene) -> AsyncIterator[None]:
    """The worker's owner took the right to read policies away."""
    name = f"kubeocean-syncer-{scene.bound.name}"
    role = await get(scene.bound.worker, "clusterrole", name)
    rules = [rule for rule in role["rules"] if "resourceleasingpolicies" not in rule["resources"]]
    await scene.bound.worker.kubectl("patch", "clusterrole", name, "--type=merge", "-p", json.dumps({"rules": rules}))
    try:
        yield
    finally:
        await scene.bound.worker.kubectl("patch", "clusterrole", name, "--type=merge", "-p", json.dumps({"rules": role["rules"]}))


@asynccontextmanager
async def unreadable_rbac(scene: Scene) -> AsyncIterator[None]:
    """Our user lost all rights in the worker."""
    name = f"kubeocean-syncer-{scene.bound.name}"
    cluster_binding = await get(scene.bound.worker, "clusterrolebinding", name)
    binding = await get(scene.bound.worker, "rolebinding", name, "-n", scene.bound.mount)
    await scene.bound.worker.kubectl("delete", "clusterrolebinding", name)
    await scene.bound.worker.kubectl("delete", "rolebinding", name, "-n", scene.bound.mount)
    try:
        yield
    finally:
        for body in (cluster_binding, binding):
            for key in ("uid", "resourceVersion", "creationTimestamp"):
                body["metadata"].pop(key)
        await apply(scene.bound.worker, cluster_binding, binding)


@asynccontextmanager
async def unreachable_worker(scene: Scene) -> AsyncIterator[None]:
    """The kubeconfig leads to a port where nobody listens."""
    good = scene.bound.kubeconfig_secret()
    text = good["stringData"]["kubeconfig"].replace(f":{scene.bound.worker.port}", ":9")
    await apply(scene.bound.hub, scene.bound.kubeconfig_secret(text))
    try:
        yield
    finally:
        await apply(scene.bound.hub, good)


async def _start_while(fifty: Fifty, outage: Any) -> None:
    scene = fifty.scene
    scene.program.kill()
    with witnesses(scene, fifty.namespace) as seen:
        async with outage(scene):
            scene.program.start()
            await settled(scene)
            await eventually(lambda: _disconnected(scene), "the binding says that something is wrong", every=0.3)
        await eventually(lambda: _connected(scene), "the binding is connected again", every=0.3)
        await settled(scene)
    assert_untouched(*seen)
    assert len(await one_physical_pod_per_uid(scene)) == PODS


async def _connected(scene: Scene) -> bool:
    found = await get(scene.bound.hub, "clusterbinding", scene.bound.name)
    return any(c["type"] == "Ready" and c["status"] == "True" for c in found.get("status", {}).get("conditions", ()))


async def _disconnected(scene: Scene) -> bool:
    return not await _connected(scene)


async def test_start_with_unreadable_policies_touches_no_pod(fifty: Fifty) -> None:
    await _start_while(fifty, unreadable_policies)


async def test_start_without_any_right_in_the_worker_touches_no_pod(fifty: Fifty) -> None:
    await _start_while(fifty, unreadable_rbac)


async def test_start_with_unreachable_worker_touches_no_pod(fifty: Fifty) -> None:
    await _start_while(fifty, unreachable_worker)


async def test_restart_amid_creation_makes_one_physical_pod_per_uid(scene: MakeScene) -> None:
    made = await scene(nodes=2)
    namespace = await made.bound.hub.namespace()
    vnodes = made.vnodes
    with witnesses(made, namespace) as (above, below, nodes):
        bodies = [pod(f"p{i}", namespace, node=vnodes[i % 2]) for i in range(PODS)]
        # The rest comes when the process is dead, however fast it has been.
        creation = asyncio.create_task(apply(made.bound.hub, *bodies[: PODS // 2]))
        await eventually(lambda: below.where(lambda event: event.kind == "ADDED"), "the first physical pods exist", every=0.005)
        made.program.kill()
        amid = len(below.where(lambda event: event.kind == "ADDED"))
        await creation
        await apply(made.bound.hub, *bodies[PODS // 2 :])
        made.program.start()
        await eventually(lambda: _running(made, namespace), f"{PODS} pods Running", seconds=STARTS_WITHIN, every=0.5)
    assert 0 < amid < PODS, "the kill came too late to be amid the creation"
    created = Counter(e.object["metadata"]["annotations"]["kubeocean.io/virtual-pod-uid"] for e in below.where(lambda e: e.kind == "ADDED"))
    assert set(created.values()) == {1} and len(created) == PODS
    assert not above.where(lambda event: event.kind == "DELETED" or event.deleting)
    assert not below.where(lambda event: event.kind == "DELETED" or event.deleting)
    assert not nodes.where(lambda event: event.kind == "DELETED" or event.condition("Ready") != "True")
    assert len(await one_physical_pod_per_uid(made)) == PODS
