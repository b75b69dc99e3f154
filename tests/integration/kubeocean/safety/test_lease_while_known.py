"""Rule `lease-while-known`: a Lease states that the process knows the state of a node, not that the node is healthy."""

from __future__ import annotations

import json

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.leases import vnode
from tests.integration.kubeocean.outages import now, renewed_after
from tests.support.bound import condition, get
from tests.support.program import eventually
from tests.support.witness import watching

REASON = "DiskOnFire"


async def test_unready_physical_node_is_published_as_such_and_its_lease_goes_on(scene: MakeScene) -> None:
    made = await scene(nodes=2, settings={"lease": {"renew_every": 2}})
    bound = made.bound
    labels = f"kubeocean.io/cluster-binding={bound.name}"
    made.kubelet.kill()
    with watching(bound.hub.kubeconfig, "nodes", labels=labels) as nodes:
        await _say_not_ready(made, made.nodes[0])
        await eventually(lambda: _ready(made, 0, "False", REASON), "the virtual node is not Ready", every=0.05)
        unready = now()
        await renewed_after(made, unready)
        await renewed_after(made, now())
        assert await _ready(made, 1, "True")
        made.kubelet.start()
        await eventually(lambda: _ready(made, 0, "True"), "the virtual node is Ready again")
    # Unknown is what the control plane writes when a Lease runs out.
    assert not nodes.where(lambda event: event.kind == "DELETED" or event.condition("Ready") not in ("True", "False"))


async def _say_not_ready(scene: Scene, node: str) -> None:
    """What a kubelet in trouble would write."""
    body = await get(scene.bound.worker, "node", node)
    conditions = [each for each in body["status"]["conditions"] if each["type"] != "Ready"]
    stamp = now().strftime("%Y-%m-%dT%H:%M:%SZ")
    times = {"lastTransitionTime": stamp, "lastHeartbeatTime": stamp}
    conditions.append({"type": "Ready", "status": "False", "reason": REASON, "message": "smoke", **times})
    change = json.dumps({"status": {"conditions": conditions}})
    await scene.bound.worker.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", change)


async def _ready(scene: Scene, number: int, status: str, reason: str = "") -> bool:
    node = await vnode(scene, number)
    assert node is not None
    said = next(each for each in node["status"]["conditions"] if each["type"] == "Ready")
    return condition(node, "Ready") == status and said["reason"] == (reason or said["reason"])
