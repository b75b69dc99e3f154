"""What `/metrics` counts of one node's pods, read by Prometheus' own parser."""

from __future__ import annotations

import json
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from vkubelet.api.objects import Pod
from vkubelet.metrics import NodeDurations
from vkubelet.server.node_metrics import cpu_and_memory, durations, pod_families, queue_families, worker_families

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(parts: Iterable[bytes]) -> Series:
    families = text_string_to_metric_families(b"".join(parts).decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def pod(name: str, phase: str = "Running", *, states: Iterable[str] = (), **metadata: object) -> Pod:
    statuses = [{"name": f"c{number}", "state": {state: {}}} for number, state in enumerate(states)]
    body = {
        "metadata": {"name": name, "namespace": "shop", "uid": name, **metadata},
        "spec": {"nodeName": "edge", "containers": []},
        "status": {"phase": phase, "containerStatuses": statuses},
    }
    return Pod.decode(json.dumps(body).encode())


def test_pods_and_containers_are_counted_as_a_kubelet_counts_them() -> None:
    found = read(
        pod_families(
            "edge",
            [
                pod("a", states=["running", "terminated"]),
                pod("b", "Pending", states=["waiting"]),
                pod("c", "Failed", states=["terminated"]),
                pod("d", states=["running"], deletionTimestamp="2026-01-01T00:00:00Z"),
                pod("e", states=["running"], annotations={"kubernetes.io/config.mirror": "hash"}),
            ],
        )
    )
    assert found["kubelet_node_name", (("node", "edge"),)] == 1
    assert found["kubelet_running_pods", ()] == 3
    assert found["kubelet_running_containers", (("container_state", "running"),)] == 3
    assert found["kubelet_running_containers", (("container_state", "exited"),)] == 2
    assert found["kubelet_desired_pods", (("static", ""),)] == 4
    assert found["kubelet_desired_pods", (("static", "true"),)] == found["kubelet_mirror_pods", ()] == 1
    assert found["kubelet_active_pods", (("static", ""),)] == 3

    def working(lifecycle: str, static: str = "") -> float:
        return found["kubelet_working_pods", (("config", "desired"), ("lifecycle", lifecycle), ("static", static))]

    assert (working("sync"), working("terminating"), working("terminated"), working("sync", "true")) == (2, 1, 1, 1)


def test_an_empty_node_has_every_series_at_zero() -> None:
    found = read(pod_families("edge", []))
    assert found.pop(("kubelet_node_name", (("node", "edge"),))) == 1
    assert len(found) >= 10
    assert set(found.values()) == {0}


def test_ephemeral_containers_are_counted() -> None:
    body = {"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "spec": {"nodeName": "edge"}}
    status = {"phase": "Running", "ephemeralContainerStatuses": [{"name": "x", "state": {"running": {}}}, {"name": "y", "state": {}}]}
    found = read(pod_families("edge", [Pod.decode(json.dumps({**body, "status": status}).encode())]))
    assert found["kubelet_managed_ephemeral_containers", ()] == 1


def test_queues_are_told_with_the_node() -> None:
    found = read(queue_families("edge", {"pods": 3}))
    assert found == {("vkubelet_node_queue_depth", (("node", "edge"), ("queue", "pods"))): 3}


def test_durations_are_a_histogram_by_node_that_ends_with_the_node() -> None:
    told = NodeDurations()
    for seconds in (0.001, 0.2, 500.0):
        told.observe("edge", "sync", seconds)
    told.observe("edge", "sync", 0.2, failed=True)
    told.observe("other", "sync", 1.0)
    found = read(worker_families(told.of("edge")))
    name, labels = "kubelet_pod_worker_duration_seconds", ("operation_type", "sync")
    assert found[f"{name}_count", (labels,)] == 4
    assert found[f"{name}_sum", (labels,)] == 500.401
    assert found[f"{name}_bucket", (("le", "0.005"), labels)] == 1
    assert found[f"{name}_bucket", (("le", "0.25"), labels)] == 3
    assert found[f"{name}_bucket", (("le", "60.0"), labels)] == 3
    assert found[f"{name}_bucket", (("le", "+Inf"), labels)] == 4
    assert found["vkubelet_pod_worker_failures_total", (labels,)] == 1
    told.remove("edge")
    assert read(worker_families(told.of("edge"))) == {}
    assert told.of("other")


def test_a_histogram_without_labels_reads_as_one() -> None:
    told = NodeDurations()
    told.observe("edge", "", 0.5)
    found = read([durations("lag_seconds", "Lag.", (({}, each) for each in told.of("edge").values()))])
    assert (found["lag_seconds_count", ()], found["lag_seconds_sum", ()]) == (1, 0.5)


FULL = {
    "node": {
        "nodeName": "edge",
        "startTime": "t",
        "cpu": {"usageNanoCores": 1},
        "memory": {"workingSetBytes": 2},
        "swap": {"swapUsageBytes": 0},
        "network": {"rxBytes": 3},
        "fs": {"usedBytes": 4},
        "runtime": {"imageFs": {}},
        "rlimit": {"maxpid": 5},
        "systemContainers": [{"name": "pods", "cpu": {}, "memory": {}, "io": {}}],
    },
    "pods": [
        {
            "podRef": {"name": "web", "namespace": "shop", "uid": "1"},
            "startTime": "t",
            "containers": [{"name": "app", "startTime": "t", "cpu": {}, "memory": {}, "rootfs": {}, "logs": {}, "swap": {}}],
            "cpu": {},
            "memory": {},
            "network": {},
            "volume": [],
            "ephemeral-storage": {},
            "process_stats": {"process_count": 1},
            "swap": {},
        }
    ],
}


def test_only_cpu_memory_and_swap_are_left_of_node_pods_and_containers() -> None:
    left = cpu_and_memory(FULL)
    assert set(left) == {"node", "pods"}
    assert set(left["node"]) == {"nodeName", "startTime", "cpu", "memory", "swap", "systemContainers"}
    assert left["node"]["systemContainers"] == [{"name": "pods", "cpu": {}, "memory": {}}]
    (pod,) = left["pods"]
    assert set(pod) == {"podRef", "startTime", "containers", "cpu", "memory", "swap"}
    assert pod["containers"] == [{"name": "app", "startTime": "t", "cpu": {}, "memory": {}, "swap": {}}]


def test_a_summary_with_nothing_in_it_has_nothing_left() -> None:
    assert cpu_and_memory({}) == {"node": {}, "pods": []}
    assert cpu_and_memory({"node": {"nodeName": "edge"}, "pods": [{"podRef": {}}]})["pods"] == [{"podRef": {}, "containers": []}]
