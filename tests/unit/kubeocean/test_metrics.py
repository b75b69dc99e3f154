"""Names, labels and units of the series; what is told follows from what is read at the scrape."""

from __future__ import annotations

import pytest
from attrs import evolve
from prometheus_client import CollectorRegistry

from kubeocean.metrics import ManagerMetrics, NodeAmounts, Snapshot, SyncerMetrics
from vkubelet.api.quantity import parse_resources
from vkubelet.errors import AlreadyExists, Forbidden, Unavailable

BINDING = {"clusterbinding": "b"}
ONE = NodeAmounts(
    name="vnode-b-one",
    origin=parse_resources({"cpu": "4", "memory": "8Gi", "pods": "110", "nvidia.com/gpu": "2", "example.com/odd": "3"}),
    available=parse_resources({"cpu": "1500m", "memory": "512Mi", "pods": "110"}),
    physical=parse_resources({"cpu": "250m"}),
    virtual=parse_resources({"cpu": "1", "gocrane.io/memory": "1Mi", "tke.cloud.tencent.com/eni-ip": "1"}),
)


def test_amounts_are_told_in_millicores_mebibytes_and_pieces_and_summed_over_nodes() -> None:
    registry = CollectorRegistry()
    SyncerMetrics(registry, binding="b").follow(lambda: lambda: Snapshot(nodes=[ONE, ONE]))
    node = {**BINDING, "node": "vnode-b-one"}

    def value(name: str, resource: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"kubeocean_syncer_{name}", {**labels, "resource": resource})

    assert value("vnode_origin_resource", "cpu", **node) == 4000
    assert value("vnode_origin_resource", "memory", **node) == 8192
    assert value("vnode_origin_resource", "nvidia.com/gpu", **node) == 2
    assert value("vnode_available_resource", "cpu", **node) == 1500
    assert value("vnode_physical_usage", "cpu", **node) == 250
    assert value("vnode_virtual_usage", "gocrane.io/memory", **node) == 1
    assert value("vnode_virtual_usage", "tke.cloud.tencent.com/eni-ip", **node) == 1
    assert value("cluster_origin_resource", "cpu", **BINDING) == 8000
    assert value("vnode_origin_resource", "pods", **node) is None
    assert value("vnode_origin_resource", "example.com/odd", **node) is None
    assert registry.get_sample_value("kubeocean_allocatable", {"resource": "memory"}) == 2 * 512 * 1024 * 1024
    assert registry.get_sample_value("kubeocean_allocatable", {"resource": "cpu"}) == 3


def test_nodes_that_are_not_ready_are_counted() -> None:
    registry = CollectorRegistry()
    SyncerMetrics(registry, binding="b").follow(lambda: lambda: Snapshot(nodes=[ONE, evolve(ONE, name="two", ready=False)]))
    assert registry.get_sample_value("kubeocean_vnodes_not_ready", BINDING) == 1


def test_a_node_that_is_gone_has_no_series() -> None:
    registry, now = CollectorRegistry(), [Snapshot(nodes=[ONE])]
    SyncerMetrics(registry, binding="b").follow(lambda: lambda: now[0])
    of_node = [s for f in registry.collect() for s in f.samples if s.labels.get("node")]
    assert of_node
    now[0] = Snapshot()
    assert [s for f in registry.collect() for s in f.samples if s.labels.get("node")] == []
    assert registry.get_sample_value("kubeocean_syncer_vnode_total", BINDING) == 0


def test_a_process_that_was_followed_by_another_tells_nothing_of_the_binding() -> None:
    registry = CollectorRegistry()
    metrics = SyncerMetrics(registry, binding="b")
    metrics.follow(lambda: lambda: Snapshot(nodes=[ONE], ready=True))
    assert registry.get_sample_value("kubeocean_binding_ready", BINDING) == 1
    metrics.stop_exporting()
    assert [each.name for family in registry.collect() for each in family.samples if family.type == "gauge"] == []
    metrics.follow(lambda: lambda: Snapshot(ready=False))
    assert registry.get_sample_value("kubeocean_binding_ready", BINDING) == 0


def test_what_is_not_known_is_told_by_no_series() -> None:
    registry = CollectorRegistry()
    SyncerMetrics(registry, binding="b")
    for name in ("binding_ready", "credentials_ttl_seconds"):
        assert registry.get_sample_value(f"kubeocean_{name}", BINDING) is None
    assert registry.get_sample_value("kubeocean_reclaim_overdue_seconds", BINDING) == 0


def test_attempts_failures_and_creations_are_counted_apart() -> None:
    registry = CollectorRegistry()
    metrics = SyncerMetrics(registry, binding="b")
    with metrics.attempt(), metrics.creation():
        pass
    with pytest.raises(Unavailable), metrics.attempt():
        raise Unavailable("a Secret is missing")
    with pytest.raises(Forbidden), metrics.attempt(), metrics.creation():
        raise Forbidden("create pods a/b", "quota")
    with pytest.raises(AlreadyExists), metrics.creation():
        raise AlreadyExists("create pods a/b", "there")
    counters = ("create_pod", "create_pod_errors", "pod_created", "pod_created_failed")
    assert [registry.get_sample_value(f"kubeocean_syncer_{name}_total", BINDING) for name in counters] == [3, 2, 1, 1]


def test_series_of_the_manager_bear_the_names_of_the_specification() -> None:
    registry = CollectorRegistry()
    metrics = ManagerMetrics(registry)
    metrics.sync_total.labels("b").inc()
    metrics.sync_errors.labels("b").inc()
    metrics.clusterbindings.labels("Ready").set(2)
    metrics.sync_seconds.observe(0.1)
    names = {sample.name for family in registry.collect() for sample in family.samples}
    wanted = {"sync_total", "sync_errors_total", "sync_duration_seconds_bucket"}
    assert {f"kubeocean_manager_{name}" for name in wanted} | {"kubeocean_clusterbindings_total"} <= names
    metrics.remove("b")
    assert registry.get_sample_value("kubeocean_manager_sync_total", BINDING) is None
