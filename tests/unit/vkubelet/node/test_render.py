"""What a Node is posted and patched with."""

import json
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

from vkubelet.api import names
from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.objects import Json, Node, ObjectMeta
from vkubelet.clock import rfc3339
from vkubelet.node import render
from vkubelet.node.declared import HEALTHY, Health
from vkubelet.provider import NodeDescription, Taint
from vkubelet.testing.clock import ManualClock

NOW = ManualClock().now()
ENDPOINT = render.Endpoint("10.0.0.9", 15001)
DESCRIPTION = NodeDescription(
    "n1", {"cpu": "4", "pods": "10"}, labels={"zone": "a"}, annotations={"note": "x"}, taints=[Taint("t", "NoSchedule")]
)


def wanted(description: NodeDescription = DESCRIPTION, health: Health = HEALTHY) -> render.Wanted:
    return render.wanted(description, ENDPOINT, instance="i", health=health)


def node(body: dict[str, Any]) -> Node:
    return decode_object(Node, encode_json(body))


def written(want: render.Wanted, *, now: datetime = NOW, **status: Any) -> Node:
    """The Node as it stands after we wrote it."""
    body = render.new_node(want)
    body["metadata"]["uid"] = "u1"
    conditions = [{**c, "lastHeartbeatTime": rfc3339(now), "lastTransitionTime": rfc3339(NOW)} for c in want.conditions]
    body["status"] = {**want.status, "conditions": conditions, **status}
    return node(body)


@pytest.mark.parametrize("note", ["{", "[]", "5", '{"labels": 5}', '{"labels": [["a"], 5], "taints": [{}]}', '{"conditions": null}'])
def test_damaged_note_of_our_keys_counts_as_none(note: str) -> None:
    live = written(wanted())
    damaged = node({"metadata": {"name": "n1", "uid": "u1", "annotations": {names.OWNED: note}}, "status": live.status})
    assert names.owned_keys(damaged) == names.Owned()
    assert render.status_patch(damaged, wanted(), now=NOW) is not None


def test_new_node_bears_all_taints_and_no_status() -> None:
    body = render.new_node(wanted())
    assert body["spec"]["taints"] == [{"key": "t", "effect": "NoSchedule"}]
    assert "status" not in body
    assert body["metadata"]["labels"]["kubernetes.io/hostname"] == "n1"
    assert body["metadata"]["labels"]["kubernetes.io/os"] == "linux"


def test_provider_labels_win_over_defaults_but_not_over_the_instance_mark() -> None:
    labels = wanted(NodeDescription("n1", {}, labels={"type": "mine", names.INSTANCE: "other"})).labels
    assert labels["type"] == "mine"
    assert labels[names.INSTANCE] == "i"


def test_unchanged_node_renders_no_patch() -> None:
    assert render.status_patch(written(wanted()), wanted(), now=NOW + timedelta(minutes=2)) is None


def test_unchanged_node_is_reported_again_with_heartbeats_only() -> None:
    later = NOW + 1.5 * render.REPORT_EVERY
    patch = render.status_patch(written(wanted()), wanted(), now=later)
    assert patch is not None
    assert set(patch["status"]) == {"conditions"}
    assert {c["lastHeartbeatTime"] for c in patch["status"]["conditions"]} == {rfc3339(later)}
    assert {c["lastTransitionTime"] for c in patch["status"]["conditions"]} == {rfc3339(NOW)}
    assert render.is_heartbeat(written(wanted()).status, patch)


def reports(name: str, *, until: timedelta) -> list[float]:
    """The seconds from the registration to each report of a node that does not change."""
    want, now = wanted(NodeDescription(name, {"cpu": "4"})), NOW
    live, found = written(want), list[float]()
    while (now := now + timedelta(seconds=max(1.0, render.next_report(live.status, want, now=now)))) < NOW + until:
        assert render.status_patch(live, want, now=now) is not None
        live = written(want, now=now)
        found.append((now - NOW).total_seconds())
    return found


def test_reports_of_nodes_that_were_registered_together_are_spread_over_the_interval() -> None:
    every = render.REPORT_EVERY.total_seconds()
    found = [reports(f"node-{number}", until=timedelta(seconds=10 * every)) for number in range(50)]
    assert all(0.5 * every <= each[0] <= 1.5 * every for each in found), "as a kubelet after a change"
    assert {after - before for each in found for before, after in zip(each, each[1:], strict=False)} == {every}
    minutes = Counter(int(at // 60) for each in found for at in each if 10 * 60 <= at < 50 * 60)
    assert len(minutes) == 40 and max(minutes.values()) <= 15, minutes


def test_a_report_that_is_late_does_not_move_the_next_one() -> None:
    want = wanted()
    first = NOW + timedelta(seconds=render.next_report(written(want).status, want, now=NOW))
    late = first + timedelta(seconds=100)
    left = render.next_report(written(want, now=late).status, want, now=late)
    assert late + timedelta(seconds=left) == first + render.REPORT_EVERY


def test_a_changed_condition_is_no_heartbeat() -> None:
    live = written(wanted())
    patch = render.status_patch(live, wanted(health=Health("Stopped", "the provider stopped")), now=NOW)
    assert patch is not None and set(patch["status"]) == {"conditions"} and not render.is_heartbeat(live.status, patch)


def test_heartbeat_of_a_clock_that_was_set_back_since_does_not_hold_up_the_report() -> None:
    live = written(wanted())
    assert render.status_patch(live, wanted(), now=NOW - timedelta(seconds=30)) is None
    patch = render.status_patch(live, wanted(), now=NOW - timedelta(hours=2))
    assert patch is not None
    assert {c["lastHeartbeatTime"] for c in patch["status"]["conditions"]} == {rfc3339(NOW - timedelta(hours=2))}


def test_transition_time_moves_only_with_the_status_of_its_condition() -> None:
    later = NOW + timedelta(seconds=30)
    patch = render.status_patch(written(wanted()), wanted(health=Health("PingFailed", "no answer")), now=later)
    assert patch is not None
    moved = {c["type"] for c in patch["status"]["conditions"] if c["lastTransitionTime"] == rfc3339(later)}
    assert moved == {"Ready"}


def test_a_message_that_a_condition_no_longer_has_is_cleared() -> None:
    held = wanted(NodeDescription("n1", {}, conditions=[{"type": "Ready", "status": "True", "reason": "Held", "message": "unreachable"}]))
    plain = wanted(NodeDescription("n1", {}, conditions=[{"type": "Ready", "status": "True"}]))
    patch = render.status_patch(written(held), plain, now=NOW)
    assert patch is not None
    ready = next(condition for condition in patch["status"]["conditions"] if condition["type"] == "Ready")
    assert (ready["reason"], ready["message"]) == ("", ""), "a strategic merge patch keeps what it does not name"
    new = render.status_patch(written(plain), held, now=NOW)
    assert new is not None and new["status"]["conditions"][0]["message"] == "unreachable"


def test_foreign_labels_conditions_and_annotations_are_not_mentioned() -> None:
    live = written(wanted())
    body = {"metadata": {**render.new_node(wanted())["metadata"], "uid": "u1"}, "status": live.status}
    body["metadata"]["labels"]["theirs"] = "1"
    body["metadata"]["annotations"]["theirs"] = "1"
    body["status"]["conditions"].append({"type": "Theirs", "status": "True"})
    assert render.status_patch(node(body), wanted(), now=NOW) is None


def test_dropped_keys_of_ours_are_nulled_and_dropped_conditions_deleted() -> None:
    before = NodeDescription(
        "n1", {"cpu": "4", "gpu": "1"}, labels={"gone": "1"}, conditions=[{"type": "Extra", "status": "True"}], features={"old": True}
    )
    after = NodeDescription("n1", {"cpu": "4"}, conditions=[{"type": "Ready", "status": "True"}])
    patch = render.status_patch(written(wanted(before)), wanted(after), now=NOW)
    assert patch is not None
    assert patch["metadata"]["labels"] == {"gone": None}
    assert patch["status"]["capacity"] == {"gpu": None} and patch["status"]["features"] == {"old": None}
    assert {"$patch": "delete", "type": "Extra"} in patch["status"]["conditions"]


def test_addresses_are_replaced_as_a_list_so_that_two_of_one_type_stay_two() -> None:
    two = [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "InternalIP", "address": "fd00::1"}]
    patch = render.status_patch(written(wanted()), wanted(NodeDescription("n1", DESCRIPTION.capacity, addresses=two)), now=NOW)
    assert patch is not None
    assert patch["status"]["addresses"] == [*two, {"$patch": "replace"}]


def test_patch_names_the_uid_so_that_it_never_meets_a_successor() -> None:
    patch = render.status_patch(written(wanted()), wanted(health=Health("X", "y")), now=NOW)
    assert patch is not None
    assert patch["metadata"]["uid"] == "u1"


def test_decrease_is_told_from_increase() -> None:
    live = {"allocatable": {"cpu": "4", "pods": "10"}}
    assert render.decreases(live, wanted(NodeDescription("n1", {"cpu": "3500m", "pods": "10"})))
    assert render.decreases(live, wanted(NodeDescription("n1", {"cpu": "4"})))
    assert not render.decreases(live, wanted(NodeDescription("n1", {"cpu": "5", "pods": "10"})))


def test_a_taint_that_is_about_to_be_dropped_is_noted_as_ours_until_it_is() -> None:
    made = wanted()
    assert names.owned_keys(written(made)).taints == ("t",)
    assert names.owned_keys(written(render.still_owning(made, {"closed"}))).taints == ("closed", "t")
    assert render.still_owning(made, set()) is made


DONGLE = "example.com/dongle"


def foreign(allocatable: str | None = None, *, note: str | None = None) -> Node:
    """Our Node after another client has advertised a resource in its capacity."""
    want = wanted()
    live = written(want)
    status = {**live.status, "capacity": {**want.status["capacity"], DONGLE: "4"}}
    if allocatable is not None:
        status["allocatable"] = {**want.status["allocatable"], DONGLE: allocatable}
    annotations = {**live.metadata.annotations, **({} if note is None else {names.OWNED: note})}
    labels = dict(live.metadata.labels)
    return node({"metadata": {"name": "n1", "uid": "u1", "labels": labels, "annotations": annotations}, "status": status})


def test_extended_resource_of_another_client_stays_and_becomes_allocatable() -> None:
    patch = render.status_patch(foreign(), wanted(), now=NOW)
    assert patch is not None
    assert "capacity" not in patch["status"]
    assert patch["status"]["allocatable"] == {DONGLE: "4"}
    assert render.status_patch(foreign("4"), wanted(), now=NOW) is None
    assert not render.decreases(foreign("4").status, render.with_foreign_resources(foreign("4"), wanted()))


def test_extended_resource_that_another_client_took_back_is_allocatable_no_more() -> None:
    live = written(wanted(), allocatable={**wanted().status["allocatable"], DONGLE: "4"})
    patch = render.status_patch(live, wanted(), now=NOW)
    assert patch is not None
    assert patch["status"]["allocatable"] == {DONGLE: None}


def test_extended_resource_that_we_drop_is_removed_also_by_a_later_process() -> None:
    before = wanted(NodeDescription("n1", {**DESCRIPTION.capacity, DONGLE: "4"}))
    patch = render.status_patch(written(before), wanted(), now=NOW)
    assert patch is not None
    assert patch["status"]["capacity"] == patch["status"]["allocatable"] == {DONGLE: None}


@pytest.mark.parametrize(("note", "stays"), [('{"labels": []}', False), ("{", True), ("{}", False)])
def test_notes_of_earlier_versions_own_all_resources(note: str, stays: bool) -> None:
    patch = render.status_patch(foreign(note=note), wanted(), now=NOW)
    assert patch is not None
    assert ("capacity" not in patch["status"]) is stays


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        ('{"instance":"a","labels":["x"],"taints":["old"]}', {"instance": "a", "labels": ["x"], "taints": ["new", "old"]}),
        (None, {"resources": [], "taints": ["new"]}),
        ("damaged", {"resources": [], "taints": ["new"]}),
        ("[]", {"resources": [], "taints": ["new"]}),
    ],
)
def test_an_added_taint_is_recorded_beside_what_was_ours(noted: str | None, expected: Json) -> None:
    annotations = {} if noted is None else {names.OWNED: noted}
    live = Node(ObjectMeta(name="n", annotations=annotations), b"{}", b"{}")
    assert json.loads(render.owning(live, [Taint("new", "NoSchedule")])) == expected
