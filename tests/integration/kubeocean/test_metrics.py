"""The Prometheus series of the process of a binding, scraped from it and compared with what kubectl says."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.utils.quantity import parse_quantity

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.leases import patch_policy
from tests.support.bound import apply, get, items
from tests.support.program import eventually, holds
from tests.support.scrape import Scrape
from tests.support.stage import Stage
from vkubelet.testing.cluster import ControlPlane

MIB = 1 << 20
BINDING, NODE, RESOURCE = "clusterbinding", "node", "resource"
SERIES: dict[str, set[str]] = {
    "kubeocean_syncer_create_pod_total": {BINDING},
    "kubeocean_syncer_create_pod_errors_total": {BINDING},
    "kubeocean_syncer_pod_created_total": {BINDING},
    "kubeocean_syncer_pod_created_failed_total": {BINDING},
    "kubeocean_syncer_vnode_total": {BINDING},
    "kubeocean_vnodes_not_ready": {BINDING},
    "kubeocean_syncer_vnode_origin_resource": {BINDING, NODE, RESOURCE},
    "kubeocean_syncer_vnode_available_resource": {BINDING, NODE, RESOURCE},
    "kubeocean_syncer_vnode_physical_usage": {BINDING, NODE, RESOURCE},
    "kubeocean_syncer_vnode_virtual_usage": {BINDING, NODE, RESOURCE},
    "kubeocean_syncer_cluster_origin_resource": {BINDING, RESOURCE},
    "kubeocean_syncer_cluster_available_resource": {BINDING, RESOURCE},
    "kubeocean_syncer_cluster_physical_usage": {BINDING, RESOURCE},
    "kubeocean_syncer_cluster_virtual_usage": {BINDING, RESOURCE},
    "kubeocean_syncer_virtual_pod_total": {BINDING, "phase"},
    "kubeocean_syncer_physical_pod_total": {BINDING, "phase"},
    "kubeocean_allocatable": {RESOURCE},
    "kubeocean_bindings": {"phase"},
    "kubeocean_dependents": {"kind"},
    "kubeocean_binding_ready": {BINDING},
    "kubeocean_watch_stale_seconds": {BINDING, RESOURCE},
    "kubeocean_credentials_ttl_seconds": {BINDING},
    "kubeocean_reclaim_overdue_seconds": {BINDING},
    "kubeocean_load": {BINDING},
    "kubeocean_mirrored_events_total": {"result"},
    "vkubelet_watch_stale_seconds": {RESOURCE},
    "vkubelet_queue_oldest_seconds": {"queue"},
}


@pytest.fixture
def address(hub: ControlPlane) -> str:
    """A port that stays the same over a restart."""
    return f"127.0.0.1:{hub.site.free_port()}"


def a_quarter(bound: Any) -> list[dict[str, Any]]:
    return [bound.policy(resourceLimits=[{"resource": "cpu", "percent": 25}, {"resource": "memory", "quantity": "2Gi"}])]


async def test_every_series_tells_what_is_true_and_ends_with_its_node(common: Scene, stage: Stage, scene: MakeScene, address: str) -> None:
    """Lines 188 and 189 of kubeocean-behaviour.md: names, labels and units; of the own binding alone; nothing of a node that is gone."""
    await stage.create("of-another-binding")
    health = {"health_address": "127.0.0.1:0", "metrics_address": address}
    made = await scene(nodes=2, policies=a_quarter, settings={"health": health})
    mine = await Stage.of(made.bound, made.nodes)
    bound = made.bound
    await make_pods(mine)

    physical = await get(bound.worker, "node", made.nodes[0])
    cpu = int(physical["status"]["allocatable"]["cpu"])
    # A scrape is of one moment; what it tells of another one than the clusters do is right a moment later.
    await holds(lambda: _is_true(mine, made, Scrape.of(address), cpu))
    await refused(mine, address)
    await second_is_gone(made, address, cpu)


async def _is_true(mine: Stage, made: Scene, now: Scrape, cpu: int) -> None:
    bound, name = made.bound, made.bound.name
    assert now.value("kubeocean_syncer_virtual_pod_total", clusterbinding=name, phase="Running") == 2
    assert now.value("kubeocean_syncer_vnode_physical_usage", node=mine.vnode, resource="cpu") == 100
    wrong = {series: now.labels(series) for series, labels in SERIES.items() if now.labels(series) != {frozenset(labels)}}
    assert not wrong
    node = {"clusterbinding": name, "node": mine.vnode}
    assert now.value("kubeocean_syncer_vnode_origin_resource", **node, resource="cpu") == cpu * 1000
    offered = await offered_cpu(mine)
    # Less than a quarter: it counts the local pod.
    assert 0 < offered < cpu / 4
    assert now.value("kubeocean_syncer_vnode_available_resource", **node, resource="cpu") == offered * 1000
    assert now.value("kubeocean_syncer_vnode_available_resource", **node, resource="memory") == 2048
    assert now.value("kubeocean_syncer_vnode_virtual_usage", **node, resource="cpu") == 500
    assert now.value("kubeocean_syncer_vnode_virtual_usage", **node, resource="memory") == 128
    other = {**node, "node": made.vnodes[1]}
    assert now.value("kubeocean_syncer_vnode_virtual_usage", **other, resource="cpu") == 0
    assert now.value("kubeocean_syncer_cluster_origin_resource", clusterbinding=name, resource="cpu") == cpu * 2000
    assert now.value("kubeocean_syncer_cluster_virtual_usage", clusterbinding=name, resource="cpu") == 500
    assert now.value("kubeocean_allocatable", resource="memory") == 2 * 2048 * MIB
    assert now.values("kubeocean_syncer_vnode_available_resource", resource="pods") == []
    assert now.value("kubeocean_syncer_vnode_total", clusterbinding=name) == 2
    assert now.values("kubeocean_syncer_virtual_pod_total") == now.values("kubeocean_syncer_physical_pod_total") == [2]
    assert (now.value("kubeocean_bindings", phase="Ready"), now.value("kubeocean_binding_ready")) == (1, 1)
    assert now.value("kubeocean_syncer_pod_created_total") == 2
    for kind in ("ConfigMap", "Secret"):
        copies = await items(bound.worker, kind, "-n", bound.mount, "-l", "kubeocean.io/managed-by=kubeocean")
        assert now.value("kubeocean_dependents", kind=kind) == len(copies) > 0
    day = 86400
    assert 0 < (now.value("kubeocean_credentials_ttl_seconds") or 0) < 20 * 365 * day
    assert {"nodes", "pods", "resourceleasingpolicies"} <= {labels["resource"] for n, labels, _ in now.samples if "watch_stale" in n}


async def offered_cpu(mine: Stage) -> Any:
    """What the Node offers."""
    return parse_quantity((await get(mine.bound.hub, "node", mine.vnode))["status"]["allocatable"]["cpu"])


async def second_is_gone(made: Scene, address: str, cpu: int) -> None:
    """Its owner leases it no more: no series names it."""
    first = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [made.nodes[0]]}]}
    await patch_policy(made, f"all-of-{made.bound.name}", nodeSelector={"nodeSelectorTerms": [first]})

    def is_gone() -> None:
        after = Scrape.of(address)
        assert after.values("kubeocean_syncer_vnode_total") == [1]
        assert [series for series, labels, _ in after.samples if labels.get("node") == made.vnodes[1]] == []
        origin = after.value("kubeocean_syncer_cluster_origin_resource", clusterbinding=made.bound.name, resource="cpu")
        assert origin == cpu * 1000

    await holds(is_gone)


async def make_pods(mine: Stage) -> None:
    """Two of ours that request something and use one ConfigMap, and a local one on the same node."""
    await mine.home.create("configmaps", {"metadata": {"name": "c", "namespace": mine.namespace}, "data": {"a": "b"}})
    container = {"name": "main", "image": "localhost/busybox:dev", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}}
    for name in ("one", "two"):
        await mine.create(name, containers=[container], volumes=[{"name": "c", "configMap": {"name": "c"}}])
    requests = {"resources": {"requests": {"cpu": "100m"}}}
    spec = {"nodeName": mine.nodes[0], "containers": [{"name": "main", "image": "localhost/busybox:dev", **requests}]}
    await mine.there.create("pods", {"metadata": {"name": f"local-{mine.bound.name}", "namespace": "default"}, "spec": spec})
    await mine.running("one")
    await mine.running("two")


async def refused(mine: Stage, address: str) -> None:
    """A pod that the worker does not let in counts as one that could not be created."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": mine.bound.mount}}
    await apply(mine.bound.worker, {**quota, "spec": {"hard": {"pods": "2"}}})
    await mine.until_refused_there("exceeded quota: none")
    await mine.create("three")

    def counted() -> bool:
        now = Scrape.of(address)
        failed, errors = now.value("kubeocean_syncer_pod_created_failed_total"), now.value("kubeocean_syncer_create_pod_errors_total")
        attempts = now.value("kubeocean_syncer_create_pod_total") or 0
        return failed is not None and failed >= 1 and errors is not None and errors >= failed and attempts >= 2 + errors

    await eventually(counted, "the refusal is counted")
    await mine.home.delete("pods", "three", mine.namespace)
