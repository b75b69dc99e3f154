"""Heads, bodies, resource types, merge patches and conditions of API objects."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.names import is_label_value
from vkubelet.api.objects import (
    LEASES,
    NODES,
    PODS,
    Key,
    Lease,
    Node,
    Pod,
    PodRef,
    Unknown,
    apply_merge,
    diff_merge,
    get_condition,
    set_condition,
)

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,8}[a-z0-9])?", fullmatch=True)

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web",
        "namespace": "default",
        "uid": "u-1",
        "resourceVersion": "7",
        "generation": 2,
        "labels": {"app": "web"},
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}],
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u-0", "controller": True}],
    },
    "spec": {"nodeName": "node-1", "containers": [{"name": "c", "somethingNew": {"x": [1, 2.5, None]}}]},
    "status": {"phase": "Running", "futureField": True},
}


def pod(**changes: Any) -> Pod:
    return decode_object(Pod, encode_json({**POD, **changes}))


def test_pod_head_tells_node_phase_and_reference() -> None:
    one = pod()
    assert (one.node, one.phase, one.key, one.terminal, one.terminating) == ("node-1", "Running", Key("default", "web"), False, False)
    assert one.ref == PodRef("default", "web", "u-1", "node-1")
    owner = one.metadata.owner_references[0]
    assert (owner.kind, owner.controller, one.metadata.generation) == ("ReplicaSet", True, 2)


def test_unknown_fields_of_a_body_survive() -> None:
    one = pod()
    assert one.spec == POD["spec"]
    assert one.status == POD["status"]


def test_readers_own_what_they_read() -> None:
    one = pod()
    one.spec["containers"].clear()
    assert one.spec == POD["spec"]


@pytest.mark.parametrize(("phase", "terminal"), [("Pending", False), ("Succeeded", True), ("Failed", True), ("Unknown", False)])
def test_terminal_phases(phase: str, terminal: bool) -> None:
    assert pod(status={"phase": phase}).terminal is terminal


def test_pod_with_a_deletion_timestamp_is_terminating() -> None:
    one = pod(metadata={"name": "web", "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0})
    assert one.terminating
    assert one.metadata.deletion_grace_period_seconds == 0


def test_bare_objects_have_empty_heads() -> None:
    one = decode_object(Pod, b'{"metadata":{"creationTimestamp":null}}')
    assert (one.node, one.phase, one.spec, one.status, one.metadata.creation_timestamp) == ("", "", {}, {}, "")
    assert one.metadata.labels == {}


def test_heads_are_values() -> None:
    assert pod() == pod()
    with pytest.raises(AttributeError):
        pod().node = "other"  # type: ignore[misc]


def test_managed_fields_are_dropped_and_the_rest_is_kept() -> None:
    one = decode_object(Unknown, encode_json(POD))
    assert b"managedFields" not in one.raw
    expected = {**POD, "metadata": {key: value for key, value in POD["metadata"].items() if key != "managedFields"}}
    assert one.body == expected
    assert b"managedFields" not in pod().spec_json + pod().status_json


def test_the_word_managed_fields_elsewhere_is_not_touched() -> None:
    body = {"metadata": {"name": "x"}, "data": {"managedFields": "mine"}}
    assert decode_object(Unknown, encode_json(body)).body == body


def test_nodes_and_leases_have_their_bodies() -> None:
    node = decode_object(Node, b'{"metadata":{"name":"n"},"spec":{"taints":[]},"status":{"phase":"x"}}')
    assert (node.key, node.spec, node.status) == (Key("", "n"), {"taints": []}, {"phase": "x"})
    lease = decode_object(Lease, b'{"metadata":{"name":"l","namespace":"s"},"spec":{"holderIdentity":"me"}}')
    assert (lease.key, lease.spec["holderIdentity"]) == (Key("s", "l"), "me")


def test_keys_are_written_with_a_slash_when_there_is_a_namespace() -> None:
    assert str(Key("default", "web")) == "default/web"
    assert str(Key("", "node-1")) == "node-1"


@given(NAMES, NAMES, NAMES, NAMES)
def test_pod_references_survive_as_text_that_fits_a_label(namespace: str, name: str, uid: str, node: str) -> None:
    ref = PodRef(namespace, name, uid, node)
    assert PodRef.parse(str(ref)) == ref
    assert is_label_value(str(ref)) or len(str(ref)) > 63


@pytest.mark.parametrize("text", ["", "a_b_c", "a_b_c_d_e", "_b_c_d", "default/web"])
def test_what_is_no_pod_reference_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="pod reference"):
        PodRef.parse(text)


KEYS = st.sampled_from("abc")
SCALARS = st.integers(0, 2) | st.booleans() | st.sampled_from(["", "x"])
VALUES = st.recursive(SCALARS | st.lists(SCALARS, max_size=2), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=8)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=3)


def merged(target: Any, patch: Any) -> Any:
    """MergePatch of RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


@given(OBJECTS, OBJECTS)
def test_patch_leads_from_old_to_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merged(old, diff_merge(old, new)) == new


@given(OBJECTS, st.dictionaries(KEYS, VALUES | st.none() | st.dictionaries(KEYS, st.none() | SCALARS, max_size=2), max_size=3))
def test_any_patch_is_applied_as_the_rfc_says_and_nothing_given_is_changed(old: dict[str, Any], patch: dict[str, Any]) -> None:
    before = json.dumps([old, patch])
    assert apply_merge(old, patch) == merged(old, patch)
    assert json.dumps([old, patch]) == before


@given(OBJECTS)
def test_nothing_to_do_is_an_empty_patch(same: dict[str, Any]) -> None:
    assert diff_merge(same, same) == {}


def test_only_the_difference_is_named() -> None:
    old = {"metadata": {"labels": {"a": "1", "b": "2"}, "name": "x"}, "spec": {"list": [1, 2], "same": [1]}}
    new = {"metadata": {"labels": {"a": "1", "c": "3"}, "name": "x"}, "spec": {"list": [2], "same": [1]}}
    assert diff_merge(old, new) == {"metadata": {"labels": {"b": None, "c": "3"}}, "spec": {"list": [2]}}


def test_true_is_not_one() -> None:
    assert diff_merge({"a": 1}, {"a": True}) == {"a": True}


NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
OLD = "2026-01-01T00:00:00Z"
READY = {"type": "Ready", "status": "True", "lastTransitionTime": OLD, "reason": "A"}


def test_transition_time_stays_while_the_status_does() -> None:
    changed = set_condition([READY], {"type": "Ready", "status": "True", "reason": "B"}, now=NOW)
    assert changed == [{"type": "Ready", "status": "True", "reason": "B", "lastTransitionTime": OLD}]


def test_transition_time_moves_with_the_status() -> None:
    [changed] = set_condition([READY], {"type": "Ready", "status": "False"}, now=NOW)
    assert changed["lastTransitionTime"] == "2026-01-31T12:00:00Z"
    assert "reason" not in changed


def test_time_brought_along_counts_only_when_the_status_flips() -> None:
    given = "2026-01-15T00:00:00Z"
    assert set_condition([READY], {**READY, "lastTransitionTime": given}, now=NOW)[0]["lastTransitionTime"] == OLD
    assert set_condition([READY], {**READY, "status": "False", "lastTransitionTime": given}, now=NOW)[0]["lastTransitionTime"] == given


def test_others_keep_their_place_and_new_ones_come_last() -> None:
    other = {"type": "Other", "status": "True"}
    changed = set_condition([READY, other], {"type": "New", "status": "True"}, now=NOW)
    assert [condition["type"] for condition in changed] == ["Ready", "Other", "New"]
    assert changed[:2] == [READY, other]


def test_nothing_given_is_changed() -> None:
    conditions = [dict(READY)]
    set_condition(conditions, {"type": "Ready", "status": "False"}, now=NOW)[0]["reason"] = "X"
    assert conditions == [READY]


def test_condition_is_found_by_type() -> None:
    assert get_condition([READY], "Ready") == READY
    assert get_condition([READY], "Other") is None


def test_paths_of_collections_objects_and_subresources() -> None:
    assert PODS.path("") == "/api/v1/pods"
    assert PODS.path("default") == "/api/v1/namespaces/default/pods"
    assert PODS.path("default", "web", "status") == "/api/v1/namespaces/default/pods/web/status"
    assert LEASES.path("kube-node-lease", "n") == "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n"
    assert NODES.path("", "n") == NODES.path("ignored", "n") == "/api/v1/nodes/n"


def test_names_can_not_lead_elsewhere() -> None:
    assert PODS.path("a/../b", "../secrets?x#y") == "/api/v1/namespaces/a%2F..%2Fb/pods/..%2Fsecrets%3Fx%23y"


@pytest.mark.parametrize(("namespace", "name", "subresource"), [("", "web", ""), ("default", "", "status")])
def test_incomplete_paths_are_refused(namespace: str, name: str, subresource: str) -> None:
    with pytest.raises(ValueError, match="missing"):
        PODS.path(namespace, name, subresource)


def test_api_version() -> None:
    assert (PODS.api_version, LEASES.api_version, str(PODS), str(LEASES)) == (
        "v1",
        "coordination.k8s.io/v1",
        "pods",
        "leases.coordination.k8s.io",
    )
