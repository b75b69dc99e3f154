"""Tests of fleet.api.clusters."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.api import clusters
from fleet.api.clusters import Condition, Identity, Taint
from tests.unit.fleet.builders import condition, managed, member, unknown
from vkubelet.api.quantity import Quantity

THEN = datetime(2026, 1, 1, tzinfo=UTC)
IDENTITY = {"kind": "User", "name": "agent"}
KINDS = (
    clusters.ManagedCluster,
    clusters.MemberCluster,
    clusters.InternalMemberCluster,
    clusters.ManagedClusterSet,
    clusters.ManagedClusterSetBinding,
)


def test_f_9_a_managed_cluster_is_read_as_written() -> None:
    found = managed(
        spec={
            "hubAcceptsClient": True,
            "leaseDurationSeconds": 30,
            "managedClusterClientConfigs": [{"url": "https://w1.example:6443", "caBundle": "QQ=="}],
            "taints": [{"key": "gpu", "value": "yes", "effect": "NoSelect", "timeAdded": "2026-01-01T00:00:00Z"}],
        },
        status={
            "conditions": [condition("ManagedClusterJoined", "True", "ManagedClusterJoined", observedGeneration=2)],
            "capacity": {"cpu": "4", "memory": "8Gi"},
            "allocatable": {"cpu": "3500m"},
            "clusterClaims": [{"name": "id.k8s.io", "value": "abc"}],
            "version": {"kubernetes": "v1.34.4"},
        },
        labels={"env": "prod"},
    )
    assert (found.name, found.accepted, found.lease_seconds, found.urls) == ("w1", True, 30, ("https://w1.example:6443",))
    assert found.taints == (Taint("gpu", "NoSelect", "yes", THEN),)
    assert found.conditions == (Condition("ManagedClusterJoined", "True", "ManagedClusterJoined", "", THEN, 2),)
    assert found.capacity == {"cpu": Quantity.parse("4"), "memory": Quantity.parse("8Gi")}
    assert (found.claims, found.version, found.deleting) == ({"id.k8s.io": "abc"}, "v1.34.4", False)
    assert found.validate() == []


def test_f_9_a_member_cluster_is_read_as_written() -> None:
    found = member(
        spec={
            "identity": {"kind": "ServiceAccount", "name": "a", "namespace": "n"},
            "heartbeatPeriodSeconds": 15,
            "taints": [{"key": "gpu", "effect": "NoSchedule"}],
            "deleteOptions": {"validationMode": "Skip"},
        },
        status={
            "agentStatus": [
                {
                    "type": "MemberAgent",
                    "lastReceivedHeartbeat": "2026-01-01T00:00:00Z",
                    "conditions": [condition("Healthy", "True", "InternalMemberClusterHealthy")],
                }
            ],
            "properties": {"kubernetes-fleet.io/node-count": {"value": "3", "observationTime": "2026-01-01T00:00:00Z"}},
            "resourceUsage": {"capacity": {"cpu": "4"}, "available": {"cpu": 1}, "observationTime": "2026-01-01T00:00:00Z"},
            "namespaces": {"work": "member"},
        },
    )
    agent = found.state.agent()
    assert agent is not None and agent.heartbeat == THEN and clusters.holds(agent.conditions, "Healthy")
    assert found.identity == Identity("ServiceAccount", "a", "n") and (found.period, found.validation_mode) == (15, "Skip")
    assert found.state.properties["kubernetes-fleet.io/node-count"] == clusters.Property("3", THEN)
    assert found.state.usage == clusters.Usage({"cpu": Quantity.parse("4")}, {}, {"cpu": Quantity.parse("1")}, THEN)
    assert found.state.namespaces == {"work": "member"} and found.state.agent("Other") is None
    assert found.validate() == []


def test_f_9_absent_fields_have_the_defaults_of_the_api() -> None:
    assert (managed().lease_seconds, managed().accepted) == (60, False) and managed().validate() == []
    assert (member().period, member().validation_mode) == (60, "Strict")
    found = clusters.ManagedClusterSet.parse(unknown({"metadata": {"name": "a"}}))
    assert found.selector_type == "ExclusiveClusterSetLabel" and found.validate() == []


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"hubAcceptsClient": "yes"}, "spec.hubAcceptsClient: must be true or false"),
        ({"leaseDurationSeconds": -1}, "spec.leaseDurationSeconds: must be 1 or more seconds"),
        ({"managedClusterClientConfigs": [{"url": "http://w1"}]}, "spec.managedClusterClientConfigs[0].url: must begin with https://"),
        ({"taints": [{"key": "a", "effect": "NoSchedule"}]}, "spec.taints[0].effect: must be one of NoSelect, "),
        ({"taints": [{"effect": "NoSelect"}]}, "spec.taints[0].key: must not be empty"),
        ([], "spec: must be an object"),
    ],
)
def test_f_21_a_field_that_does_not_parse_is_absent_and_named(spec: Any, problem: str) -> None:
    found = managed(spec=spec)
    assert any(str(each).startswith(problem) for each in found.validate())
    assert found.accepted is False and found.taints == ()


def test_f_63_a_reserved_name_is_refused() -> None:
    (problem,) = managed("kube-system").validate()
    assert str(problem) == "metadata.name: kube-system is reserved for another namespace; choose another name"


@pytest.mark.parametrize(
    ("name", "spec", "problem"),
    [
        ("a" * 64, None, "metadata.name: must have at most 63 characters"),
        ("fleet-member-a", None, "metadata.name: fleet-member-a is reserved"),
        ("w1", {}, "spec.identity.kind: must be one of User, Group, ServiceAccount"),
        ("w1", {"identity": {"kind": "User"}}, "spec.identity.name: must name"),
        ("w1", {"identity": {"kind": "ServiceAccount", "name": "a"}}, "spec.identity.namespace: must name"),
        ("w1", {"identity": IDENTITY, "heartbeatPeriodSeconds": 601}, "spec.heartbeatPeriodSeconds: must be from 1 to 600"),
        ("w1", {"identity": IDENTITY, "taints": [{"key": "a", "effect": "NoSelect"}]}, "spec.taints[0].effect: must be one of NoSchedule"),
    ],
)
def test_f_121_what_is_wrong_with_a_member_names_field_and_remedy(name: str, spec: Any, problem: str) -> None:
    assert any(str(each).startswith(problem) for each in member(name, spec=spec).validate())


def test_f_121_the_identity_of_a_member_is_a_subject_of_rbac() -> None:
    assert Identity("ServiceAccount", "a", "n").subject == {"kind": "ServiceAccount", "name": "a", "namespace": "n"}
    assert Identity("Group", "g", "").subject == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "g"}


def test_f_125_a_wanted_membership_is_to_join_or_to_leave() -> None:
    for state, valid in (("Join", True), ("Leave", True), ("Stay", False), ("", False)):
        found = clusters.InternalMemberCluster.parse(unknown({"metadata": {"name": "w1"}, "spec": {"state": state}}))
        assert (found.validate() == []) is valid


def test_f_61_a_binding_has_the_name_of_its_set() -> None:
    def binding(of: str) -> clusters.ManagedClusterSetBinding:
        return clusters.ManagedClusterSetBinding.parse(unknown({"metadata": {"name": "a", "namespace": "n"}, "spec": {"clusterSet": of}}))

    assert binding("a").validate() == [] and "must be a, the name of the binding" in str(binding("b").validate()[0])


def test_f_161_a_claim_stays_in_the_worker_where_its_label_says_so() -> None:
    def claim(**labels: str) -> clusters.ClusterClaim:
        return clusters.ClusterClaim.parse(unknown({"metadata": {"name": "a", "labels": labels}, "spec": {"value": "x"}}))

    assert claim().value == "x" and not claim().stays_local
    assert claim(**{"open-cluster-management.io/spoke-only": "true"}).stays_local


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["key", "type", "conditions", "url", "value"]), inner),
)
FIELDS = [
    *("taints", "conditions", "properties", "resourceUsage", "agentStatus", "identity", "clusterSelector", "clusterClaims", "capacity"),
    *("version", "namespaces", "managedNamespaces", "managedClusterClientConfigs", "leaseDurationSeconds", "clusterSet", "value"),
]
halves = st.dictionaries(st.sampled_from(FIELDS), anything) | anything


@given(halves, halves)
def test_f_9_any_stored_object_can_be_parsed_and_judged(spec: object, status: object) -> None:
    obj = unknown({"metadata": {"name": "w1"}, "spec": spec, "status": status})
    for kind in KINDS:
        assert all(str(problem) for problem in kind.parse(obj).validate())
    assert all(str(problem) for problem in clusters.ClusterClaim.parse(obj).problems)
