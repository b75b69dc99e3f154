"""Tests of kubeocean.nodes.csinodes; the reconciler is driven against real clusters in tests/integration/kubeocean/test_csinodes.py."""

from __future__ import annotations

import pytest

from kubeocean.model import keys
from kubeocean.nodes.csinodes import difference, is_virtual_node, virtual_csinode
from tests.unit.kubeocean.builders import OWNER, node, unknown
from vkubelet.api.objects import Json, Node, Unknown

DRIVERS: Json = {"drivers": [{"name": "d", "nodeID": "machine", "topologyKeys": ["zone"], "allocatable": {"count": 3}}]}
OURS: Json = {keys.MANAGED_BY: keys.MANAGED, keys.PHYSICAL_CLUSTER_ID: "demo"}
NOTES: Json = {keys.PHYSICAL_NODE_NAME: "node-1"}


def virtual_node(**metadata: object) -> Node:
    return node(**{"name": "vnode-demo-node-1", "uid": "vnode-uid", "labels": OURS, "annotations": NOTES, **metadata})  # type: ignore[arg-type]


def physical(spec: Json = DRIVERS) -> Unknown:
    meta = {
        "name": "node-1",
        "uid": "csi-uid",
        "labels": {"tier": "1"},
        "annotations": {"storage.alpha.kubernetes.io/migrated-plugins": "x"},
    }
    return unknown({"metadata": meta, "spec": spec})


def live(body: Json, **changed: object) -> Unknown:
    """As the hub has it after a write."""
    notes = {**body["metadata"]["annotations"], keys.LAST_SYNC_TIME: "2026-01-01T00:00:00Z"}
    return unknown({**body, "metadata": {**body["metadata"], "annotations": notes, "uid": "u", "resourceVersion": "7", **changed}})


def test_drivers_are_copied_and_marks_lead_to_the_physical_one() -> None:
    made = virtual_csinode(physical(), virtual_node(), binding="demo")
    assert made["spec"] == DRIVERS
    meta = made["metadata"]
    assert meta["name"] == "vnode-demo-node-1"
    assert meta["labels"] == {"tier": "1", **OURS, keys.CLUSTER_BINDING: "demo", keys.PHYSICAL_NODE_NAME: "node-1"}
    assert meta["annotations"] == {
        "storage.alpha.kubernetes.io/migrated-plugins": "x",
        keys.PHYSICAL_NODE_NAME: "node-1",
        keys.PHYSICAL_CSINODE_UID: "csi-uid",
    }
    assert meta["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "vnode-demo-node-1", "uid": "vnode-uid"}]


def test_time_of_the_last_write_is_no_difference() -> None:
    made = virtual_csinode(physical(), virtual_node(), binding="demo")
    assert difference(live(made), made) is None


def test_difference_holds_what_changed_and_nothing_else() -> None:
    made = virtual_csinode(physical(), virtual_node(), binding="demo")
    there = live(made, labels={**made["metadata"]["labels"], "tier": "2", "dropped": "x"})
    change = difference(there, made)
    assert change == {"metadata": {"uid": "u", "resourceVersion": "7", "labels": {"dropped": None, "tier": "1"}}}
    fewer = virtual_csinode(physical({"drivers": []}), virtual_node(), binding="demo")
    assert difference(live(made), fewer) == {"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {"drivers": []}}
    anew = virtual_csinode(physical(), virtual_node(uid="another"), binding="demo")
    again = difference(live(made), anew)
    assert again is not None and again["metadata"]["ownerReferences"] == anew["metadata"]["ownerReferences"]


@pytest.mark.parametrize(
    "other",
    [
        {"labels": {keys.PHYSICAL_CLUSTER_ID: "demo"}},
        {"labels": {**OURS, keys.PHYSICAL_CLUSTER_ID: "another"}},
        {"annotations": {keys.PHYSICAL_NODE_NAME: "node-2"}},
        {"deletionTimestamp": "2026-01-01T00:00:00Z"},
    ],
)
def test_node_that_is_not_ours_or_leaves_gets_none(other: Json) -> None:
    assert is_virtual_node(virtual_node().metadata, "node-1", owner=OWNER)
    assert not is_virtual_node(virtual_node(**other).metadata, "node-1", owner=OWNER)
