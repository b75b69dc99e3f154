"""The summary of a virtual node has our pods under their virtual names, and their sum as its node."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kubeocean.worker.exposition import Alias, Reading, Tenancy
from kubeocean.worker.summary import CpuMeter, node_series, virtual_summary
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


def test_the_first_total_is_the_sum_of_the_pods() -> None:
    assert CpuMeter().add({"a": 5, "b": 7}, alive={"a", "b"}) == 12


def test_what_a_pod_used_still_counts_when_it_is_gone() -> None:
    meter = CpuMeter()
    meter.add({"a": 5, "b": 7}, alive={"a", "b"})
    assert meter.add({"b": 8}, alive={"b"}) == 13
    assert meter.add({}, alive=set()) == 13


def test_a_pod_that_is_missing_from_one_page_is_not_counted_twice() -> None:
    meter = CpuMeter()
    meter.add({"a": 5}, alive={"a"})
    meter.add({}, alive={"a"})
    assert meter.add({"a": 6}, alive={"a"}) == 6


def test_a_counter_that_went_back_began_anew() -> None:
    meter = CpuMeter()
    meter.add({"a": 5}, alive={"a"})
    assert meter.add({"a": 2}, alive={"a"}) == 7


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 100)), max_size=20))
def test_neither_total_nor_time_go_back(pages: list[dict[str, int]]) -> None:
    meter, totals, times = CpuMeter(), [0], [0]
    for page in pages:
        totals.append(meter.add(page, alive=page.keys(), at=sum(page.values())))
        times.append(meter.at)
    assert totals == sorted(totals) and times == sorted(times)


def values(text: bytes) -> dict[str, tuple[float, float | None]]:
    families = text_string_to_metric_families(text.decode())
    return {sample.name: (sample.value, sample.timestamp) for family in families for sample in family.samples}


def test_series_of_the_node_are_sums_with_the_time_of_the_meter() -> None:
    meter = CpuMeter(total=3_500_000_001, at=1633253810002)
    text = node_series([Reading(memory=100), Reading(memory=50, swap=4), Reading(cpu=1)], meter)
    assert values(text) == {
        "node_cpu_usage_seconds_total": (3.500000001, 1633253810.002),
        "node_memory_working_set_bytes": (150, 1633253810.002),
        "node_swap_usage_bytes": (4, 1633253810.002),
    }


def test_an_idle_node_says_the_least_that_is_not_taken_for_missing() -> None:
    assert values(node_series([], CpuMeter(at=1000))) == {
        "node_cpu_usage_seconds_total": (1e-9, 1.0),
        "node_memory_working_set_bytes": (1, 1.0),
    }
