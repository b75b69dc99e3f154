"""The hands that tests have in clusters: what they take over from kubectl, and what they leave to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.objects import Question, is_applied

APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@pytest.mark.parametrize(
    ("args", "asked"),
    [
        (("nodes",), Question("nodes")),
        (("node", "a"), Question("node", "a")),
        (("pod/web", "-n", "shop"), Question("pod", "web", "shop")),
        (("pods", "-A", "-l", "app=web"), Question("pods", namespace="", labels="app=web")),
        (
            ("pods", "--namespace=shop", "--field-selector", "status.phase=Running"),
            Question("pods", namespace="shop", fields="status.phase=Running"),
        ),
    ],
)
def test_questions_are_those_of_kubectl_get(args: tuple[str, ...], asked: Question) -> None:
    assert Question.of(args) == asked


@pytest.mark.parametrize("args", [("pods,secrets",), ("pod", "a", "b"), ("-f", "file"), ("pods", "--watch"), ("pods", "-n"), ()])
def test_what_is_not_understood_is_for_kubectl(args: tuple[str, ...]) -> None:
    assert Question.of(args) is None


def there(spec: dict[str, Any], before: dict[str, Any] | None = None) -> dict[str, Any]:
    applied = {} if before is None else {"annotations": {APPLIED: json.dumps({"spec": before})}}
    return {"metadata": {"name": "a", "uid": "1", **applied}, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "found", "applied"),
    [
        ({"a": 1}, there({"a": 1, "defaulted": True}), True),
        ({"a": 1}, there({"a": 1}, before={"a": 1}), True),
        ({"a": 1, "empty": {}, "none": []}, there({"a": 1}), True),
        ({"a": 1}, there({"a": 2}), False),
        ({"a": False}, there({"a": True}), False),
        ({"a": [1]}, there({"a": [1, 2]}), False),
        ({"a": [{"b": 1}]}, there({"a": [{"b": 1, "c": 2}]}), True),
        # What was applied before and is not wanted any more has to be taken away.
        ({"a": 1}, there({"a": 1, "old": 2}, before={"a": 1, "old": 2}), False),
    ],
)
def test_applied_is_what_would_change_nothing(spec: dict[str, Any], found: dict[str, Any], applied: bool) -> None:
    assert is_applied({"metadata": {"name": "a"}, "spec": spec}, found) is applied
