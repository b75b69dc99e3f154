"""What is refused of a node's documents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from vkubelet.api.objects import PodRef
from vkubelet.testing.conformance.endpoints import _expect_resources, _expect_summary, _families
from vkubelet.testing.conformance.rules import Broken
from vkubelet.testing.conformance.stand import Made

POD = Made("web", PodRef("shop", "web", "uid-1", "node-1"))
USAGE = {"cpu": {"time": "2026-01-01T00:00:00Z", "usageNanoCores": 5}, "memory": {"time": "2026-01-01T00:00:00Z", "workingSetBytes": 7}}
SUMMARY: dict[str, Any] = {
    "node": {"nodeName": "node-1", **USAGE},
    "pods": [{"podRef": {"name": "web", "namespace": "shop", "uid": "uid-1"}, "containers": [{"name": "main", **USAGE}], **USAGE}],
}


def test_complete_summary_is_accepted() -> None:
    _expect_summary(SUMMARY, "node-1", POD)


@pytest.mark.parametrize(
    ("path", "value", "seen"),
    [
        (("node", "nodeName"), "physical-1", "of node physical-1"),
        (("node", "cpu", "usageNanoCores"), 0.5, "usageNanoCores is 0.5"),
        (("node", "memory", "workingSetBytes"), -1, "workingSetBytes is -1"),
        (("node", "cpu", "time"), "yesterday", "cpu of the node"),
        (("node", "cpu"), None, "neither cpu nor memory"),
        (("pods",), [], "0 times"),
        (("pods",), SUMMARY["pods"] * 2, "2 times"),
        (("pods", 0, "podRef", "namespace"), "mount", "for {'name': 'web'"),
        (("pods", 0, "containers"), [], "it has main"),
        (("pods", 0, "containers", 0, "memory", "workingSetBytes"), "7", "memory of a container"),
    ],
)
def test_summary_with_one_fault_is_refused_by_what_was_seen(path: tuple[Any, ...], value: object, seen: str) -> None:
    document = json.loads(json.dumps(SUMMARY))
    *way, last = path
    place: Any = document
    for step in way:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    with pytest.raises(Broken) as broken:
        _expect_summary(document, "node-1", POD)
    assert seen in str(broken.value)


def test_text_that_prometheus_can_not_read_is_refused() -> None:
    with pytest.raises(Broken, match="/metrics/resource is not Prometheus text"):
        list(_families(b"node_cpu_usage_seconds_total{ 1\n", "resource"))


def test_resources_need_what_metrics_server_reads_of_the_pod() -> None:
    registry = CollectorRegistry()
    for name in ("node_cpu_usage_seconds", "node_memory_working_set_bytes"):
        Gauge(name, "of the node", registry=registry).set(1)
    names = ("container_cpu_usage_seconds", "container_memory_working_set_bytes", "container_start_time_seconds")
    gauges = [Gauge(name, "of the container", ["container", "pod", "namespace"], registry=registry) for name in names]
    for gauge in gauges[:2]:
        gauge.labels("main", "web", "shop").set(1)
    gauges[2].labels("main", "web", "mount").set(1)

    def judge() -> None:
        _expect_resources({family.name: family for family in _families(generate_latest(registry), "resource")}, POD)

    with pytest.raises(Broken, match="0 samples of container_start_time_seconds"):
        judge()
    gauges[2].labels("main", "web", "shop").set(1)
    judge()
