"""Rule `declared-before`: virtual nodes found at the start are renewed and otherwise untouched until the worker was listed."""

from __future__ import annotations

from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene
from tests.integration.kubeocean.leases import listed, only_vnodes, patch_policy
from tests.integration.kubeocean.outages import all_nodes, all_pods, is_released, now, renewed_after, running_pods
from tests.integration.kubeocean.test_restarts import ready
from tests.support.bound import Body, apply, condition, delete, get, pod
from tests.support.cable import Cable
from tests.support.program import eventually
from tests.support.witness import watching

QUICK = {"lease": {"renew_every": 2}, "provider": {"reconnect_interval": 1}}


async def test_found_nodes_are_renewed_and_untouched_until_the_worker_answers(cable: Cable, scene: MakeScene) -> None:
    made = await scene(nodes=2, through=cable.port, settings=QUICK)
    bound = made.bound
    namespace = await running_pods(made, 3)
    assert made.program.terminate() == 0
    cable.cut()
    labels = f"kubeocean.io/cluster-binding={bound.name}"
    with watching(bound.hub.kubeconfig, "nodes", labels=labels) as nodes, watching(bound.hub.kubeconfig, namespace=namespace) as pods:
        made.program.start()
        await renewed_after(made, now(), seconds=STARTS_WITHIN)
        await apply(bound.hub, pod("new", namespace, node=made.vnodes[0]))
        await delete(bound.hub, "pod", "p0", "-n", namespace, "--wait=false")
        # Two more rounds of leases: whatever it would do to these pods it would have done by then.
        await renewed_after(made, now())
        await renewed_after(made, now())
        assert not nodes.events
        assert (await get(bound.hub, "pod", "p0", "-n", namespace))["metadata"]["deletionTimestamp"]
        assert (await get(bound.hub, "pod", "new", "-n", namespace))["status"]["phase"] == "Pending"
        assert not pods.where(lambda event: event.kind == "DELETED" or event.phase == "Failed")
        cable.mend()
        await all_pods(made, namespace, lambda body: ready(body) and body["metadata"]["name"] != "p0", what="ready", count=3)
        await all_nodes(made, is_released, what="served")
    assert not nodes.where(lambda event: event.kind == "DELETED" or event.condition("Ready") != "True")
    assert len(await listed(bound.worker, "pods", "-n", bound.mount)) == 3


async def test_found_nodes_that_stand_for_nothing_any_more_are_emptied_and_removed(scene: MakeScene) -> None:
    made = await scene(nodes=3)
    bound = made.bound
    namespace = await running_pods(made, 6)
    made.program.kill()
    made.kubelet.kill()
    await bound.worker.kubectl("delete", "node", made.nodes[1])
    await patch_policy(made, f"all-of-{bound.name}", nodeSelector=_by_name(made.nodes[0]))
    with watching(bound.hub.kubeconfig, namespace=namespace) as pods:
        made.program.start()
        # The kubelet of the worker's nodes is down, so only the node that is gone can be emptied; the excluded one is retiring.
        await only_vnodes(made, {0, 2}, seconds=STARTS_WITHIN)
        await eventually(lambda: _emptied(made, namespace, made.vnodes[1]), "the pods of the vanished node are gone")
        await eventually(lambda: _ending(made, namespace, made.vnodes[2]), "the pods of the excluded node are asked to end")
        made.kubelet.start()
        await only_vnodes(made, {0})
        await all_pods(made, namespace, lambda body: body["spec"]["nodeName"] == made.vnodes[0], what="on the node that is left", count=2)
    assert not pods.where(lambda event: event.object["spec"].get("nodeName") == made.vnodes[0] and event.deleting)
    await eventually(lambda: _has_no_lease(made, made.vnodes[1]), "the Lease of the vanished node is gone")
    assert condition(await get(bound.hub, "node", made.vnodes[0]), "Ready")


async def _has_no_lease(scene: Scene, node: str) -> bool:
    return await get(scene.bound.hub, "lease", node, "-n", "kube-node-lease") is None


def _by_name(name: str) -> Body:
    requirement = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
    return {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}


async def _on(scene: Scene, namespace: str, node: str) -> list[Body]:
    return [body for body in await listed(scene.bound.hub, "pods", "-n", namespace) if body["spec"]["nodeName"] == node]


async def _emptied(scene: Scene, namespace: str, node: str) -> bool:
    return not await _on(scene, namespace, node)


async def _ending(scene: Scene, namespace: str, node: str) -> bool:
    return all(body["metadata"].get("deletionTimestamp") for body in await _on(scene, namespace, node))
