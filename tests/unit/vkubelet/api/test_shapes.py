"""Merge patches and lists of conditions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from vkubelet.api.shapes import apply_merge, diff_merge, get_condition, set_condition

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
