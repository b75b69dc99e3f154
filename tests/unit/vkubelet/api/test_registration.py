"""What a Node records of the instance that registered it."""

from __future__ import annotations

import json

import pytest

from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.objects import Node
from vkubelet.api.registration import INSTANCE, OWNED, Owned, instance_of, owned_keys


def node(note: str | None = None, **labels: str) -> Node:
    annotations = {} if note is None else {OWNED: note}
    return decode_object(Node, encode_json({"metadata": {"name": "n1", "labels": labels, "annotations": annotations}}))


@pytest.mark.parametrize("damage", ["{", "[]", '{"labels": 3}', '"x"', '{"labels": ["a"], "taints": [5]}'])
def test_damaged_annotation_owns_nothing(damage: str) -> None:
    assert owned_keys(node(damage)) == owned_keys(node()) == Owned()


def test_recorded_keys_are_ours_and_without_resources_all_of_those_are() -> None:
    assert owned_keys(node('{"labels": ["a"], "resources": ["cpu"]}')) == Owned(labels=("a",), resources=("cpu",))
    assert owned_keys(node('{"taints": ["t"]}')) == Owned(taints=("t",), resources=None)


def test_instance_is_that_of_the_label_or_else_of_the_annotation() -> None:
    note = json.dumps({"instance": "noted"})
    assert instance_of(node(note, **{INSTANCE: "labelled"})) == "labelled"
    assert instance_of(node(note)) == "noted"
    assert instance_of(node("{")) == instance_of(node('{"instance": 5}')) == ""
