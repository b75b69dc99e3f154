"""Tests of fleet.kubefleet.membership."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleet.api.clusters import InternalMemberCluster
from fleet.kubefleet.membership import (
    Agents,
    agents_of,
    desired_state,
    has_left,
    joined_condition,
    leave_due,
    member_objects,
    namespace_obstacle,
    ready_condition,
    time_to_leave,
)
from tests.unit.fleet.builders import SINCE, condition, member, unknown
from vkubelet.api.objects import ObjectMeta, OwnerReference

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def internal(*joined: str, **status: Any) -> InternalMemberCluster:
    agents = [{"type": "MemberAgent", "conditions": [condition("Joined", each)]} for each in joined]
    return InternalMemberCluster.parse(unknown({"metadata": {"name": "w1"}, "status": {"agentStatus": agents, **status}}))


def test_f_122_a_member_gets_its_objects_in_their_order() -> None:
    made = member_objects(member("w1", spec={"identity": {"kind": "User", "name": "a"}, "heartbeatPeriodSeconds": 15}), state="Join")
    names = [(each["kind"], each["metadata"]["name"]) for each in made]
    expected = [("Namespace", "fleet-member-w1"), ("Role", "fleet-role-w1"), ("RoleBinding", "fleet-rolebinding-w1")]
    assert names == [*expected, ("InternalMemberCluster", "w1")]
    assert made[0]["metadata"]["ownerReferences"][0]["uid"] == "u2" and made[3]["spec"] == {"state": "Join", "heartbeatPeriodSeconds": 15}
    assert all(each["metadata"]["labels"]["kubernetes-fleet.io/is-fleet-resource"] == "true" for each in made)
    assert made[2]["subjects"] == [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "a"}]


def test_f_29_a_member_without_rights_keeps_its_namespace() -> None:
    assert [each["kind"] for each in member_objects(member(), state="Leave", revoked=True)] == ["Namespace", "InternalMemberCluster"]


@pytest.mark.parametrize(
    ("reported", "expected"),
    [(None, Agents.UNKNOWN), ((), Agents.UNKNOWN), (("True",), Agents.JOINED), (("False",), Agents.LEFT), (("Unknown",), Agents.UNKNOWN)],
)
def test_f_123_a_member_has_joined_when_every_agent_reports_it(reported: Any, expected: Agents) -> None:
    assert agents_of(None if reported is None else internal(*reported)) is expected


def test_f_123_an_expected_agent_without_a_report_leaves_the_state_unknown() -> None:
    assert agents_of(internal("True"), expected=("MemberAgent", "Other")) is Agents.UNKNOWN


def test_f_127_a_member_has_left_when_its_agent_says_so_or_never_came() -> None:
    reported = member(status={"agentStatus": [{"type": "MemberAgent", "conditions": [condition("Joined", "True")]}]})
    assert has_left(member(), None) and has_left(member(), internal()) and has_left(reported, internal("False"))
    assert not has_left(reported, None) and not has_left(reported, internal("True")) and not has_left(member(), internal("True"))


def test_f_123_conditions_have_the_reasons_of_the_api() -> None:
    found = {each: (joined_condition(each)["status"], joined_condition(each)["reason"]) for each in Agents}
    assert found == {
        Agents.JOINED: ("True", "MemberClusterJoined"),
        Agents.LEFT: ("False", "MemberClusterLeft"),
        Agents.UNKNOWN: ("Unknown", "MemberClusterJoinStateUnknown"),
    }
    assert ready_condition("")["reason"] == "MemberClusterReadyToJoin"
    assert (ready_condition("why")["reason"], ready_condition("why")["message"]) == ("MemberClusterNotReadyToJoin", "why")


def test_f_122_a_namespace_of_another_owner_is_an_obstacle() -> None:
    own = OwnerReference(api_version="v1", kind="MemberCluster", name="w1", uid="u2")
    assert namespace_obstacle(member(), None) == "" == namespace_obstacle(member(), ObjectMeta(name="n", owner_references=[own]))
    assert "another owner" in namespace_obstacle(member(), ObjectMeta(name="n"))
    assert "being deleted" in namespace_obstacle(member(), ObjectMeta(name="n", owner_references=[own], deletion_timestamp=SINCE))


def test_f_128_a_member_without_an_answer_leaves_after_its_time() -> None:
    allowed = time_to_leave(member(), 900.0)
    assert leave_due(NOW, now=NOW + timedelta(seconds=899), allowed=allowed) == 1.0
    assert leave_due(NOW, now=NOW + timedelta(seconds=900), allowed=allowed) == 0.0


@pytest.mark.parametrize(("text", "expected"), [("60", 60), ("0", 0), ("3600", 900), ("soon", 900), ("", 900)])
def test_f_128_a_member_may_be_given_less_time_by_its_annotation(text: str, expected: int) -> None:
    annotated = member(annotations={"fleet.vkubelet.io/force-cleanup-after": text})
    assert time_to_leave(annotated, 900.0) == timedelta(seconds=expected)


def test_f_127_a_deleted_member_is_asked_to_leave() -> None:
    assert desired_state(member()) == "Join" and desired_state(member(deletionTimestamp=SINCE)) == "Leave"
