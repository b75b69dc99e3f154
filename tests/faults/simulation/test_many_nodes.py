"""The arithmetic of docs/explanation/scale.md holds for the runtime, and the page has its figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.simulation.many_nodes import Counted, measured
from tests.support import limits

DOCS = Path(__file__).parents[3] / "docs"
SMALL, LARGE, PODS = 50, 100, 5
"""Numbers of nodes, and of pods on each."""
WRITTEN = re.compile(r"^\| ([\d,]+) \| ([\d,]+) \| (\d+) min \| ([\d,]+) \| ([\d,]+) \|", re.MULTILINE)
"""Rows of the page: nodes, pods, minutes, renewals, statuses."""


@pytest.fixture(scope="module")
def small() -> Counted:
    return measured(SMALL, pods=SMALL * PODS)


@pytest.fixture(scope="module")
def large() -> Counted:
    return measured(LARGE, pods=LARGE * PODS)


def test_a_new_node_takes_four_requests_and_two_events(large: Counted) -> None:
    found = large.registering.requests
    assert {what: found[what] for what in limits.REGISTRATION} == {what: LARGE * count for what, count in limits.REGISTRATION.items()}
    assert sum(found.values()) == LARGE * len(limits.REGISTRATION) + 3, "beside them two lists and the client CA"
    assert large.registering.events == {"nodes": 2 * LARGE}


def test_a_pod_takes_one_write_and_two_events(large: Counted) -> None:
    assert large.filling.writes(leases=False) == large.filling.requests["PATCH pods/status"] == large.pods
    assert large.filling.events == {"pods": 2 * large.pods}


def test_at_rest_only_leases_and_heartbeats_are_written(large: Counted) -> None:
    seconds = large.resting.seconds
    assert large.resting.requests["PUT leases"] == pytest.approx(limits.renewals(LARGE) * seconds, rel=0.01)
    assert large.resting.requests["PATCH nodes/status"] == pytest.approx(limits.statuses(LARGE) * seconds)
    assert large.resting.writes() == large.resting.requests["PUT leases"] + large.resting.requests["PATCH nodes/status"]
    # All pods, when their watch ended by its time limit: the model compacts the resourceVersion of the last bookmark.
    listed_again = {"pods": 2 * large.pods}
    assert {**listed_again, **large.resting.events} == {**listed_again, "nodes": large.resting.requests["PATCH nodes/status"]}


def test_work_and_memory_grow_with_the_number_of_nodes_alone(small: Counted, large: Counted) -> None:
    ratio = LARGE / SMALL
    assert large.resting.writes() == pytest.approx(small.resting.writes() * ratio, rel=0.01)
    assert large.resting.event_bytes["nodes"] == pytest.approx(small.resting.event_bytes["nodes"] * ratio, rel=0.02)
    for each in (small, large):
        assert each.pod_memory - each.node_memory == pytest.approx(each.pods * 5900, rel=0.2)
    assert large.node_memory - small.node_memory == pytest.approx((LARGE - SMALL) * 6950, rel=0.15)


def test_a_process_keeps_only_a_stub_of_a_pod_of_another_node(large: Counted) -> None:
    assert large.foreign_memory - large.pod_memory == pytest.approx(large.pods * limits.STUB, rel=0.2)


def test_the_page_has_the_figures_that_follow_from_the_code() -> None:
    page = (DOCS / "explanation" / "scale.md").read_text()
    assert not [row for row in limits.rows() if row not in page]


def test_measured_figures_of_the_arithmetic_are_those_of_the_reference() -> None:
    page = (DOCS / "reference" / "scale.md").read_text()
    used = [each for each in vars(limits).values() if isinstance(each, limits.Measured)]
    assert len(used) > 8 and not [each for each in used if f"\n{each.row}" not in page]
    assert not [each for each in used if each.value not in _numbers(each.row)]


def test_simulated_figures_of_the_page_are_those_of_the_arithmetic() -> None:
    rows = WRITTEN.findall((DOCS / "explanation" / "scale.md").read_text())
    assert [row[0] for row in rows] == ["1,000", "2,000", "50,000"]
    for nodes, _, minutes, renewals, statuses in (map(_number, row) for row in rows):
        assert renewals == pytest.approx(limits.renewals(nodes) * minutes * 60, rel=0.01)
        assert statuses == (pytest.approx(limits.statuses(nodes) * minutes * 60) if minutes > 1 else 0)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _numbers(row: str) -> list[float]:
    """Returns the numbers of a row, in seconds where it has microseconds."""
    found = [float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*(?:\.\d+)?", row)]
    return [*found, *(number * 1e-6 for number in found)]
