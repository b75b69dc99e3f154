"""Content of a virtual node, and what it keeps of other clients: docs/reference/kubeocean-behaviour.md, lines 71 to 86 and 155."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.integration.kubeocean.conftest import Scene, lasting_scene
from tests.support.bound import Body, apply, delete, get, pod, running
from tests.support.program import eventually
from tests.support.stage import Stage, physical_name
from tests.support.tables import tables
from vkubelet.testing.cluster import ControlPlane

OURS = "kubeocean.io/"
LONG = "a-worker-node-with-a-name-that-is-far-too-long-for-what-stands-before-it"


@pytest.fixture(scope="module")
def scene(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with lasting_scene(hub, worker, tmp_path_factory.mktemp("virtual"), nodes=2) as made:
        yield made


async def patch(cluster: ControlPlane, node: str, change: Body, *more: str) -> None:
    await cluster.kubectl("patch", "node", node, "--type=merge", "-p", json.dumps(change), *more)


async def until(scene: Scene, wanted: Callable[[Body], Any], what: str, *, at: int = 0) -> Body:
    """The virtual node as soon as it is like that."""

    async def check() -> Body | None:
        found = await get(scene.bound.hub, "node", scene.vnodes[at])
        return found if found is not None and wanted(found) else None

    out: Body = await eventually(check, f"{scene.vnodes[at]}: {what}")
    return out


def taints(node: Body) -> list[tuple[str, str]]:
    return [(taint["key"], taint["effect"]) for taint in node["spec"].get("taints", [])]


async def test_it_bears_what_the_physical_node_bears_and_says_which_that_is(scene: Scene) -> None:
    """Lines 71 to 74, 78 to 81 and 86 of kubeocean-behaviour.md."""
    physical = await get(scene.bound.worker, "node", scene.nodes[0])
    await patch(scene.bound.worker, scene.nodes[0], {"metadata": {"labels": {"rack": "r7"}}})
    labelled = f"{OURS}proxier_port"

    def is_labelled(node: Body) -> bool:
        return node["metadata"]["labels"].get("rack") == "r7" and labelled in node["metadata"]["labels"]

    node = await until(scene, is_labelled, "the label of the physical node, and that with its port")
    name, labels, notes = scene.vnodes[0], node["metadata"]["labels"], node["metadata"]["annotations"]
    assert name == f"vnode-{scene.bound.name}-{scene.nodes[0]}", "line 71"
    port = str(node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"])
    wanted = {
        "kubernetes.io/hostname": name,
        "node.kubernetes.io/instance-type": "vnode",
        "beta.kubernetes.io/instance-type": "vnode",
        "type": "virtual-kubelet",
        f"{OURS}managed-by": "kubeocean",
        f"{OURS}cluster-binding": scene.bound.name,
        f"{OURS}physical-cluster-id": scene.bound.name,
        f"{OURS}physical-node-name": scene.nodes[0],
        f"{OURS}physical-node-uid": physical["metadata"]["uid"],
        f"{OURS}proxier_port": port,
    }
    assert labels.items() >= wanted.items(), "lines 72, 73 and 80"
    said = {f"{OURS}{key}" for key in ("last-sync-time", "policies-applied", "policy-details", "physical-node-name", "physical-node-uid")}
    assert notes.keys() >= said and notes[f"{OURS}policies-applied"] == f"all-of-{scene.bound.name}", "line 74"
    assert [address["type"] for address in node["status"]["addresses"]] == ["InternalIP"], "line 79 as decided"
    other = await until(scene, lambda n: labelled in n["metadata"]["labels"], "the label with its port", at=1)
    assert 15000 <= int(port) < 30000 and other["metadata"]["labels"][f"{OURS}proxier_port"] != port, "lines 80 and 81"
    assert node["status"]["nodeInfo"]["operatingSystem"] == physical["status"]["nodeInfo"]["operatingSystem"], "line 78"
    lease = await get(scene.bound.hub, "lease", name, "-n", "kube-node-lease")
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseDurationSeconds"]) == (name, 40), "line 86"
    assert [(owner["kind"], owner["uid"]) for owner in lease["metadata"]["ownerReferences"]] == [("Node", node["metadata"]["uid"])]


async def test_wide_columns_of_both_clusters_show_what_is_bound_leased_and_offered(scene: Scene) -> None:
    """As `kubectl get clusterbindings,resourceleasingpolicies,nodes -o wide` prints them, each kind in its cluster."""
    bound, name = scene.bound, scene.vnodes[0]
    hub = tables(await bound.hub.kubectl("get", "clusterbindings,nodes", "-o", "wide"))
    binding = hub[f"clusterbinding.cloud.tencent.com/{bound.name}"]
    assert (binding["CLUSTERID"], binding["PHASE"], binding["READY"], binding["CONNECTED"]) == (bound.name, "Ready", "True", "True")
    assert (binding["MOUNT NAMESPACE"], bool(binding["SECRET"]), bool(binding["MESSAGE"])) == (bound.mount, True, True)
    leases = f"resourceleasingpolicy.cloud.tencent.com/all-of-{bound.name}"

    async def counted() -> Mapping[str, Mapping[str, str]] | None:
        worker = tables(await bound.worker.kubectl("get", "resourceleasingpolicies,nodes", "-o", "wide"))
        return worker if worker[leases]["NODES"] == "2" else None

    worker = await eventually(counted, "the policy decides about both nodes")
    policy = worker[leases]
    assert (policy["CLUSTER"], policy["PHASE"], policy["ACTIVE"]) == (bound.name, "Active", "true")
    assert policy["PRIORITY"] == "0" and policy["ZONE"] and policy["MESSAGE"] and "LEASED CPU" in policy
    node, physical = hub[f"node/{name}"], worker[f"node/{scene.nodes[0]}"]
    assert node["STATUS"] == "Ready" and node["INTERNAL-IP"] not in ("", "<none>") and node["VERSION"].startswith("v1.")
    same = ("OS-IMAGE", "KERNEL-VERSION", "CONTAINER-RUNTIME")
    assert [node[column] for column in same] == [physical[column] for column in same]


async def test_a_name_that_is_too_long_is_cut_and_told_apart_by_its_hash(scene: Scene) -> None:
    """Line 71 of kubeocean-behaviour.md."""
    full = f"vnode-{scene.bound.name}-{LONG}"
    wanted = f"{full[:30]}-{hashlib.md5(full.encode(), usedforsecurity=False).hexdigest()}"
    own = await get(scene.bound.worker, "node", scene.nodes[0])
    labels = {"simulated": own["metadata"]["labels"]["simulated"]}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": LONG, "labels": labels}}
    await scene.bound.worker.kubectl("create", "-f", "-", stdin=json.dumps(body))
    try:

        async def check() -> Body | None:
            return await get(scene.bound.hub, "node", wanted)

        node = await eventually(check, f"node {wanted}")
        assert len(wanted) == 63 and node["metadata"]["annotations"][f"{OURS}physical-node-name"] == LONG
    finally:
        await delete(scene.bound.worker, "node", LONG, "--wait=false")


async def test_taints_follow_and_the_default_one_comes_last(scene: Scene) -> None:
    """Lines 76 and 77 of kubeocean-behaviour.md; and line 41, both ways."""
    rack = {"key": "rack", "value": "r7", "effect": "NoSchedule"}
    await patch(scene.bound.worker, scene.nodes[1], {"spec": {"taints": [rack], "unschedulable": True}})
    renamed = (f"{OURS}physical-node-unschedulable", "NoSchedule")
    node = await until(scene, lambda n: renamed in taints(n), "the cordon of the physical node", at=1)
    ours = taints(node)
    assert ("rack", "NoSchedule") in ours and ours[-1] == (f"{OURS}vnode", "NoSchedule") and not node["spec"].get("unschedulable")
    binding = scene.bound.name
    for off in (True, False):
        change = json.dumps({"spec": {"disableNodeDefaultTaint": off}})
        await scene.bound.hub.kubectl("patch", "clusterbinding", binding, "--type=merge", "-p", change)
        await until(scene, lambda n, off=off: ((f"{OURS}vnode", "NoSchedule") in taints(n)) is not off, "the default taint", at=1)
    await patch(scene.bound.worker, scene.nodes[1], {"spec": {"taints": None, "unschedulable": None}})
    await until(scene, lambda n: taints(n) == [(f"{OURS}vnode", "NoSchedule")], "no taint but the default one", at=1)


async def test_what_users_put_on_it_stays_and_what_is_ours_comes_back(scene: Scene) -> None:
    """Lines 82 to 85 of kubeocean-behaviour.md."""
    hub, name = scene.bound.hub, scene.vnodes[0]
    await patch(scene.bound.worker, scene.nodes[0], {"metadata": {"labels": {"old": "yes"}}})
    await until(scene, lambda n: n["metadata"]["labels"].get("old"), "a label that will be dropped")
    await hub.kubectl("label", "node", name, "mine=1")
    await hub.kubectl("annotate", "node", name, "mine.example.com/note=kept")
    await hub.kubectl("taint", "node", name, "mine=1:NoSchedule")
    await hub.kubectl("cordon", name)
    await hub.kubectl("label", "node", name, "--overwrite", "type=changed", f"{OURS}managed-by-")
    await patch(scene.bound.worker, scene.nodes[0], {"metadata": {"labels": {"old": None, "new": "yes"}}})

    def settled(node: Body) -> bool:
        labels = node["metadata"]["labels"]
        return "old" not in labels and (labels.get("new"), labels.get("type"), labels.get(f"{OURS}managed-by")) == (
            "yes",
            "virtual-kubelet",
            "kubeocean",
        )

    node = await until(scene, settled, "lines 83 and 84")
    assert node["metadata"]["labels"]["mine"] == "1" and node["metadata"]["annotations"]["mine.example.com/note"] == "kept", "line 82"
    assert ("mine", "NoSchedule") in taints(node), "line 82"
    assert node["spec"]["unschedulable"] is True, "line 85"
    await hub.kubectl("uncordon", name)
    await hub.kubectl("taint", "node", name, "mine-")


async def test_restart_changes_neither_its_port_nor_the_time_of_its_last_change(scene: Scene) -> None:
    """Lines 74 and 81 of kubeocean-behaviour.md."""

    async def known() -> list[tuple[int, str]]:
        found = [await get(scene.bound.hub, "node", name) for name in scene.vnodes]
        return [
            (node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"], node["metadata"]["annotations"][f"{OURS}last-sync-time"])
            for node in found
        ]

    before = await known()
    scene.program.kill()
    scene.program.start()
    await patch(scene.bound.worker, scene.nodes[0], {"metadata": {"labels": {"after": "restart"}}})
    await until(scene, lambda n: n["metadata"]["labels"].get("after") == "restart", "served by the new process")
    # A pod runs there only after all that the new process writes to the Node.
    namespace = await scene.bound.hub.namespace("restarted")
    await apply(scene.bound.hub, pod("after", namespace, node=scene.vnodes[1]))
    await running(scene.bound, namespace, "after")
    after = await known()
    assert [port for port, _ in after] == [port for port, _ in before] and len({port for port, _ in before}) == 2
    assert after[0][1] > before[0][1] and after[1] == before[1]


async def test_what_a_pod_uses_is_copied_and_marked(scene: Scene) -> None:
    """Line 155 of kubeocean-behaviour.md."""
    stage = await Stage.of(scene.bound, scene.nodes)
    meta = {"name": "settings", "namespace": stage.namespace}
    await stage.home.create("configmaps", {"metadata": meta, "data": {"key": "value"}})
    refs = [{"configMapRef": {"name": "settings"}}]
    body = stage.body("reader")
    body["spec"]["containers"][0]["envFrom"] = refs
    await stage.home.create("pods", body)
    copy = await stage.until_physical("settings", bool, "there", kind="configmaps")
    labels, notes = copy["metadata"]["labels"], copy["metadata"]["annotations"]
    assert copy["metadata"]["name"] == physical_name(stage.namespace, "settings") and copy["data"] == {"key": "value"}
    assert labels[f"{OURS}managed-by"] == "kubeocean" and notes[f"{OURS}virtual-name"] == "settings"
    original = await stage.home.get("configmaps", "settings", stage.namespace)
    assert original is not None and f"{OURS}finalizer-{scene.bound.name}" in original["metadata"]["finalizers"]
    assert original["metadata"]["labels"][f"{OURS}synced-by-{scene.bound.name}"] == "true"
