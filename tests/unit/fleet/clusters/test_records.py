"""Tests of fleet.clusters.records: conditions."""

from datetime import UTC, datetime

from fleet.clusters.records import condition, has_condition, updated_conditions
from tests.unit.fleet.builders import SINCE, unknown
from tests.unit.fleet.builders import condition as written

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def test_a_condition_that_is_the_same_needs_no_write() -> None:
    old = [written("A", "True", "Some", observedGeneration=2), written("B", "False")]
    assert updated_conditions(old, [condition("A", "True", "Some", message="")], generation=2, now=NOW) is None


def test_the_time_of_a_condition_moves_with_its_status_alone() -> None:
    old = [written("A", "True", "Some"), written("B", "False")]
    same = updated_conditions(old, [condition("A", "True", "Other", message="text")], generation=2, now=NOW)
    assert same is not None and same[0]["lastTransitionTime"] == SINCE and same[0]["observedGeneration"] == 2
    moved = updated_conditions(old, [condition("A", "False", "Some", message="")], generation=2, now=NOW)
    assert moved is not None and moved[0]["lastTransitionTime"] == "2026-01-02T00:00:00Z" and moved[1] == old[1]


def test_a_condition_is_found_by_status_and_reason() -> None:
    obj = unknown({"metadata": {"name": "a"}, "status": {"conditions": [written("A", "True", "Some")]}})
    assert has_condition(obj, "A", status="True", reason="Some")
    assert not has_condition(obj, "A", status="True", reason="Other") and not has_condition(obj, "B", status="True", reason="Some")
