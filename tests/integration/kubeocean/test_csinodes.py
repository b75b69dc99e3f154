"""What drivers a physical node has is told of its virtual node: a CSINode of the hub for each one of the worker."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.outages import now, refused, without_right
from tests.support.audit import Audit
from tests.support.bound import Body, apply, delete, get
from tests.support.program import eventually
from tests.support.stage import away, uid_of

CSI = "csinode"
FOREIGN: Body = {"drivers": [{"name": "foreign.example.com", "nodeID": "theirs", "topologyKeys": None}]}


def driver(name: str, *, node_id: str = "machine-1", count: int = 4) -> Body:
    return {
        "name": f"{name}.example.com",
        "nodeID": node_id,
        "topologyKeys": ["topology.example.com/zone"],
        "allocatable": {"count": count},
    }


def csinode(name: str, *drivers: Body, **metadata: Any) -> Body:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name, **metadata},
        "spec": {"drivers": list(drivers)},
    }


async def until_equal(scene: Scene, number: int, *drivers: Body) -> Body:
    """The virtual CSINode, as soon as it has these drivers."""

    async def check() -> Body | None:
        found: Body | None = await get(scene.bound.hub, CSI, scene.vnodes[number])
        return found if found is not None and found["spec"]["drivers"] == list(drivers) else None

    found: Body = await eventually(check, f"CSINode {scene.vnodes[number]} has {[each['name'] for each in drivers]}")
    return found


async def gone(scene: Scene, number: int) -> None:
    async def check() -> bool:
        return await get(scene.bound.hub, CSI, scene.vnodes[number]) is None

    await eventually(check, f"CSINode {scene.vnodes[number]} is gone")


def writes(audit: Audit) -> list[str]:
    return [str(call) for call in audit.writes() if call.what == "csinodes"]


async def test_csinodes_follow_those_of_the_worker_and_go_with_them_or_with_their_node(scene: MakeScene) -> None:
    """Lines 105, 106 and 107 of kubeocean-behaviour.md."""
    made = await scene(nodes=3, start=False)
    hub, worker = made.bound.hub, made.bound.worker
    first, later, theirs = made.nodes
    await apply(
        worker, csinode(first, driver("fast"), annotations={"storage.example.com/note": "two words"}), csinode(theirs, driver("fast"))
    )
    await apply(hub, csinode(made.vnodes[2], *FOREIGN["drivers"]))
    audit = Audit(hub, made.bound.user)
    made.program.start()
    await made.ready()
    await looks_right(made, await until_equal(made, 0, driver("fast")))
    # The node was first, and now comes its CSINode.
    await apply(worker, csinode(later, driver("slow")))
    await until_equal(made, 1, driver("slow"))
    # It follows: another driver, and a new name for the machine, which can not be changed in place.
    await apply(worker, csinode(first, driver("fast"), driver("slow")))
    await until_equal(made, 0, driver("fast"), driver("slow"))
    await worker.kubectl("replace", "--force", "-f", "-", stdin=json.dumps(csinode(first, driver("fast", node_id="machine-2"))))
    await until_equal(made, 0, driver("fast", node_id="machine-2"))
    await settled_and_quiet(made, audit)
    await with_the_node(made)
    found = await get(hub, CSI, made.vnodes[2])
    assert found["spec"] == FOREIGN and not [key for key in found["metadata"].get("labels", {}) if key.startswith("kubeocean.io/")]
    await hub.kubectl("delete", CSI, made.vnodes[2])
    await until_nothing_is_left(made)


async def looks_right(scene: Scene, found: Body) -> None:
    bound, vnode = scene.bound, scene.vnodes[0]
    labels, notes = found["metadata"]["labels"], found["metadata"]["annotations"]
    physical, node = await get(bound.worker, CSI, scene.nodes[0]), await get(bound.hub, "node", vnode)
    assert (
        labels
        | {
            "kubeocean.io/cluster-binding": bound.name,
            "kubeocean.io/physical-cluster-id": bound.name,
            "kubeocean.io/physical-node-name": scene.nodes[0],
            "kubeocean.io/managed-by": "kubeocean",
        }
        == labels
    )
    assert notes["kubeocean.io/physical-node-name"] == scene.nodes[0]
    assert notes["kubeocean.io/physical-csinode-uid"] == uid_of(physical)
    assert notes["kubeocean.io/last-sync-time"] and notes["storage.example.com/note"] == "two words"
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", vnode, uid_of(node))


async def settled_and_quiet(scene: Scene, audit: Audit) -> None:
    """A restart, and a change of what is not copied, cause no write."""
    assert writes(audit)
    since = Audit(scene.bound.hub, scene.bound.user)
    with away(scene.program):
        pass
    await scene.ready()
    # That it has looked shows by its following a change that was made after all else.
    await apply(scene.bound.worker, csinode(scene.nodes[1], driver("slow"), driver("late")))
    await until_equal(scene, 1, driver("slow"), driver("late"))
    await eventually(lambda: writes(since), "the audit log has it")
    assert len(writes(since)) == 1, writes(since)


async def with_the_node(scene: Scene) -> None:
    """Deleted by hand the Node comes back as another, and its CSINode with it; what can not be confirmed is not deleted."""
    bound, vnode = scene.bound, scene.vnodes[0]
    before = uid_of(await get(bound.hub, "node", vnode))
    await bound.hub.kubectl("delete", "node", vnode)

    async def owned_by_the_new_one() -> bool:
        node, found = await get(bound.hub, "node", vnode), await get(bound.hub, CSI, vnode)
        owner = found["metadata"]["ownerReferences"][0]["uid"] if found is not None else ""
        return node is not None and uid_of(node) != before and owner == uid_of(node)

    await eventually(owned_by_the_new_one, "the CSINode is that of the new Node")
    since = now()
    async with without_right(scene, "csinodes", "get"):
        await bound.worker.kubectl("delete", CSI, scene.nodes[0])
        await eventually(
            lambda: refused(scene, since, verb="get", resource="csinodes", name=scene.nodes[0]), "its end was asked for in vain"
        )
        assert await get(bound.hub, CSI, vnode) is not None
    await gone(scene, 0)


async def until_nothing_is_left(scene: Scene) -> None:
    """The lease ends: nodes go, and what is theirs with them."""
    bound = scene.bound
    assert await get(bound.hub, CSI, scene.vnodes[1]) is not None
    await delete(bound.worker, "resourceleasingpolicy", f"all-of-{bound.name}", "--wait=false")
    for number in range(3):
        await gone(scene, number)
    for node in scene.nodes:
        await bound.worker.kubectl("delete", CSI, node, "--ignore-not-found")
