"""Nodes of Kubeocean (Go) become ours."""

from __future__ import annotations

import base64
import json

from kubeocean.binding.virtual_nodes import description_of
from kubeocean.model import keys
from kubeocean.nodes.legacy_nodes import inherited
from tests.unit.kubeocean.builders import node
from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.objects import Json, Node

EXPECTED = {
    "labels": {"zone": "z", "type": "virtual-kubelet"},
    "annotations": {"kubeocean.io/last-sync-time": "2026-01-01T00:00:00Z"},
    "taints": [{"key": "kubeocean.io/vnode", "effect": "NoSchedule"}, {"key": "from-the-node", "effect": "NoSchedule"}],
}
CLOSED = {"key": keys.TAINT_CLOSED, "value": "true", "effect": "NoSchedule"}
USERS = {"key": "users", "effect": "NoSchedule"}


def left_behind(**annotations: str) -> Node:
    text = base64.b64encode(json.dumps(EXPECTED).encode()).decode()
    return node(
        {"taints": [*EXPECTED["taints"], CLOSED, USERS]},
        status={"conditions": [{"type": "Ready", "status": "True"}, {"type": "Theirs", "status": "True"}]},
        labels={"zone": "z", "type": "virtual-kubelet", "users": "u"},
        annotations={"kubeocean.io/expected-metadata": text, **annotations},
        finalizers=["theirs", "kubeocean.io/vnode"],
        resourceVersion="7",
    )


def after(before: Node, change: Json) -> Node:
    """As the API server would keep it."""
    meta = before.metadata
    body = {
        "metadata": {
            "name": meta.name,
            "labels": dict(meta.labels),
            "annotations": {**meta.annotations, **change["metadata"]["annotations"]},
        },
        "spec": before.spec,
        "status": before.status,
    }
    return decode_object(Node, encode_json(body))


def test_only_its_finalizer_goes_and_on_the_version_that_was_read() -> None:
    change = inherited(left_behind())
    assert change is not None and "spec" not in change
    assert change["metadata"]["finalizers"] == ["theirs"] and change["metadata"]["resourceVersion"] == "7"


def test_what_it_set_is_known_as_ours_and_what_others_set_is_not() -> None:
    before = left_behind()
    change = inherited(before)
    assert change is not None
    found = description_of(after(before, change))
    assert found.labels == {"zone": "z", "type": "virtual-kubelet"}
    assert [taint.key for taint in found.taints] == ["kubeocean.io/vnode", "from-the-node", keys.TAINT_CLOSED]
    assert [condition["type"] for condition in found.conditions] == ["Ready"]


def test_a_deletion_that_was_given_up_is_taken_back() -> None:
    change = inherited(left_behind(**{keys.DELETION_TAINT_TIME: "2026-01-01T00:00:00Z"}))
    assert change is not None
    assert change["spec"] == {"unschedulable": None} and change["metadata"]["annotations"][keys.DELETION_TAINT_TIME] is None


def test_damaged_notes_lose_nothing_but_themselves() -> None:
    change = inherited(left_behind(**{keys.EXPECTED_METADATA: "%%%"}))
    assert change is not None and "annotations" not in change["metadata"]


def test_a_node_of_ours_is_not_inherited() -> None:
    assert inherited(node(finalizers=["theirs"])) is None
