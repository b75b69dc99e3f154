"""Merge patches and strategic merge patches of the model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.model.kinds import built_in
from tests.faults.model.patches import merge, strategic
from tests.faults.model.refusals import Refusal
from tests.faults.model.shapes import struct

built_in()
POD, NODE = struct("core.Pod"), struct("core.Node")
Body = dict[str, Any]


def conditions(original: list[str], patch: list[Body], *, order: list[str] | None = None) -> list[str]:
    """Patches conditions of these types; returns the types afterwards."""
    change: Body = {"conditions": patch}
    if order is not None:
        change["$setElementOrder/conditions"] = [{"type": each} for each in order]
    before: Body = {"status": {"conditions": [{"type": each, "status": "False"} for each in original]}}
    return [each["type"] for each in strategic(before, {"status": change}, POD)["status"]["conditions"]]


def test_merge_removes_nulls_and_replaces_lists() -> None:
    before = {"a": {"b": 1, "c": [1, 2]}, "d": 1}
    assert merge(before, {"a": {"b": None, "c": [3]}, "e": {"f": None}}) == {"a": {"c": [3]}, "d": 1, "e": {}}
    assert before == {"a": {"b": 1, "c": [1, 2]}, "d": 1}


def test_parts_that_a_patch_leaves_alone_are_shared() -> None:
    before: Body = {"spec": {"containers": []}, "status": {"phase": "Pending"}}
    for after in (merge(before, {"status": {"phase": "Running"}}), strategic(before, {"status": {"phase": "Running"}}, POD)):
        assert after["spec"] is before["spec"]
        assert before["status"] == {"phase": "Pending"}


def test_conditions_merge_by_type_and_those_of_the_patch_come_first() -> None:
    assert conditions(["A", "B"], [{"type": "B", "status": "True"}]) == ["A", "B"]
    assert conditions(["A"], [{"type": "N", "status": "True"}]) == ["N", "A"]
    assert conditions(["A", "B"], [{"$patch": "delete", "type": "A"}]) == ["B"]


def test_set_element_order_orders_merged_conditions() -> None:
    assert conditions(["A"], [{"type": "N", "status": "True"}], order=["A", "N"]) == ["A", "N"]
    assert conditions(["A", "B"], [{"type": "N", "status": "True"}], order=["B", "N", "A"]) == ["B", "N", "A"]


def test_a_deletion_moves_new_conditions_behind_those_on_the_server() -> None:
    """As the server's merge does, which orders by a list that it has changed meanwhile."""
    patch: list[Body] = [{"type": "N", "status": "True"}, {"$patch": "delete", "type": "A"}]
    assert conditions(["A", "B"], patch, order=["N"]) == ["B", "N"]
    assert conditions(["A", "B"], patch) == ["N", "B"]


def test_replace_directive_replaces_a_list_with_a_merge_key() -> None:
    before: Body = {"status": {"addresses": [{"type": "InternalIP", "address": "1"}, {"type": "Hostname", "address": "h"}]}}
    two = [{"type": "InternalIP", "address": "1"}, {"type": "InternalIP", "address": "2"}]
    assert strategic(before, {"status": {"addresses": [*two, {"$patch": "replace"}]}}, NODE)["status"]["addresses"] == two
    empty = strategic(before, {"status": {"addresses": [{"$patch": "replace"}]}}, NODE)
    assert empty["status"]["addresses"] == []


def test_lists_without_merge_key_are_replaced() -> None:
    before: Body = {"status": {"containerStatuses": [{"name": "a"}, {"name": "b"}]}, "spec": {"taints": [{"key": "a"}]}}
    assert strategic(before, {"status": {"containerStatuses": [{"name": "c"}]}}, POD)["status"]["containerStatuses"] == [{"name": "c"}]
    assert strategic(before, {"spec": {"taints": []}}, NODE)["spec"]["taints"] == []


def test_finalizers_merge_as_a_set() -> None:
    before: Body = {"metadata": {"finalizers": ["a", "b"]}}
    assert strategic(before, {"metadata": {"finalizers": ["c", "b"]}}, POD)["metadata"]["finalizers"] == ["c", "a", "b"]
    deleted = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}
    assert strategic(before, deleted, POD)["metadata"]["finalizers"] == ["b"]


def test_nulls_and_directives_of_new_values_are_dropped() -> None:
    patch: Body = {"status": {"conditions": [{"type": "A", "reason": None}, {"$patch": "delete", "type": "B"}]}}
    assert strategic({"status": {}}, patch, POD) == {"status": {"conditions": [{"type": "A"}]}}


def test_an_item_without_its_merge_key_is_refused() -> None:
    with pytest.raises(Refusal, match="merge key"):
        strategic({"status": {"conditions": [{"type": "A"}]}}, {"status": {"conditions": [{"status": "True"}]}}, POD)
