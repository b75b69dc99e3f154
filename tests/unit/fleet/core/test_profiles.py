"""Tests of fleet.core.profiles."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleet.core.profiles import access_providers, is_published, managed_profile, member_health, member_profile, oldest_heartbeat
from tests.unit.fleet.builders import SINCE, condition, managed, member

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
HEALTH = {"type": "ControlPlaneHealthy", "status": "True", "reason": "Some", "message": ""}


def reporting(*conditions: Any) -> Any:
    return {"agentStatus": [{"type": "MemberAgent", "conditions": list(conditions)}]}


@pytest.mark.parametrize(
    ("status", "age", "expected"),
    [
        (None, 0, ("Unknown", "MemberAgentReportedNoStatus")),
        (reporting(), 0, ("Unknown", "MemberAgentReportedNoHealthInfo")),
        (reporting(condition("Healthy", "True")), 61, ("False", "MemberAgentHeartbeatLost")),
        (reporting(condition("Healthy", "True")), None, ("False", "MemberAgentHeartbeatLost")),
        (reporting(condition("Healthy", "Unknown")), 61, ("False", "MemberAgentHeartbeatLost")),
        (reporting(condition("Healthy", "Unknown")), 60, ("Unknown", "MemberAgentReportedNoHealthInfo")),
        (reporting(condition("Healthy", "False")), 60, ("False", "MemberClusterAPIServerUnhealthy")),
        (reporting(condition("Healthy", "True")), 60, ("True", "MemberClusterAPIServerHealthy")),
    ],
)
def test_f_175_to_f_180_reasons_are_found_in_their_order(status: Any, age: int | None, expected: tuple[str, str]) -> None:
    heartbeat = None if age is None else NOW - timedelta(seconds=age)
    found = member_health(member(status=status), heartbeat=heartbeat, now=NOW, threshold=60.0)
    assert (found["status"], found["reason"]) == expected and found["message"]


@pytest.mark.parametrize(("threshold", "period", "expected"), [(60, 60, 68), (60, 10, 60), (5, 60, 68), (120, 60, 120), (60, 600, 635)])
def test_f_177_a_heartbeat_may_be_late_by_its_own_period_and_jitter(threshold: float, period: int, expected: float) -> None:
    assert oldest_heartbeat(threshold, period) == expected


def test_f_171_the_profile_of_a_member_names_its_manager_version_and_properties() -> None:
    properties = {
        name: {"value": value, "observationTime": SINCE} for name, value in (("k8s.io/k8s-version", "v1.34.4"), ("long", "v" * 1025))
    }
    made = member_profile(member("w1", status={"properties": properties}), "fleet-system", health=HEALTH)
    assert made.body["metadata"]["labels"] == {"x-k8s.io/cluster-manager": "KubeFleet"}
    assert made.body["spec"] == {"clusterManager": {"name": "KubeFleet"}, "displayName": "w1"}
    listed = [{"name": "k8s.io/k8s-version", "value": "v1.34.4", "lastObservedTime": SINCE}]
    assert made.status({}) == {"properties": listed, "version": {"kubernetes": "v1.34.4"}}


def test_f_501_a_property_that_is_observed_again_changes_nothing() -> None:
    first = {"properties": {"a": {"value": "1", "observationTime": SINCE}}}
    later = {"properties": {"a": {"value": "1", "observationTime": "2026-01-01T00:01:00Z"}}}
    stored = member_profile(member(status=first), "n", health=HEALTH).status({})
    assert member_profile(member(status=later), "n", health=HEALTH).status(stored) == stored


def test_f_172_the_profile_of_a_managed_cluster_names_its_set_claims_and_conditions() -> None:
    status = {
        "clusterClaims": [{"name": "id.k8s.io", "value": "abc"}],
        "version": {"kubernetes": "v1.34.4"},
        "conditions": [condition("ManagedClusterConditionAvailable", "True", "ManagedClusterAvailable")],
    }
    made = managed_profile(managed("w1", status=status), "team", cluster_set="blue")
    labels = {"x-k8s.io/cluster-manager": "open-cluster-management", "multicluster.x-k8s.io/clusterset": "blue"}
    assert made.body["metadata"] == {"name": "w1", "namespace": "team", "labels": labels}
    assert made.status({}) == {"properties": [{"name": "id.k8s.io", "value": "abc"}], "version": {"kubernetes": "v1.34.4"}}
    found = {each["type"]: (each["status"], each["reason"]) for each in made.conditions}
    assert found == {"ControlPlaneHealthy": ("True", "ManagedClusterAvailable"), "Joined": ("Unknown", "NotReported")}


def test_f_173_access_is_by_the_entrypoint_and_contains_no_credential() -> None:
    properties = {"k8s.io/cluster-entrypoint": "https://w1:6443", "k8s.io/cluster-certificate-authority-data": "Q0E="}
    expected = [{"name": "fleet", "cluster": {"server": "https://w1:6443", "certificate-authority-data": "Q0E="}}]
    assert access_providers(properties) == expected and access_providers({}) == []
    status = {"properties": {name: {"value": value, "observationTime": SINCE} for name, value in properties.items()}}
    found = member_profile(member(status=status), "n", health=HEALTH).status({})
    assert found["accessProviders"] == found["credentialProviders"] == expected


def test_f_171_a_member_is_published_from_its_join_to_its_deletion() -> None:
    joined = {"conditions": [condition("Joined", "True")]}
    assert is_published(member(status=joined)) and not is_published(member())
    assert not is_published(member(status=joined, deletionTimestamp=SINCE))
