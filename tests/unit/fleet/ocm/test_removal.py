"""Tests of fleet.ocm.removal: order and texts."""

from datetime import timedelta
from typing import Any

import pytest

from fleet.ocm.removal import force_after, next_to_delete, priority, remaining_text
from tests.unit.fleet.builders import SINCE, managed, unknown
from vkubelet.api.objects import Unknown

PRIORITY = "open-cluster-management.io/cleanup-priority"


def work(name: str, level: str = "", **metadata: Any) -> Unknown:
    annotations = {PRIORITY: level} if level else {}
    return unknown({"metadata": {"name": name, "namespace": "w1", "annotations": annotations, "creationTimestamp": SINCE, **metadata}})


@pytest.mark.parametrize(("text", "expected"), [("", 0), ("50", 50), ("1000", 100), ("-1", 0), ("many", 0), ("²", 0)])
def test_f_156_a_priority_is_from_0_to_100(text: str, expected: int) -> None:
    assert priority(work("a", text)) == expected


def test_f_156_the_lowest_priority_is_deleted_first_and_waited_for() -> None:
    works = [work("a", "20"), work("b", "10"), work("c", "10"), work("d", "30")]
    assert [each.metadata.name for each in next_to_delete(works)] == ["b", "c"]
    leaving = [work("a", "20"), work("b", "10", deletionTimestamp=SINCE, finalizers=["f"])]
    assert next_to_delete(leaving) == [] and next_to_delete([]) == []


def test_f_156_the_report_counts_what_is_left_and_names_the_oldest() -> None:
    works = [work(f"w{at}", creationTimestamp=f"2026-01-0{9 - at}T00:00:00Z") for at in range(5)]
    expected = "1 ManagedClusterAddOns and 5 ManifestWorks are left, the oldest: addon, w4, w3"
    assert remaining_text([work("addon")], works) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("60", timedelta(seconds=60)), ("0", timedelta()), ("", None), ("-5", None), ("soon", None)]
)
def test_f_156_force_is_an_annotation_with_seconds(text: str, expected: timedelta | None) -> None:
    assert force_after(managed(annotations={"fleet.vkubelet.io/force-cleanup-after": text})) == expected
