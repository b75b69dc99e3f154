"""A DaemonSet that tolerates everything makes its pod anew for as long as a Node exists; that keeps no virtual node from going."""

from __future__ import annotations

from tests.integration.kubeocean.conftest import MakeScene
from tests.support.bound import apply, delete, get, items
from tests.support.program import eventually


async def test_virtual_node_goes_although_a_daemonset_keeps_a_pod_on_it(scene: MakeScene) -> None:
    made = await scene()
    bound, (vnode,) = made.bound, made.vnodes
    namespace = await bound.hub.namespace()
    labels = {"app": "everywhere"}
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "nodeSelector": {"kubeocean.io/cluster-binding": bound.name},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "localhost/busybox:dev"}],
        },
    }
    spec = {"selector": {"matchLabels": labels}, "template": template}
    await apply(bound.hub, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d", "namespace": namespace}, "spec": spec})

    async def bound_to_the_node() -> bool:
        return any(pod["spec"].get("nodeName") == vnode for pod in await items(bound.hub, "pods", "-n", namespace))

    await eventually(bound_to_the_node, "the DaemonSet has a pod on the virtual node")
    await delete(bound.worker, "resourceleasingpolicy", f"all-of-{bound.name}", "--wait=false")

    async def gone() -> bool:
        return await get(bound.hub, "node", vnode) is None

    await eventually(gone, "the virtual node is gone")
