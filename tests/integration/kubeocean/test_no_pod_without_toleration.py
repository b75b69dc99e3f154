"""A virtual node is tainted from its first moment, so nobody comes to it by accident: judged by the real scheduler."""

from __future__ import annotations

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.leases import POLICY, listed, only_vnodes, taints
from tests.support.bound import Body, apply, get, pod, running
from tests.support.program import eventually
from tests.support.witness import watching

NODES = 25
ROUNDS = 4
WAITING = 5
TAINT = {"key": "kubeocean.io/vnode", "effect": "NoSchedule"}


def waiting_pod(name: str, namespace: str, scene: Scene, **spec: object) -> Body:
    """A pod that wants one of our nodes and nothing else, for the hub has other nodes too."""
    return pod(name, namespace, nodeSelector={"kubeocean.io/cluster-binding": scene.bound.name}, **spec)


async def test_no_pod_without_toleration_is_bound_in_a_hundred_registrations(scene: MakeScene) -> None:
    made = await scene(nodes=NODES, start=False)
    bound, policy = made.bound, f"all-of-{made.bound.name}"
    await bound.worker.kubectl("delete", POLICY, policy)
    namespace = await bound.hub.namespace()
    await apply(bound.hub, *(waiting_pod(f"w{i}", namespace, made, tolerations=[]) for i in range(WAITING)))
    await eventually(lambda: _refused(made, namespace), "the scheduler has looked at the pods")
    labels = f"kubeocean.io/cluster-binding={bound.name}"
    with (
        watching(bound.hub.kubeconfig, namespace=namespace) as pods,
        watching(bound.hub.kubeconfig, "nodes", labels=labels) as nodes,
    ):
        made.program.start()
        for _ in range(ROUNDS):
            await apply(bound.worker, bound.policy())
            await made.ready()
            await bound.worker.kubectl("delete", POLICY, policy)
            await only_vnodes(made, set())
        await apply(bound.worker, bound.policy())
        await made.ready()
        # The scheduler is awake and these nodes are good for whoever tolerates them.
        await apply(bound.hub, waiting_pod("tolerant", namespace, made))
        await running(bound, namespace, "tolerant")
    registrations = nodes.where(lambda event: event.kind == "ADDED")
    assert len(registrations) >= NODES * ROUNDS
    for event in nodes.where(lambda event: event.kind != "DELETED"):
        assert TAINT.items() <= taints(event.object)[TAINT["key"]].items()
    bound_to_us = pods.where(lambda event: event.object["metadata"]["name"] != "tolerant" and "nodeName" in event.object["spec"])
    assert not bound_to_us, bound_to_us[0].key
    for body in await listed(bound.hub, "pods", "-n", namespace):
        assert body["metadata"]["name"] == "tolerant" or "nodeName" not in body["spec"]


async def _refused(scene: Scene, namespace: str) -> bool:
    items = (await get(scene.bound.hub, "pods", "-n", namespace))["items"]
    return all(item["status"].get("conditions", [{}])[0].get("reason") == "Unschedulable" for item in items)
