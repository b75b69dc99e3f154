"""The bars of the calendar and of a node are those of the explanations."""

from __future__ import annotations

from datetime import timedelta

from kubeocean.commands.calendar import Plan
from kubeocean.dashboard.timeline import parts, timeline
from kubeocean.explain.calendar import calendar
from kubeocean.explain.node import explain_node
from tests.unit.kubeocean.builders import at, limit, policy, window
from tests.unit.kubeocean.explain.test_calendar import DAY, NIGHT, lease
from tests.unit.kubeocean.explain.test_node import NOW
from tests.unit.kubeocean.explain.test_node import lease as lease_of_node

START = at("2026-01-05 00:00")


def plan(*policies: object, days: int = 2) -> Plan:
    made = lease(*policies)  # type: ignore[arg-type]
    zones = {each.name: str(made.zone_of(each)) for each in made.policies}
    return Plan(binding="demo", calendar=calendar(made, start=START, until=START + timedelta(days=days)), zones=zones, notes=())


def test_windows_are_bars_from_edge_to_edge() -> None:
    berlin = policy("berlin", {"timeZone": "Europe/Berlin", "timeWindows": [{"start": "07:00", "end": "12:59"}], "priority": -5}, uid="b")
    made = timeline(plan(berlin), open_now=frozenset(), windows=["berlin"])
    (lane,) = made.lanes
    assert [(each.start, each.width) for each in lane.spans] == [(12.5, 12.5), (62.5, 12.5)], "06:00 to 12:00 UTC of two days"
    assert lane.spans[0].text == "open Mon 05 Jan 07:00 CET to Mon 05 Jan 13:00 CET"
    assert [(each.start, each.text) for each in made.days] == [(50.0, "Tue 06")]


def test_a_window_that_is_open_at_an_end_of_the_page_is_cut_there() -> None:
    assert window("20:00", "07:59").problems() == []
    night = policy("late", {"timeWindows": [{"start": "20:00", "end": "07:59"}], "priority": -5}, uid="l")
    (lane,) = timeline(plan(night), open_now=frozenset({"late"}), windows=["late"]).lanes
    assert [(each.start, round(each.start + each.width, 1)) for each in lane.spans] == [(0.0, 16.7), (41.67, 66.7), (91.67, 100.0)]


def test_entries_and_evictions_are_those_of_the_plan() -> None:
    shown = plan(NIGHT, DAY)
    made = timeline(shown, open_now=frozenset(), windows=[])
    assert [each.at for each in made.entries] == [edge.at for edge in shown.calendar.edges for _ in edge.changes]
    assert [each.eviction for each in made.evictions] == list(shown.calendar.evictions) != []


def test_parts_of_a_node_are_its_arithmetic_and_fill_it_at_most() -> None:
    made = lease_of_node(policy("half", {"resourceLimits": [limit("cpu", quantity="2")]}))
    cpu = explain_node(made, made.nodes[0], instant=NOW).amounts[0]
    assert [(each.kind, each.start, each.width) for each in parts(cpu)] == [
        ("local", 0.0, 20.0),
        ("leased", 20.0, 25.0),
        ("free", 45.0, 25.0),
    ]
