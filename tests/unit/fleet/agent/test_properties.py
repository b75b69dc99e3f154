"""Tests of fleet.agent.properties."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fleet.agent.properties import WorkerInventory, node_head, pod_head
from fleet.core.properties import NodeShare, requests
from tests.support.memory_api import Body, MemoryApi
from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.objects import Node, Pod
from vkubelet.client.transport import Call
from vkubelet.errors import Forbidden, NotFound, Unreachable
from vkubelet.metrics import Metrics
from vkubelet.testing.clock import ManualClock

CLAIMS = "/apis/cluster.open-cluster-management.io/v1alpha1/clusterclaims"
PROPERTIES = "/apis/about.k8s.io/v1/clusterproperties"


def node_body(name: str, cpu: str = "4", **spec: Any) -> Body:
    labels = {"topology.kubernetes.io/zone": "z1", "node.kubernetes.io/instance-type": "big", "other": "x"}
    status = {"capacity": {"cpu": cpu, "memory": "8Gi"}, "allocatable": {"cpu": cpu, "memory": "7Gi"}, "images": [{"names": ["i"] * 50}]}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": {"a": "b" * 500}},
        "spec": {"podCIDR": "x", **spec},
        "status": status,
    }


def pod_body(name: str, cpu: str = "500m", *, node: str = "n1", phase: str = "Running") -> Body:
    containers = [{"name": "c", "image": "i" * 500, "env": [], "resources": {"requests": {"cpu": cpu}}}]
    first = [{"name": "i", "resources": {"requests": {"cpu": "2"}}}]
    spec = {"nodeName": node, "containers": containers, "initContainers": first, "overhead": {"cpu": "100m"}}
    return {"metadata": {"name": name, "namespace": "a", "labels": {"l": "x" * 60}}, "spec": spec, "status": {"phase": phase}}


class WorkerApi(MemoryApi):
    """A worker; `errors` are answers by the path, `/version` is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, type[Exception]] = {}
        self.put("/api/v1/namespaces/kube-system", {"metadata": {"name": "kube-system", "uid": "cluster-id"}})

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.path in self.errors:
            raise self.errors[call.path](call.attempt, "some answer")
        return b'{"gitVersion": "v1.34.4"}' if call.path == "/version" else await super().fetch(call, timeout)

    def claim(self, name: str, value: str, **labels: str) -> None:
        self.put(f"{CLAIMS}/{name}", {"metadata": {"name": name, "labels": labels}, "spec": {"value": value}})


@asynccontextmanager
async def watched(api: WorkerApi, clock: ManualClock, *, cluster_properties: bool = False) -> AsyncIterator[WorkerInventory]:
    inventory = WorkerInventory(api.client(), cluster_properties=cluster_properties, clock=clock, metrics=Metrics())
    task = asyncio.ensure_future(inventory.run())
    await clock.settle()
    yield inventory
    task.cancel()


def test_f_166_of_a_node_only_its_share_is_retained() -> None:
    full = decode_object(Node, encode_json(node_body("n1", unschedulable=True)))
    head = node_head(full)
    assert NodeShare.of(head) == NodeShare.of(full) and not NodeShare.of(head).schedulable
    assert len(head.spec_json) + len(head.status_json) < 150 and not head.metadata.annotations and "other" not in head.metadata.labels


def test_f_166_of_a_pod_only_its_requests_are_retained() -> None:
    full = decode_object(Pod, encode_json(pod_body("p")))
    head = pod_head(full)
    assert head is not None and requests(head) == requests(full) and len(head.spec_json) < 100 and not head.metadata.labels
    assert {name: str(amount) for name, amount in requests(head).items()} == {"cpu": "2100m"}


def test_f_166_nothing_is_retained_of_a_pod_that_takes_nothing() -> None:
    for body in (pod_body("p", phase="Succeeded"), pod_body("p", node="")):
        assert pod_head(decode_object(Pod, encode_json(body))) is None


async def test_f_163_what_pods_request_is_subtracted_as_they_come_and_go() -> None:
    api, clock = WorkerApi(), ManualClock()
    api.put("/api/v1/nodes/n1", node_body("n1"))
    api.put("/api/v1/namespaces/a/pods/p1", pod_body("p1"))
    async with watched(api, clock) as inventory:
        await inventory.wait_synced()
        facts = await inventory.read()
        assert facts.inventory is not None and facts.inventory.nodes == 1 and facts.version == "v1.34.4"
        assert str(facts.inventory.usage.available["cpu"]) == "1900m"
        api.put("/api/v1/namespaces/a/pods/p1", pod_body("p1", phase="Succeeded"))
        await clock.settle()
        found = inventory.inventory()
        assert found is not None and str(found.usage.available["cpu"]) == "4"


async def test_f_161_claims_are_read_but_for_local_ones() -> None:
    api = WorkerApi()
    api.claim("platform.open-cluster-management.io", "edge")
    api.claim("local", "x", **{"open-cluster-management.io/spoke-only": ""})
    api.put(f"{PROPERTIES}/cluster.clusterset.k8s.io", {"metadata": {"name": "cluster.clusterset.k8s.io"}, "spec": {"value": "w1"}})
    for also, properties in ((False, {}), (True, {"cluster.clusterset.k8s.io": "w1"})):
        async with watched(api, ManualClock(), cluster_properties=also) as inventory:
            facts = await inventory.read()
            known = {"id.k8s.io": "cluster-id", "kubeversion.open-cluster-management.io": "v1.34.4"}
            assert facts.claims == {**known, "platform.open-cluster-management.io": "edge"} and facts.cluster_properties == properties


async def test_f_161_a_claim_of_the_owner_wins_over_the_computed_one() -> None:
    api = WorkerApi()
    api.claim("id.k8s.io", "chosen")
    async with watched(api, ManualClock()) as inventory:
        assert ((await inventory.read()).claims or {})["id.k8s.io"] == "chosen"


async def test_f_133_claims_that_cannot_be_read_now_are_those_that_were_read_last() -> None:
    api = WorkerApi()
    api.claim("a", "1")
    async with watched(api, ManualClock()) as inventory:
        before = (await inventory.read()).claims
        api.errors = {CLAIMS: Unreachable, "/version": Unreachable}
        facts = await inventory.read()
        assert facts.claims == before and facts.version is None and not facts.missing


async def test_f_133_a_missing_right_is_named_with_the_rule_to_add() -> None:
    api = WorkerApi()
    api.errors = {CLAIMS: Forbidden}
    async with watched(api, ManualClock()) as inventory:
        facts = await inventory.read()
        assert len(facts.missing) == 1 and "resources: [clusterclaims], verbs: [list, watch]" in facts.missing[0]
        assert facts.claims == {"id.k8s.io": "cluster-id", "kubeversion.open-cluster-management.io": "v1.34.4"}


async def test_f_161_a_worker_without_the_kind_has_no_claims() -> None:
    api = WorkerApi()
    api.errors = {CLAIMS: NotFound}
    async with watched(api, ManualClock()) as inventory:
        facts = await inventory.read()
        assert not facts.missing and facts.claims is not None and len(facts.claims) == 2
