"""Heads hold what is asked often; bodies belong to their reader."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.names import is_label_value
from vkubelet.api.objects import Key, Lease, Node, Pod, PodRef, Unknown

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
