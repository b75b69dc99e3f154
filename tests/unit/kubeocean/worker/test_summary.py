"""The summary of a virtual node has our pods under their virtual names, and their sum as its node."""

from __future__ import annotations

import json
from typing import Any

from kubeocean.worker.exposition import Alias, Tenancy
from kubeocean.worker.node_usage import CpuMeter
from kubeocean.worker.summary import virtual_summary
from tests.unit.kubeocean.builders import pod
from vkubelet.api.objects import PodRef

CLAIMS = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "db"}}, {"name": "scratch", "ephemeral": {}}]}
WEB = Alias(PodRef("default", "web", "uid-1", "vnode-1"), "web-hash", "physical-1", pod(CLAIMS))
DB = Alias(PodRef("shop", "db", "uid-2", "vnode-1"), "db-hash", "physical-2")
TENANCY = Tenancy(node="vnode-1", namespace="mount", aliases=(WEB, DB))


def usage(cpu: int, memory: int, time: str) -> dict[str, Any]:
    return {
        "cpu": {"time": time, "usageNanoCores": cpu, "usageCoreNanoSeconds": cpu * 10, "psi": {"full": {"total": 1}}},
        "memory": {"time": time, "workingSetBytes": memory, "usageBytes": memory + 1, "rssBytes": memory - 1, "pageFaults": 3},
    }


def physical_pod(name: str, uid: str, **more: object) -> dict[str, Any]:
    return {"podRef": {"name": name, "namespace": "mount", "uid": uid}, "containers": [], **more}


MACHINE = {
    "nodeName": "node-1",
    "startTime": "2026-01-01T00:00:00Z",
    **usage(9_999, 9_999, "2026-01-02T09:00:00Z"),
    "fs": {"capacityBytes": 1},
    "systemContainers": [{"name": "kubelet"}],
}
SUMMARY = {
    "node": MACHINE,
    "pods": [
        physical_pod(
            "web-hash",
            "physical-1",
            **usage(100, 1000, "2026-01-02T09:00:05Z"),
            volume=[
                {"name": "data", "usedBytes": 1, "pvcRef": {"name": "db-hash", "namespace": "mount"}},
                {"name": "scratch", "pvcRef": {"name": "web-hash-scratch", "namespace": "mount"}},
                {"name": "unknown", "pvcRef": {"name": "x-hash", "namespace": "mount"}},
            ],
        ),
        physical_pod("db-hash", "physical-2", containers=[{"name": "main", **usage(20, 300, "2026-01-02T09:00:03Z")}]),
        physical_pod("foreign", "physical-3", **usage(5_000, 5_000, "2026-01-02T09:00:09Z")),
        physical_pod("web-hash", "physical-of-an-earlier-uid", **usage(7_000, 7_000, "2026-01-02T09:00:09Z")),
    ],
}


def test_only_our_pods_are_in_it_under_their_virtual_names() -> None:
    found = virtual_summary(SUMMARY, TENANCY, CpuMeter())
    assert [each["podRef"] for each in found["pods"]] == [
        {"name": "web", "namespace": "default", "uid": "uid-1"},
        {"name": "db", "namespace": "shop", "uid": "uid-2"},
    ]
    text = json.dumps(found)
    assert not [name for name in ("hash", "mount", "physical", "foreign", 'node-1"', "9999") if name in text.replace("vnode-1", "")]


def test_the_node_is_the_sum_of_our_pods_and_nothing_of_the_machine() -> None:
    assert virtual_summary(SUMMARY, TENANCY, CpuMeter())["node"] == {
        "nodeName": "vnode-1",
        "startTime": "2026-01-01T00:00:00Z",
        "cpu": {"time": "2026-01-02T09:00:05Z", "usageNanoCores": 120, "usageCoreNanoSeconds": 1200},
        "memory": {
            "time": "2026-01-02T09:00:05Z",
            "workingSetBytes": 1300,
            "usageBytes": 1302,
            "rssBytes": 1298,
            "pageFaults": 6,
            "majorPageFaults": 0,
        },
    }


def test_without_pods_the_node_uses_nothing() -> None:
    found = virtual_summary(SUMMARY, Tenancy(node="vnode-1", namespace="mount", aliases=()), CpuMeter())
    assert found["pods"] == []
    assert found["node"]["cpu"] == {"time": "2026-01-02T09:00:00Z", "usageNanoCores": 0, "usageCoreNanoSeconds": 0}
    assert found["node"]["memory"]["workingSetBytes"] == 0


def test_cpu_time_of_the_node_goes_on_when_a_pod_is_gone() -> None:
    meter = CpuMeter()
    virtual_summary(SUMMARY, TENANCY, meter)
    without = virtual_summary(
        {"node": MACHINE, "pods": SUMMARY["pods"][:1]}, Tenancy(node="vnode-1", namespace="mount", aliases=(WEB,)), meter
    )
    assert without["node"]["cpu"]["usageCoreNanoSeconds"] == 1200
    assert without["node"]["cpu"]["usageNanoCores"] == 100


def test_volumes_name_the_claims_of_the_virtual_pod_and_no_other() -> None:
    [web, _] = virtual_summary(SUMMARY, TENANCY, CpuMeter())["pods"]
    assert web["volume"] == [
        {"name": "data", "usedBytes": 1, "pvcRef": {"name": "db", "namespace": "default"}},
        {"name": "scratch", "pvcRef": {"name": "web-scratch", "namespace": "default"}},
        {"name": "unknown"},
    ]


def test_the_page_of_the_kubelet_is_left_as_it_is() -> None:
    before = json.dumps(SUMMARY)
    virtual_summary(SUMMARY, TENANCY, CpuMeter())
    assert json.dumps(SUMMARY) == before
