"""What fits, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from vkubelet.containers.resize import judge

NODE = {"cpu": "4", "memory": "8Gi"}


def spec(cpu: str = "1", memory: str = "1Gi", **more: Any) -> dict[str, Any]:
    return {"containers": [{"name": "a", "resources": {"requests": {"cpu": cpu, "memory": memory}}}], **more}


@pytest.mark.parametrize(
    ("wish", "others", "reason", "message"),
    [
        (spec("4", "8Gi"), [], "", ""),
        (spec("3"), [spec("1")], "", ""),
        (spec("5"), [], "Infeasible", "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000"),
        (spec("5", "9Gi"), [], "Infeasible", "Node didn't have enough capacity: memory, requested: 9663676416, capacity: 8589934592"),
        (spec("3"), [spec("2")], "Deferred", "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000"),
        (
            spec("1", "5Gi"),
            [spec("1", "2Gi"), spec("1", "2Gi")],
            "Deferred",
            "Node didn't have enough resource: memory, requested: 5368709120, used: 4294967296, capacity: 8589934592",
        ),
        (spec("3", overhead={"cpu": "2"}), [], "Infeasible", "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000"),
    ],
)
def test_judgement(wish: dict[str, Any], others: list[dict[str, Any]], reason: str, message: str) -> None:
    assert judge(wish, allocatable=NODE, others=others) == (reason, message)


def test_node_that_does_not_count_a_resource_has_enough_of_it() -> None:
    assert judge(spec("100"), allocatable={"memory": "8Gi"}, others=[]) == ("", "")
