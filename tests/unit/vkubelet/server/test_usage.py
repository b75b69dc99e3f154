"""`?only_cpu_and_memory=true` leaves of a summary what a kubelet leaves of it."""

from __future__ import annotations

from vkubelet.server.usage import cpu_and_memory

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
