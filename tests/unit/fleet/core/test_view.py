"""Tests of fleet.core.view."""

from datetime import UTC, datetime
from typing import Any

import pytest

from fleet.core.taints import Effect
from fleet.core.view import Door, ViewTaint, origin_of, view_of
from tests.unit.fleet.builders import condition, managed, member
from vkubelet.api.quantity import Quantity

THEN = datetime(2026, 1, 1, tzinfo=UTC)
ORIGIN = "fleet.vkubelet.io/origin"
AGENT = {
    "type": "MemberAgent",
    "lastReceivedHeartbeat": "2026-01-01T00:01:00Z",
    "conditions": [condition("Healthy", "False", "InternalMemberClusterUnhealthy")],
}


def test_f_21_the_view_of_a_managed_cluster() -> None:
    status = {
        "conditions": [
            condition("ManagedClusterJoined", "True"),
            condition("ManagedClusterConditionAvailable", "Unknown", "ManagedClusterLeaseUpdateStopped"),
        ],
        "capacity": {"cpu": "4"},
        "clusterClaims": [{"name": "tier", "value": "3"}, {"name": "id.k8s.io", "value": "abc"}],
        "version": {"kubernetes": "v1.34.4"},
    }
    spec = {"hubAcceptsClient": True, "taints": [{"key": "a", "effect": "NoSelect", "timeAdded": "2026-01-01T00:00:00Z"}]}
    found = view_of(managed(spec=spec, status=status, labels={"env": "prod"}), None, renewed=THEN)
    assert (found.name, found.door, found.accepted, found.joined, found.leaving) == ("w1", Door.OCM, True, True, False)
    assert (found.health.status, found.health.cause) == ("Unknown", "ManagedClusterLeaseUpdateStopped")
    assert (found.health.since, found.health.heartbeat) == (THEN, THEN)
    assert found.taints == (ViewTaint("a", "", Effect.BLOCK, THEN),) and found.labels == {"env": "prod"}
    assert (found.version, found.properties) == ("v1.34.4", {"tier": "3", "id.k8s.io": "abc"})
    assert found.amount("tier") == Quantity.parse("3") and found.amount("id.k8s.io") is None and found.amount("missing") is None
    assert found.usage.capacity == {"cpu": Quantity.parse("4")} and found.problems == ()


def test_f_21_the_view_of_a_member_cluster() -> None:
    status = {
        "conditions": [condition("Joined", "True")],
        "agentStatus": [AGENT],
        "properties": {"k8s.io/k8s-version": {"value": "v1.33.0"}},
        "resourceUsage": {"available": {"cpu": "1"}},
        "namespaces": {"b": "m", "a": "m"},
    }
    found = view_of(None, member(status=status, labels={"env": "test"}))
    assert (found.door, found.accepted, found.joined, found.labels) == (Door.KUBEFLEET, True, True, {"env": "test"})
    assert (found.health.status, found.health.cause, found.version) == ("False", "InternalMemberClusterUnhealthy", "v1.33.0")
    assert found.health.heartbeat == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert found.namespaces == ["a", "b"] and found.usage.available == {"cpu": Quantity.parse("1")}


def test_f_21_a_cluster_of_which_nothing_is_known_is_neither_healthy_nor_accepted() -> None:
    found = view_of(managed(), None)
    assert (found.accepted, found.joined, found.health.status, found.health.heartbeat) == (False, False, "Unknown", None)


def test_f_21_a_field_that_does_not_parse_is_named_in_the_view() -> None:
    found = view_of(managed(spec={"hubAcceptsClient": 1}), member(spec={"identity": {"kind": "User", "name": "a"}, "taints": 3}))
    assert [problem.field for problem in found.problems] == ["spec.hubAcceptsClient", "spec.taints"]


def test_f_22_a_deleted_record_is_leaving_and_no_consent() -> None:
    deleted: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert view_of(managed(**deleted), None).leaving
    found = view_of(None, member(**deleted))
    assert (found.leaving, found.accepted) == (True, False)


@pytest.mark.parametrize(
    ("of_managed", "of_member", "door", "contested"),
    [
        ({}, {ORIGIN: "ManagedCluster"}, Door.OCM, False),
        ({ORIGIN: "MemberCluster"}, {}, Door.KUBEFLEET, False),
        ({}, {}, Door.KUBEFLEET, True),
        ({ORIGIN: "nonsense"}, {ORIGIN: "nonsense"}, Door.KUBEFLEET, True),
    ],
)
def test_f_27_the_origin_is_what_the_mirror_says_else_the_older_record(
    of_managed: dict[str, str], of_member: dict[str, str], door: Door, contested: bool
) -> None:
    newer = managed(annotations=of_managed, creationTimestamp="2026-01-02T00:00:00Z")
    older = member(annotations=of_member, creationTimestamp="2026-01-01T00:00:00Z")
    found = origin_of(newer, older)
    assert (found.door, found.contested) == (door, contested)


def test_f_27_of_records_of_one_second_the_managed_cluster_is_the_origin() -> None:
    same = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    found = origin_of(managed(**same), member(**same))
    assert (found.door, found.contested) == (Door.OCM, True)


def test_f_27_labels_are_those_of_the_origin_and_a_mirrored_taint_counts_once() -> None:
    origin = managed(spec={"taints": [{"key": "a", "effect": "NoSelect"}, {"key": "b", "effect": "PreferNoSelect"}]}, labels={"x": "y"})
    spec = {"identity": {"kind": "Group", "name": "g"}, "taints": [{"key": "a", "effect": "NoSchedule"}]}
    mirror = member(spec=spec, annotations={ORIGIN: "ManagedCluster"}, labels={"other": "z"})
    found = view_of(origin, mirror)
    assert found.labels == {"x": "y"}
    assert [(each.key, each.effect) for each in found.taints] == [("a", Effect.BLOCK), ("b", Effect.PREFER_NOT)]


def test_f_24_claims_of_the_owner_win_over_computed_properties() -> None:
    status = {"properties": {"tier": {"value": "1"}, "kubernetes-fleet.io/node-count": {"value": "2"}}}
    found = view_of(managed(status={"clusterClaims": [{"name": "tier", "value": "3"}]}), member(status=status))
    assert found.properties == {"tier": "3", "kubernetes-fleet.io/node-count": "2"}


def test_a_cluster_without_any_record_has_no_view() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        view_of(None, None)
