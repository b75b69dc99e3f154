"""Which nodes are leased, by which policy, and how much: lines 47 to 70 of docs/reference/kubeocean-behaviour.md on nodes made by hand.

The nodes have no kubelet, so nothing but the policies and the pods put on them moves their figures.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from attrs import frozen

from tests.integration.kubeocean.conftest import Scene, lasting_scene
from tests.integration.kubeocean.leases import POLICY, listed, vnode_names
from tests.integration.kubeocean.outages import events_of, may, now, refused
from tests.support.bound import Body, Bound, apply, delete, get
from tests.support.program import PATIENCE, eventually
from vkubelet.testing.cluster import ControlPlane

GPU = "nvidia.com/gpu"
RICH = {"cpu": "7", "memory": "7Gi", "pods": "110", GPU: "7", "example.com/fpga": "3"}


@pytest.fixture(scope="module")
def lasting(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with lasting_scene(hub, worker, tmp_path_factory.mktemp("eligible"), policies=may_label_nodes) as made:
        yield made
        asyncio.run(worker.kubectl("delete", "clusterrole,clusterrolebinding", f"labels-{made.bound.name}"))


def may_label_nodes(bound: Bound) -> list[Body]:
    """The usual policy, and the optional right to show on a node which policy leases it."""
    rbac, name = "rbac.authorization.k8s.io", f"labels-{bound.name}"
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]
    role = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    granted = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": bound.user}],
    }
    return [bound.policy(), role, granted]


@frozen
class Land:
    """Nodes made by hand beside the scene's own, which its binding selects; no policy but those a test makes."""

    scene: Scene
    nodes: list[str]

    def name(self, short: str) -> str:
        return f"{short}-{self.scene.bound.name}"

    async def node(self, short: str, labels: Body | None = None, *, allocatable: Body | None = None, capacity: Body | None = None) -> str:
        name, worker = self.name(short), self.scene.bound.worker
        # Removed also when the rest of this fails.
        self.nodes.append(name)
        ours = {"simulated": self.scene.nodes[0], "kubernetes.io/hostname": name}
        await apply(worker, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {**ours, **(labels or {})}}})
        ready = {"type": "Ready", "status": "True", "reason": "Made", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        amounts = {"allocatable": allocatable if allocatable is not None else RICH, "capacity": capacity or allocatable or RICH}
        status = json.dumps({"status": {**amounts, "conditions": [ready]}})
        await worker.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", status)
        return name

    async def policy(self, short: str, **spec: Any) -> str:
        await apply(self.scene.bound.worker, self.scene.bound.policy(self.name(short), **spec))
        return self.name(short)

    async def virtual(self, node: str) -> Body | None:
        found: Body | None = await get(self.scene.bound.hub, "node", self.scene.bound.vnode(node))
        return found

    async def offers(self, node: str, *, seconds: float = PATIENCE, **amounts: str) -> Body:
        """Wait until the virtual node has these amounts, as capacity and allocatable (line 67); the Node."""
        wanted = {key.replace("gpu", GPU): value for key, value in amounts.items()}

        async def check() -> Body | None:
            found = await self.virtual(node)
            status = found["status"] if found else {}
            return found if all(wanted.items() <= status.get(kind, {}).items() for kind in ("capacity", "allocatable")) else None

        try:
            out: Body = await eventually(check, f"{node} offers {wanted}", seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {(await self.virtual(node) or {}).get('status', {}).get('allocatable')}") from None
        return out

    async def only(self, *nodes: str) -> None:
        """Wait until these nodes are leased and no others."""
        wanted = {self.scene.bound.vnode(node) for node in nodes}

        async def check() -> bool:
            return await vnode_names(self.scene) == wanted

        await eventually(check, f"virtual nodes {sorted(wanted)}")

    async def label(self, node: str) -> str:
        """Which policy the physical node says it is leased by."""
        found = await get(self.scene.bound.worker, "node", node)
        return str(found["metadata"]["labels"].get("kubeocean.io/policy-applied", ""))

    async def labelled(self, node: str, policy: str) -> None:
        async def check() -> bool:
            return await self.label(node) == policy

        await eventually(check, f"node {node} is labelled with policy {policy!r}")


@pytest.fixture
async def land(lasting: Scene) -> AsyncIterator[Land]:
    """Without policies and nodes of the test afterwards."""
    worker, own = lasting.bound.worker, lasting.bound
    await worker.kubectl("delete", POLICY, f"all-of-{own.name}", "--ignore-not-found")
    made = Land(lasting, [])
    yield made
    left = [body["metadata"]["name"] for body in await listed(worker, POLICY) if body["metadata"]["name"].endswith(f"-{own.name}")]
    if left:
        await delete(worker, POLICY, *left, "--ignore-not-found", "--wait=false")
    if made.nodes:
        await delete(worker, "node", *made.nodes, "--ignore-not-found", "--wait=false")
    await made.only()


def terms(*requirements: list[tuple[str, str, list[str]]], fields: list[tuple[str, str, list[str]]] | None = None) -> Body:
    """A selector: the terms are ORed, what is in one is ANDed."""
    built = [{"matchExpressions": [_requirement(*each) for each in term]} for term in requirements]
    if fields is not None:
        built.append({"matchFields": [_requirement(*each) for each in fields]})
    return {"nodeSelectorTerms": built}


def _requirement(key: str, operator: str, values: list[str]) -> Body:
    return {"key": key, "operator": operator, **({"values": values} if values else {})}


async def test_selectors_and_kinds_of_nodes_decide_which_nodes_are_leased(land: Land) -> None:
    """Lines 47 to 54 of kubeocean-behaviour.md."""
    big = await land.node("big", {"size": "16", "team": "a"})
    small = await land.node("small", {"size": "2", "team": "b"})
    outside = await land.node("outside", {"size": "16", "simulated": "nobody"})
    typed = [
        await land.node("external", {"node.kubernetes.io/instance-type": "external"}),
        await land.node("eklet", {"beta.kubernetes.io/instance-type": "eklet"}),
        await land.node("vnode", {"node.kubernetes.io/instance-type": "vnode"}),
        await land.node("virtual", {"type": "virtual-kubelet"}),
    ]
    own = land.scene.nodes[0]
    bound = land.scene.bound

    # 47: no policy, no node. 49: a policy for another binding is none. 48: one the binding does not select stays out.
    await apply(bound.worker, {**bound.policy(land.name("foreign")), "spec": {"cluster": "another"}})
    everything = await land.policy("everything", nodeSelector={"nodeSelectorTerms": []})
    await land.only(big, small, own)
    assert await land.virtual(outside) is None, "line 48"

    # 54: pods that come to an excluded node change nothing; the count of pods on `big`, changed later, shows that they were looked at.
    namespace = await bound.worker.namespace()
    await apply(bound.worker, *(local(f"on-{node}", namespace, node) for node in (*typed, big)))
    await land.offers(big, pods="109")
    for node in typed:
        assert await land.virtual(node) is None, f"lines 53 and 54: {node}"

    selectors: list[tuple[Body, list[str]]] = [
        (terms([("size", "Gt", ["8"])]), [big]),
        (terms([("size", "Lt", ["8"])]), [small]),
        (terms([("team", "In", ["a"])], [("team", "In", ["b"])]), [big, small]),
        (terms([("team", "In", ["a", "b"]), ("size", "Gt", ["8"])]), [big]),
        (terms([("team", "Bogus", ["a"])], [("team", "In", ["b"])]), [small]),
        (terms([("team", "DoesNotExist", [])]), [own]),
        (terms(fields=[("metadata.name", "In", [small])]), [small]),
        (terms(fields=[("metadata.name", "In", [small, big])]), []),
        (terms([]), []),
    ]
    for selector, wanted in selectors:
        change = json.dumps({"spec": {"nodeSelector": selector}})
        await bound.worker.kubectl("patch", POLICY, everything, "--type=merge", "-p", change)
        await land.only(*wanted)


def local(name: str, namespace: str, node: str, **requests: str) -> Body:
    """A pod of the worker's own."""
    amounts = {key.replace("gpu", GPU): value for key, value in requests.items()}
    limits = {key: value for key, value in amounts.items() if "/" in key}
    container = {"name": "main", "image": "i", "resources": {"requests": amounts, "limits": limits}}
    spec = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


async def test_the_policy_that_decides_is_told_on_the_node_and_the_next_takes_over(land: Land) -> None:
    """Lines 55 to 58 of kubeocean-behaviour.md."""
    node = await land.node("only")
    here = {"nodeSelector": terms([("kubernetes.io/hostname", "In", [node])])}
    # Made in one second or not: by name or by age, `a` comes first.
    first = await land.policy("a", resourceLimits=[{"resource": "cpu", "quantity": "3"}], **here)
    second = await land.policy("b", resourceLimits=[{"resource": "cpu", "quantity": "2"}], **here)
    await land.offers(node, cpu="3")
    await land.labelled(node, first)
    await land.scene.bound.worker.kubectl("delete", POLICY, first)
    await land.offers(node, cpu="2")
    await land.labelled(node, second)
    await land.scene.bound.worker.kubectl("delete", POLICY, second)
    await land.only()
    await land.labelled(node, "")


async def test_nodes_are_labelled_as_soon_as_the_right_to_is_given(land: Land) -> None:
    """Line 58 of kubeocean-behaviour.md: a refusal is no reason to wait for a restart."""
    bound = land.scene.bound
    granted = may_label_nodes(bound)[-1]
    nodes = [await land.node("one"), await land.node("two")]
    await bound.worker.kubectl("delete", "clusterrolebinding", granted["metadata"]["name"])
    try:
        await eventually(lambda: may(bound, "patch", "nodes", False), "the right is gone")
        began = now()
        policy = await land.policy("late", nodeSelector=terms([("kubernetes.io/hostname", "In", nodes)]))
        await land.only(*nodes)
        await eventually(lambda: events_of(land.scene, "PolicyLabelForbidden"), "the binding tells that it may not")
        await eventually(lambda: refused(land.scene, began, verb="patch", resource="nodes"), "it was tried")
        assert [await land.label(node) for node in nodes] == ["", ""]
    finally:
        await apply(bound.worker, granted)
    for node in nodes:
        await land.labelled(node, policy)
    tried = refused(land.scene, began, verb="patch", resource="nodes")
    assert len(tried) <= len(nodes), "the right is asked for before it is tried again"


async def test_gpus_and_other_extended_resources_are_leased_in_whole_numbers(land: Land) -> None:
    """Lines 59 to 67 and 69 of kubeocean-behaviour.md: extended resources are leased as the rest is, rounded down to whole ones."""
    node = await land.node("rich", allocatable={**RICH, "cpu": "6500m"}, capacity=RICH)
    without = await land.node("bare", allocatable={}, capacity=RICH)
    limits = [
        {"resource": GPU, "percent": 50},
        {"resource": "pods", "percent": 33},
        {"resource": "cpu", "percent": 33},
        {"resource": "memory", "quantity": "3Gi", "percent": 90},
        {"resource": "example.com/unknown", "quantity": "9"},
    ]
    both = terms([("kubernetes.io/hostname", "In", [node, without])])
    policy = await land.policy("gpus", resourceLimits=limits, nodeSelector=both)
    whole = {"cpu": "2145m", "memory": "3Gi", "pods": "36", "gpu": "3"}
    found = await land.offers(node, **whole)
    assert found["status"]["allocatable"]["example.com/fpga"] == "3", "line 65"
    assert "example.com/unknown" not in found["status"]["allocatable"], "line 66"
    await land.offers(without, cpu="2310m", gpu="3")

    namespace = await land.scene.bound.worker.namespace()
    await apply(land.scene.bound.worker, local("trainer", namespace, node, gpu="2", cpu="1"))
    # Of 5 GPUs, 5.5 CPUs and 109 pods that are left.
    await land.offers(node, gpu="2", cpu="1815m", pods="35")
    await apply(land.scene.bound.worker, local("greedy", namespace, node, gpu="9"))
    await land.offers(node, gpu="0")
    change = json.dumps({"spec": {"resourceLimits": [{"resource": GPU, "quantity": "1"}]}})
    await land.scene.bound.worker.kubectl("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0")
    await land.scene.bound.worker.kubectl("patch", POLICY, policy, "--type=merge", "-p", change)
    await land.offers(node, gpu="1", cpu="6500m")
