"""Conditions keep their times."""

from __future__ import annotations

from datetime import UTC, datetime

from vkubelet.api.conditions import get_condition, set_condition

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
