"""Tests of vkubelet.api.fields."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkubelet.api.fields import Fields, Problem
from vkubelet.api.quantity import Quantity

READS = ("text", "flag", "number", "quantity", "texts", "items", "selector", "strings", "amounts", "time", "entries")

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["key", "nodeSelectorTerms"]), inner, max_size=2),
)


def read(name: str, value: object) -> tuple[object, list[str]]:
    """The result of one read of the field `spec.x`, and the problems."""
    problems: list[Problem] = []
    found = getattr(Fields({"x": value}, "spec", problems), name)("x")
    return found, [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("text", "a", "a"),
        ("flag", True, True),
        ("number", 3, 3),
        ("quantity", "500m", Quantity.parse("0.5")),
        ("texts", ["a", "b"], ("a", "b")),
        ("selector", {"nodeSelectorTerms": []}, {"nodeSelectorTerms": []}),
        ("strings", {"a": "b", "c": ""}, {"a": "b", "c": ""}),
        ("amounts", {"cpu": "2", "pods": 110}, {"cpu": Quantity.parse("2"), "pods": Quantity.parse("110")}),
        ("time", "2026-01-01T00:00:00.123456789Z", datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)),
    ],
)
def test_values_of_the_right_type_are_read_without_a_problem(name: str, value: object, expected: object) -> None:
    assert read(name, value) == (expected, [])


@pytest.mark.parametrize(
    ("name", "value", "absent", "sentence"),
    [
        ("text", 3, "", "spec.x: must be a string"),
        ("flag", "yes", False, "spec.x: must be true or false"),
        ("number", True, 0, "spec.x: must be a whole number"),
        ("number", "3", 0, "spec.x: must be a whole number"),
        ("quantity", "much", None, "spec.x: is not a quantity; write an amount such as 4, 500m or 8Gi"),
        ("texts", ["a", 1], (), "spec.x: must be a list of strings"),
        ("items", {}, [], "spec.x: must be a list"),
        ("strings", {"a": 1}, {}, "spec.x.a: must be a string"),
        ("amounts", {"cpu": "much"}, {}, "spec.x.cpu: is not a quantity; write an amount such as 4, 500m or 8Gi"),
        ("time", "2026-01-01", None, "spec.x: must be an RFC 3339 time such as 2026-01-01T00:00:00Z"),
        ("time", "yesterday", None, "spec.x: must be an RFC 3339 time such as 2026-01-01T00:00:00Z"),
        ("entries", [], [], "spec.x: must be an object"),
    ],
)
def test_a_wrong_type_reads_as_absent_and_names_the_field(name: str, value: object, absent: object, sentence: str) -> None:
    assert read(name, value) == (absent, [sentence])


@given(st.sampled_from(READS), anything)
def test_no_value_makes_a_read_fail(name: str, value: object) -> None:
    read(name, value)


def test_a_broken_selector_matches_nothing_rather_than_everything() -> None:
    found, problems = read("selector", {"nodeSelectorTerms": [{"matchExpressions": [{"key": 1}]}]})
    assert found == {"nodeSelectorTerms": [{}]}
    assert problems == ["spec.x.nodeSelectorTerms[0].matchExpressions[0].key: must be a string"]


def test_paths_lead_to_the_field_of_a_nested_object() -> None:
    problems: list[Problem] = []
    fields = Fields({"taints": [{"key": "a"}, 7], "inner": {"name": 3}}, "spec", problems)
    assert [each.text("key") for each in fields.items("taints")] == ["a", ""]
    assert fields.inner("inner").text("name") == "" and fields.inner("missing").text("name") == ""
    assert [problem.field for problem in problems] == ["spec.taints[1]", "spec.inner.name"]
