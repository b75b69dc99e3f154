"""Tests of fleet.core.properties."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.core.properties import Inventory, NodeShare, merged, reported_claims, requests
from vkubelet.api.codec import encode_json
from vkubelet.api.objects import Node, Pod

LABELS = {
    "node.kubernetes.io/instance-type": "m5.large",
    "topology.kubernetes.io/region": "eu-1",
    "topology.kubernetes.io/zone": "eu-1a",
}


def node(*, cpu: str = "4", unschedulable: bool = False, labels: dict[str, str] | None = None, **more: Any) -> NodeShare:
    amounts = {"cpu": cpu, "memory": "8Gi", **more}
    body = {
        "metadata": {"name": "n", "labels": LABELS if labels is None else labels},
        "spec": {"unschedulable": unschedulable},
        "status": {"capacity": amounts, "allocatable": {**amounts, "memory": "7Gi"}},
    }
    return NodeShare.of(Node.decode(encode_json(body)))


def pod(spec: dict[str, Any], *, phase: str = "Running", on: str = "n") -> Pod:
    return Pod.decode(encode_json({"metadata": {"name": "p"}, "spec": {"nodeName": on, **spec}, "status": {"phase": phase}}))


def container(cpu: str) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu}}}


def test_f_163_available_is_what_is_allocatable_less_what_pods_request() -> None:
    taken = pod({"containers": [container("1")], "initContainers": [container("1500m")], "overhead": {"cpu": "100m", "memory": "1Gi"}})
    found = Inventory.of([node(), node(cpu="2")], [requests(taken)]).member_usage()
    assert found == {
        "capacity": {"cpu": "6", "memory": "16Gi"},
        "allocatable": {"cpu": "6", "memory": "14Gi"},
        "available": {"cpu": "4400m", "memory": "13Gi"},
    }


def test_f_163_pods_that_terminated_or_have_no_node_take_nothing() -> None:
    spec = {"containers": [container("1")]}
    assert not requests(pod(spec, phase="Succeeded")) and not requests(pod(spec, phase="Failed")) and not requests(pod(spec, on=""))
    assert {name: str(amount) for name, amount in requests(pod(spec, phase="Pending")).items()} == {"cpu": "1"}


def test_f_163_cpu_and_memory_are_reported_always_and_every_other_resource_of_a_node() -> None:
    nothing = {"cpu": "0", "memory": "0"}
    assert Inventory.of([], []).member_usage() == {"capacity": nothing, "allocatable": nothing, "available": nothing}
    assert Inventory.of([node(**{"nvidia.com/gpu": "2"}), node()], []).member_usage()["capacity"]["nvidia.com/gpu"] == "2"


def test_f_163_what_is_available_is_never_less_than_nothing() -> None:
    found = Inventory.of([node(cpu="1")], [requests(pod({"containers": [container("3")]}))])
    assert found.member_usage()["available"]["cpu"] == "0"


def test_f_133_allocatable_of_a_managed_cluster_leaves_out_nodes_that_take_no_pods() -> None:
    found = Inventory.of([node(), node(unschedulable=True)], []).managed_status()
    assert found == {"capacity": {"cpu": "8", "memory": "16Gi"}, "allocatable": {"cpu": "4", "memory": "7Gi"}}


def test_f_162_properties_have_the_names_of_kubefleet() -> None:
    found = Inventory.of([node(labels={})], []).properties(version="v1.34.4", entrypoint="https://w1:6443", authority="QQ==")
    assert found == {
        "kubernetes-fleet.io/node-count": "1",
        "k8s.io/k8s-version": "v1.34.4",
        "k8s.io/cluster-entrypoint": "https://w1:6443",
        "k8s.io/cluster-certificate-authority-data": "QQ==",
        **{f"resources.kubernetes-fleet.io/{part}-cpu": "4" for part in ("total", "allocatable", "available")},
        "resources.kubernetes-fleet.io/total-memory": "8Gi",
        "resources.kubernetes-fleet.io/allocatable-memory": "7Gi",
        "resources.kubernetes-fleet.io/available-memory": "7Gi",
    }


def test_f_165_nodes_are_counted_by_type_region_and_zone_and_every_resource_is_there() -> None:
    other = {**LABELS, "topology.kubernetes.io/zone": "eu-1b"}
    found = Inventory.of([node(**{"nvidia.com/gpu": "2"}), node(labels=other), node(labels={})], []).properties(version="v1")
    assert {name: value for name, value in found.items() if name.endswith("/count") or "nvidia" in name} == {
        "node.kubernetes-fleet.io/instance-type/m5.large/count": "2",
        "topology.kubernetes-fleet.io/region/eu-1/count": "2",
        "topology.kubernetes-fleet.io/zone/eu-1a/count": "1",
        "topology.kubernetes-fleet.io/zone/eu-1b/count": "1",
        "resources.kubernetes-fleet.io/total-nvidia.com.gpu": "2",
        "resources.kubernetes-fleet.io/allocatable-nvidia.com.gpu": "2",
        "resources.kubernetes-fleet.io/available-nvidia.com.gpu": "2",
    }
    assert "k8s.io/cluster-entrypoint" not in found


def test_f_166_an_amount_that_does_not_parse_counts_as_nothing() -> None:
    broken = Node.decode(encode_json({"metadata": {"name": "n"}, "spec": {}, "status": {"capacity": {"cpu": "much"}, "allocatable": []}}))
    assert Inventory.of([NodeShare.of(broken)], []).member_usage()["capacity"] == {"cpu": "0", "memory": "0"}


def test_f_24_of_two_sources_of_a_name_the_owners_win() -> None:
    computed, claims, own = {"a": "1", "b": "1", "c": "1"}, {"b": "2", "c": "2"}, {"c": "3"}
    assert merged(computed=computed, claims=claims, cluster_properties=own) == {"a": "1", "b": "2", "c": "3"}


def test_f_161_reserved_claims_come_first_and_twenty_others_by_name() -> None:
    others = {f"claim-{number:02}": "x" for number in range(22, 0, -1)}
    reserved = {"product.open-cluster-management.io": "Other", "id.k8s.io": "abc"}
    found = reported_claims({**others, **reserved})
    assert [each["name"] for each in found.listed] == [
        "id.k8s.io",
        "product.open-cluster-management.io",
        *(f"claim-{number:02}" for number in range(1, 21)),
    ]
    assert found.omitted == ["claim-21", "claim-22"] and found.listed[0] == {"name": "id.k8s.io", "value": "abc"}


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.just("x"), max_size=30), st.integers(0, 25))
def test_f_161_every_claim_is_reported_or_named(claims: dict[str, str], limit: int) -> None:
    found = reported_claims(claims, limit=limit)
    assert {each["name"] for each in found.listed} | set(found.omitted) == set(claims)
    assert len(found.listed) + len(found.omitted) == len(claims) and len(found.listed) <= limit + 4
