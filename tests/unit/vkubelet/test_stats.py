"""What a kubelet tells of usage, made of plain numbers; the text is read by Prometheus' own parser."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from vkubelet.api.objects import PodRef
from vkubelet.provider import MetricsEndpoint
from vkubelet.stats import (
    ContainerStats,
    Filesystem,
    Network,
    NodeStats,
    PodStats,
    ProbeCount,
    Usage,
    family,
    metrics,
    summary,
    total_usage,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=1)
WEB = PodRef("shop", "web", "uid-1", "edge")

APP = ContainerStats(
    "app",
    Usage(cpu_seconds=12.5, cpu_cores=0.25, memory_bytes=1000, memory_limit_bytes=4000, swap_bytes=7, swap_limit_bytes=70),
    started_at=EARLIER,
    id="mock://1",
    image="busybox",
    probes=[ProbeCount("Liveness", successful=5, failed=2)],
)
SIDE = ContainerStats("side", Usage(at=EARLIER, cpu_seconds=0.5, memory_bytes=24))
POD = PodStats(WEB, [APP, SIDE], started_at=EARLIER, network=Network("eth0", received_bytes=11, sent_bytes=22))
NODE = NodeStats("edge", [POD], started_at=EARLIER, cores=8, memory_bytes=10_000)


def read(endpoint: MetricsEndpoint, node: NodeStats = NODE) -> dict[str, list[Sample]]:
    text = metrics(endpoint, node, now=NOW).decode()
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def test_summary_has_the_fields_metrics_server_and_kubectl_top_read() -> None:
    document = summary(NODE, now=NOW)
    assert json.loads(json.dumps(document)) == document
    node, (pod,) = document["node"], document["pods"]
    assert node["nodeName"] == "edge"
    assert node["startTime"] == "2026-01-02T02:04:05Z"
    assert node["cpu"] == {"time": "2026-01-02T02:04:05Z", "usageNanoCores": 250_000_000, "usageCoreNanoSeconds": 13_000_000_000}
    assert node["memory"] == {"time": "2026-01-02T02:04:05Z", "availableBytes": 8976, "workingSetBytes": 1024}
    assert pod["podRef"] == {"name": "web", "namespace": "shop", "uid": "uid-1"}
    assert [container["name"] for container in pod["containers"]] == ["app", "side"]
    assert pod["containers"][0]["memory"] == {"time": "2026-01-02T03:04:05Z", "availableBytes": 3000, "workingSetBytes": 1000}
    assert pod["network"]["interfaces"] == [{"name": "eth0", "rxBytes": 11, "txBytes": 22}]
    assert pod["containers"][0]["swap"]["swapAvailableBytes"] == 63


def test_what_is_not_known_is_left_out_and_never_zero() -> None:
    document = summary(NodeStats("edge", [PodStats(WEB, [ContainerStats("app")])]), now=NOW)
    container = {"name": "app"}
    assert document == {"node": {"nodeName": "edge"}, "pods": [{"podRef": document["pods"][0]["podRef"], "containers": [container]}]}
    bare = NodeStats("edge", [PodStats(WEB, [ContainerStats("app")])])
    assert set(read(MetricsEndpoint.RESOURCE, bare)) == {"resource_scrape_error", "scrape_error"}
    assert read(MetricsEndpoint.CADVISOR, bare) == {}
    assert read(MetricsEndpoint.PROBES, bare) == {}


def test_filesystems_volumes_and_processes_are_told() -> None:
    disk = Filesystem(used_bytes=1, available_bytes=2, capacity_bytes=3, inodes_used=4, inodes_free=5, inodes=9)
    pod = PodStats(WEB, [ContainerStats("app", rootfs=disk, logs=disk)], volumes={"data": disk}, ephemeral_storage=disk, processes=6)
    body = summary(NodeStats("edge", [pod], filesystem=disk), now=NOW)
    told = {"time": "2026-01-02T03:04:05Z", "availableBytes": 2, "capacityBytes": 3, "usedBytes": 1}
    told |= {"inodesFree": 5, "inodes": 9, "inodesUsed": 4}
    assert body["node"]["fs"] == body["pods"][0]["ephemeral-storage"] == body["pods"][0]["containers"][0]["logs"] == told
    assert body["pods"][0]["volume"] == [{"name": "data", **told}]
    assert body["pods"][0]["process_stats"] == {"process_count": 6}


def test_resource_metrics_have_every_level_and_the_time_of_each_sample() -> None:
    families = read(MetricsEndpoint.RESOURCE)
    (node,) = families["node_cpu_usage_seconds"]
    assert (node.labels, node.value) == ({}, 13.0)
    (pod,) = families["pod_memory_working_set_bytes"]
    assert (pod.labels, pod.value) == ({"namespace": "shop", "pod": "web"}, 1024)
    app, side = families["container_cpu_usage_seconds"]
    assert (app.labels, app.value) == ({"container": "app", "pod": "web", "namespace": "shop"}, 12.5)
    assert app.timestamp == pytest.approx(NOW.timestamp(), abs=0.001)
    assert side.timestamp == pytest.approx(EARLIER.timestamp(), abs=0.001)
    (started,) = families["container_start_time_seconds"]
    assert started.value == EARLIER.timestamp()
    assert [sample.value for sample in families["container_swap_limit_bytes"]] == [70]
    assert [sample.value for sample in families["resource_scrape_error"]] == [0]


def test_labels_stand_in_the_order_that_every_reader_understands() -> None:
    text = metrics(MetricsEndpoint.RESOURCE, NODE, now=NOW).decode()
    assert 'pod_cpu_usage_seconds_total{namespace="shop",pod="web"} 13.0 ' in text
    assert 'container_cpu_usage_seconds_total{container="app",pod="web",namespace="shop"} 12.5 1767323045678\n' in text


def test_cadvisor_metrics_name_container_pod_and_machine() -> None:
    families = read(MetricsEndpoint.CADVISOR)
    app = families["container_memory_working_set_bytes"][0]
    expected = {"container": "app", "id": "mock://1", "name": "mock://1", "image": "busybox", "namespace": "shop", "pod": "web"}
    assert app.labels == expected
    assert [sample.value for sample in families["machine_cpu_cores"]] == [8]
    assert [sample.value for sample in families["machine_memory_bytes"]] == [10_000]
    assert families["container_network_receive_bytes"][0].value == 11


def test_probe_results_are_counted_by_outcome() -> None:
    samples = read(MetricsEndpoint.PROBES)["prober_probe"]
    labels = {"probe_type": "Liveness", "container": "app", "pod": "web", "namespace": "shop", "pod_uid": "uid-1"}
    assert all(sample.labels.items() >= labels.items() for sample in samples)
    assert {sample.labels["result"]: sample.value for sample in samples} == {"successful": 5, "failed": 2, "unknown": 0}


def test_a_sum_knows_what_any_of_its_parts_knows_and_no_limits() -> None:
    total = total_usage([Usage(cpu_seconds=1, memory_limit_bytes=5), Usage(cpu_seconds=2, memory_bytes=3), Usage()])
    assert total == Usage(cpu_seconds=3, memory_bytes=3)
    assert total_usage([]) == Usage()


def test_an_own_usage_wins_over_the_sum_of_the_parts() -> None:
    pod = PodStats(WEB, [APP], usage=Usage(cpu_seconds=99))
    assert NodeStats("edge", [pod]).total.cpu_seconds == 99
    assert NodeStats("edge", [pod], usage=Usage(cpu_seconds=100)).total.cpu_seconds == 100


@given(some.text(), some.floats(allow_nan=False, allow_infinity=False))
def test_any_label_and_value_survive_the_text(label: str, value: float) -> None:
    text = family("a_b", "gauge", "Told.", samples=[({"x": label}, value, None)]).decode()
    ((sample,),) = [found.samples for found in text_string_to_metric_families(text)]
    assert (sample.labels, sample.value) == ({"x": label}, value)
