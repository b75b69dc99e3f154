"""Selectors match what Kubernetes matches, and nothing when they are invalid."""

from __future__ import annotations

from typing import Any

import pytest

from vkubelet.api.selectors import match_node_selector

LABELS = {"app": "web", "zone": "a", "size": "5", "gpu": ""}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)} if values else {"key": key, "operator": operator}


def term(*expressions: dict[str, Any], fields: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"nodeSelectorTerms": [{"matchExpressions": list(expressions), "matchFields": list(fields)}]}


@pytest.mark.parametrize("selector", [None, {}, {"nodeSelectorTerms": []}, {"nodeSelectorTerms": None}])
def test_no_terms_match_every_node(selector: dict[str, Any] | None) -> None:
    assert match_node_selector(selector, {}, "n")


def test_empty_term_matches_nothing_but_spoils_nothing() -> None:
    assert not match_node_selector({"nodeSelectorTerms": [{}]}, LABELS, "n")
    assert match_node_selector({"nodeSelectorTerms": [{}, {"matchExpressions": [expression("app", "Exists")]}]}, LABELS, "n")


@pytest.mark.parametrize(
    ("one", "matches"),
    [
        (expression("app", "In", "web", "db"), True),
        (expression("app", "In", "db"), False),
        (expression("app", "NotIn", "db"), True),
        (expression("missing", "NotIn", "db"), True),
        (expression("gpu", "Exists"), True),
        (expression("gpu", "DoesNotExist"), False),
        (expression("size", "Gt", "4"), True),
        (expression("size", "Lt", "5"), False),
        (expression("zone", "Gt", "4"), False),
        (expression("missing", "Lt", "4"), False),
    ],
)
def test_operators(one: dict[str, Any], matches: bool) -> None:
    assert match_node_selector(term(one), LABELS, "n") is matches


@pytest.mark.parametrize(
    "invalid",
    [
        expression("app", "NotIn"),
        expression("app", "In"),
        expression("missing", "DoesNotExist", "x"),
        expression("app", "Exists", "x"),
        expression("size", "Gt", "x"),
        expression("size", "Gt", "1", "2"),
        expression("missing", "Is", "x"),
        expression("missing", "notin", "x"),
        expression("not a key", "DoesNotExist"),
        expression("missing", "NotIn", "not a value"),
        {},
    ],
)
def test_invalid_requirement_makes_its_term_false(invalid: dict[str, Any]) -> None:
    assert not match_node_selector(term(expression("app", "Exists"), invalid), LABELS, "n")


@pytest.mark.parametrize(
    ("field", "matches"),
    [
        (expression("metadata.name", "In", "n"), True),
        (expression("metadata.name", "In", "m"), False),
        (expression("metadata.name", "In", "n", "m"), False),
        (expression("metadata.name", "NotIn", "m"), False),
        (expression("spec.unschedulable", "In", "n"), False),
    ],
)
def test_fields_know_the_name_only(field: dict[str, Any], matches: bool) -> None:
    assert match_node_selector(term(fields=(field,)), LABELS, "n") is matches


def test_expressions_and_fields_of_a_term_are_both_asked() -> None:
    selector = term(expression("app", "In", "web"), fields=(expression("metadata.name", "In", "n"),))
    assert match_node_selector(selector, LABELS, "n")
    assert not match_node_selector(selector, LABELS, "m")
    assert not match_node_selector(selector, {}, "n")
