"""Tests of vkubelet.api.scheduling."""

from __future__ import annotations

import pytest

from vkubelet.api.objects import Json
from vkubelet.api.quantity import format_resources
from vkubelet.api.scheduling import (
    allocated_spec,
    effective_requests,
    host_ports,
    is_extended,
    matches_node,
    ports_conflict,
    reserved_spec,
    tolerates,
)


def container(cpu: str = "", memory: str = "", **more: object) -> Json:
    requests = {name: amount for name, amount in (("cpu", cpu), ("memory", memory)) if amount}
    return {"name": "c", "resources": {"requests": requests}, **more}


def sidecar(cpu: str) -> Json:
    return container(cpu, restartPolicy="Always")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [container("1", "1Gi"), container("500m")]}, {"cpu": "1500m", "memory": "1Gi"}),
        # Init containers run before the others, one after another.
        ({"initContainers": [container("3"), container("2")], "containers": [container("1"), container("1")]}, {"cpu": "3"}),
        ({"initContainers": [container("1")], "containers": [container("1"), container("1")]}, {"cpu": "2"}),
        # A sidecar runs on: beside later init containers and all app containers.
        ({"initContainers": [sidecar("1"), container("3")], "containers": [container("1")]}, {"cpu": "4"}),
        ({"initContainers": [container("3"), sidecar("1")], "containers": [container("1")]}, {"cpu": "3"}),
        ({"initContainers": [sidecar("1"), sidecar("1")], "containers": [container("1")]}, {"cpu": "3"}),
        ({"containers": [container("1")], "overhead": {"cpu": "250m", "memory": "64Mi"}}, {"cpu": "1250m", "memory": "64Mi"}),
        # What the pod as a whole asks for replaces the sum.
        ({"containers": [container("1", "1Gi")], "resources": {"requests": {"cpu": "5"}}}, {"cpu": "5", "memory": "1Gi"}),
        ({"containers": [container("1")], "ephemeralContainers": [container("7")]}, {"cpu": "1"}),
        ({"containers": [container("nonsense")]}, {}),
        ({}, {}),
    ],
)
def test_effective_requests_follow_the_scheduler(spec: Json, expected: dict[str, str]) -> None:
    assert format_resources(effective_requests(spec)) == expected


def test_what_containers_were_granted_counts_in_place_of_what_they_ask_for() -> None:
    spec: Json = {"containers": [container("3", "1Gi"), {**container("1"), "name": "d"}], "initContainers": [{**sidecar("2"), "name": "s"}]}
    told: Json = {
        "containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "1", "memory": "1Gi"}}, {"name": "d"}],
        "initContainerStatuses": [{"name": "s", "allocatedResources": {"cpu": "500m"}}],
    }
    assert format_resources(effective_requests(allocated_spec(spec, told))) == {"cpu": "2500m", "memory": "1Gi"}
    assert allocated_spec(spec, {}) == spec


INFEASIBLE = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
DEFERRED = {"type": "PodResizePending", "status": "True", "reason": "Deferred"}
IN_PROGRESS = {"type": "PodResizeInProgress", "status": "True"}


@pytest.mark.parametrize(
    ("asked", "allocated", "runs", "condition", "counted"),
    [
        ("4", "4", "4", {}, "4"),
        # It grows: what is not granted yet is reserved, unless the kubelet will never grant it.
        ("64", "4", "4", DEFERRED, "64"),
        ("64", "4", "4", INFEASIBLE, "4"),
        # It shrinks: what is not given back yet is still held.
        ("1", "6", "6", IN_PROGRESS, "6"),
        ("1", "1", "6", IN_PROGRESS, "6"),
        ("1", "1", "1", {}, "1"),
        # A kubelet that does not report.
        ("1", "", "", {}, "1"),
    ],
)
def test_a_resize_counts_as_the_scheduler_counts_it(asked: str, allocated: str, runs: str, condition: Json, counted: str) -> None:
    entry: Json = {"name": "c"}
    if allocated:
        entry |= {"allocatedResources": {"cpu": allocated}, "resources": {"requests": {"cpu": runs}}}
    status = {"containerStatuses": [entry], "conditions": [condition]}
    assert format_resources(effective_requests(reserved_spec({"containers": [container(asked)]}, status))) == {"cpu": counted}


def test_sidecars_are_resized_and_other_init_containers_are_not() -> None:
    entry = {"allocatedResources": {"cpu": "8"}, "resources": {"requests": {"cpu": "8"}}}
    status = {"initContainerStatuses": [{"name": "c", **entry}]}
    for init, counted in ((sidecar("1"), "8"), (container("1"), "1")):
        found = reserved_spec({"initContainers": [init], "containers": []}, status)
        assert format_resources(effective_requests(found)) == {"cpu": counted}


@pytest.mark.parametrize(
    ("resource", "extended"),
    [
        ("example.com/gpu", True),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("x.kubernetes.io/y", False),
        ("requests.example.com/gpu", False),
    ],
)
def test_resources_with_a_domain_of_others_are_extended(resource: str, extended: bool) -> None:
    assert is_extended(resource) is extended


def test_host_ports_are_those_of_apps_and_sidecars() -> None:
    spec: Json = {
        "containers": [{"ports": [{"hostPort": 80}, {"containerPort": 9}]}],
        "initContainers": [
            {"ports": [{"hostPort": 81}]},
            {"restartPolicy": "Always", "ports": [{"hostPort": 82, "protocol": "UDP", "hostIP": "10.0.0.1"}]},
        ],
    }
    assert host_ports(spec) == {("0.0.0.0", "TCP", 80), ("10.0.0.1", "UDP", 82)}


@pytest.mark.parametrize(
    ("taken", "conflict"),
    [
        (("0.0.0.0", "TCP", 80), True),
        (("10.0.0.1", "TCP", 80), True),
        (("10.0.0.2", "TCP", 80), False),
        (("0.0.0.0", "UDP", 80), False),
        (("0.0.0.0", "TCP", 81), False),
    ],
)
def test_ports_conflict_on_one_address_or_when_either_takes_all(taken: tuple[str, str, int], conflict: bool) -> None:
    assert ports_conflict(frozenset({("10.0.0.1", "TCP", 80)}), [taken]) is conflict


def test_a_port_on_all_addresses_conflicts_with_one_address() -> None:
    assert ports_conflict(frozenset({("0.0.0.0", "TCP", 80)}), [("10.0.0.1", "TCP", 80)])
    assert not ports_conflict(frozenset(), [("10.0.0.1", "TCP", 80)])


PREFERRED: Json = {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["hdd"]}]}}


def affinity(*expressions: Json) -> Json:
    terms = [{"matchExpressions": list(expressions)}]
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}


@pytest.mark.parametrize(
    ("operator", "names", "matches"),
    [("In", ["n"], True), ("In", ["m"], False), ("NotIn", ["m"], True), ("NotIn", ["n"], False), ("NotIn", ["m", "o"], False)],
)
def test_a_pod_may_say_by_name_which_node_it_wants_and_which_not(operator: str, names: list[str], matches: bool) -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": operator, "values": names}]}
    spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}}
    assert matches_node(spec, labels={}, name="n") is matches


@pytest.mark.parametrize(
    ("spec", "matches"),
    [
        ({}, True),
        ({"nodeSelector": {"disk": "ssd"}}, True),
        ({"nodeSelector": {"disk": "hdd"}}, False),
        ({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [PREFERRED]}}}, True),
        (affinity({"key": "disk", "operator": "In", "values": ["ssd"]}), True),
        (affinity({"key": "disk", "operator": "DoesNotExist"}), False),
        ({"nodeSelector": {"disk": "ssd"}, **affinity({"key": "disk", "operator": "NotIn", "values": ["ssd"]})}, False),
    ],
)
def test_a_pod_matches_a_node_by_selector_and_required_affinity(spec: Json, matches: bool) -> None:
    assert matches_node(spec, labels={"disk": "ssd"}, name="n") is matches


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute"}, True),
        ({"key": "k"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoSchedule"}, False),
    ],
)
def test_a_toleration_matches_as_core_v1_says(toleration: Json, tolerated: bool) -> None:
    assert tolerates([toleration], {"key": "k", "value": "v", "effect": "NoExecute"}) is tolerated
    assert not tolerates([], {"key": "k", "effect": "NoExecute"})
