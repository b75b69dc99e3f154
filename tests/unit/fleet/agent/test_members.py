"""Tests of fleet.agent.members."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fleet.agent.members import MemberReport, next_heartbeat, status_change
from fleet.agent.providers import Outcome
from tests.unit.fleet.agent.test_managed_cluster_status import facts
from tests.unit.fleet.builders import SINCE, Body, condition

NOW = datetime(2026, 2, 1, tzinfo=UTC)


def change(live: Body | None = None, *, desired: str = "Join", **report: Any) -> Body:
    report.setdefault("facts", facts())
    return status_change(live or {}, MemberReport(**report), desired=desired, generation=2, now=NOW)


def agent(found: Body) -> dict[str, tuple[str, str]]:
    (entry,) = [each for each in found["agentStatus"] if each["type"] == "MemberAgent"]
    return {each["type"]: (each["status"], each["reason"]) for each in entry["conditions"]}


def test_f_125_a_member_reports_that_it_joined_and_is_healthy() -> None:
    found = change()
    assert agent(found) == {"Joined": ("True", "InternalMemberClusterJoined"), "Healthy": ("True", "InternalMemberClusterHealthy")}
    assert found["agentStatus"][0]["lastReceivedHeartbeat"] == "2026-02-01T00:00:00Z"


def test_f_125_an_unhealthy_api_server_is_reported_with_its_error() -> None:
    found = change(unhealthy="get /livez: no response")
    assert agent(found)["Healthy"] == ("False", "InternalMemberClusterUnhealthy")
    assert found["agentStatus"][0]["conditions"][1]["message"] == "get /livez: no response"


def test_f_127_a_member_that_leaves_reports_that_alone() -> None:
    found = change(desired="Leave")
    assert agent(found)["Joined"] == ("False", "InternalMemberClusterLeft") and found.keys() == {"agentStatus"}


def test_f_123_entries_of_other_agents_and_conditions_of_others_stay() -> None:
    other = {"type": "ServiceExportImportAgent", "conditions": []}
    live = {"agentStatus": [other], "conditions": [condition("NamespaceCollectionSucceeded", "True")]}
    found = change(live)
    assert found["agentStatus"][0] == other and len(found["agentStatus"]) == 2
    types = {each["type"]: each["reason"] for each in found["conditions"]}
    assert types["ClusterPropertyCollectionSucceeded"] == "PropertiesCollected" and types["ClusterPropertyProviderStarted"] == "Started"
    assert "NamespaceCollectionSucceeded" in types


def test_f_125_a_transition_keeps_its_time_in_later_heartbeats() -> None:
    live = {"agentStatus": [{"type": "MemberAgent", "conditions": [condition("Joined", "True"), condition("Healthy", "False")]}]}
    times = {each["type"]: each["lastTransitionTime"] for each in change(live)["agentStatus"][0]["conditions"]}
    assert times == {"Joined": SINCE, "Healthy": "2026-02-01T00:00:00Z"}


def test_f_125_heartbeats_follow_one_another_in_their_period_by_five_percent() -> None:
    pauses = [next_heartbeat(600) for _ in range(1000)]
    assert 570 <= min(pauses) < 580 and 620 < max(pauses) <= 630


def test_f_125_a_later_heartbeat_has_its_own_time() -> None:
    live = {"agentStatus": [{"type": "MemberAgent", "conditions": [], "lastReceivedHeartbeat": SINCE}]}
    assert change(live)["agentStatus"][0]["lastReceivedHeartbeat"] == "2026-02-01T00:00:00Z"


def test_f_162_properties_have_values_and_the_time_of_their_observation() -> None:
    found = change({"properties": {"gone": {"value": "1"}}}, entrypoint="https://w1.example", authority="QQ==")
    properties = found["properties"]
    assert properties["kubernetes-fleet.io/node-count"] == {"value": "2", "observationTime": "2026-02-01T00:00:00Z"}
    assert properties["k8s.io/cluster-entrypoint"]["value"] == "https://w1.example" and properties["a"]["value"] == "1"
    assert properties["k8s.io/cluster-certificate-authority-data"]["value"] == "QQ==" and properties["gone"] is None


def test_f_163_usage_has_capacity_allocatable_and_what_is_available() -> None:
    usage = change()["resourceUsage"]
    assert usage.keys() == {"capacity", "allocatable", "available", "observationTime"} and usage["capacity"]["cpu"] == "6"


def test_f_133_what_is_unknown_is_not_reported_and_a_missing_right_is_named() -> None:
    assert change(facts=facts(inventory=None)).keys() == {"agentStatus"}
    (collected,) = [each for each in change(facts=facts(missing=("pods, …",)))["conditions"] if "Collection" in each["type"]]
    assert collected["message"] == "not reported: pods, …"


def test_f_164_properties_of_providers_are_reported_with_their_state() -> None:
    late = Outcome("TimedOut", "property provider p: no answer within 10 s")
    found = change(facts=facts(provided={"p/x": "1", "a": "other"}, collected=late))
    assert found["properties"]["p/x"]["value"] == "1" and found["properties"]["a"]["value"] == "1"
    (collected,) = [each for each in found["conditions"] if each["type"] == "ClusterPropertyCollectionSucceeded"]
    assert (collected["status"], collected["reason"]) == ("False", "TimedOut") and collected["message"] == late.message
