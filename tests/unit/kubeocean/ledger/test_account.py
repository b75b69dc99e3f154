"""Sums by hour: each part of a time is counted once, where it belongs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from kubeocean.ledger.account import Cell, Ledger, Part, Place, between, first_hour, without_namespaces, without_nodes
from tests.unit.kubeocean.builders import at
from vkubelet.api.quantity import parse_resources

PLACE = Place("node-1", "team-a")
CELL = Cell("p", "node-1", "team-a")
CORE = parse_resources({"cpu": "500m", "memory": "1Gi"})


def one_policy(node: str, start: datetime, end: datetime) -> Sequence[Part]:
    return [Part("p", start, end)]


def day_and_night(node: str, start: datetime, end: datetime) -> Sequence[Part]:
    edge = at("2026-01-05 20:00")
    return [Part("day", start, edge), Part("night", edge, end)] if start < edge < end else [Part("day", start, end)]


def test_a_time_is_split_at_every_hour() -> None:
    ledger = Ledger.begin(at("2026-01-05 09:00"))
    ledger.add(PLACE, between(CORE, at("2026-01-05 09:30"), at("2026-01-05 11:15")), deciders=one_policy, now=at("2026-01-05 11:15"))
    lent = {hour.hour: sums[CELL]["cpu"].milli() for hour, sums in ledger.hours.items()}
    assert lent == {9: 900_000, 10: 1_800_000, 11: 450_000}
    assert ledger.total[CELL]["memory"].value() == 6300 << 30


def test_a_time_is_split_at_every_change_of_the_policy() -> None:
    ledger = Ledger.begin(at("2026-01-05 09:00"))
    ledger.add(PLACE, between(CORE, at("2026-01-05 19:50"), at("2026-01-05 20:05")), deciders=day_and_night, now=at("2026-01-05 21:00"))
    assert {cell.policy: lent["cpu"].value() for cell, lent in ledger.total.items()} == {"day": 300, "night": 150}


def test_a_time_that_ends_before_it_starts_is_subtracted() -> None:
    ledger, now = Ledger.begin(at("2026-01-05 09:00")), at("2026-01-05 12:00")
    ledger.add(PLACE, between(CORE, at("2026-01-05 10:00"), at("2026-01-05 12:00")), deciders=one_policy, now=now)
    ledger.add(PLACE, between(CORE, at("2026-01-05 12:00"), at("2026-01-05 10:30")), deciders=one_policy, now=now)
    assert ledger.total[CELL]["cpu"].value() == 900
    assert [sums[CELL]["cpu"].value() for _, sums in sorted(ledger.hours.items())] == [900, 0]


def test_the_last_day_is_the_current_hour_and_those_before_it() -> None:
    ledger, now = Ledger.begin(at("2026-01-05 00:00")), at("2026-01-06 10:30")
    ledger.add(PLACE, between(CORE, at("2026-01-05 00:00"), now), deciders=one_policy, now=now)
    assert first_hour(now) == at("2026-01-05 11:00")
    assert ledger.last_day(now)[CELL]["cpu"].value() == 23.5 * 1800
    assert ledger.total[CELL]["cpu"].value() == 34.5 * 1800
    # An hour later, nothing was lent since.
    assert ledger.last_day(now + timedelta(hours=1))[CELL]["cpu"].value() == 22.5 * 1800


def test_a_cell_without_a_kept_hour_is_summed_for_its_policy() -> None:
    ledger, now = Ledger.begin(at("2026-01-05 00:00")), at("2026-01-05 01:00")
    other = Place("node-2", "team-a")
    ledger.add(PLACE, between(CORE, at("2026-01-05 00:00"), now), deciders=one_policy, now=now)
    ledger.add(other, between(CORE, at("2026-01-06 00:00"), at("2026-01-06 01:00")), deciders=one_policy, now=at("2026-01-06 01:00"))
    ledger.prune(at("2026-01-06 02:00"))
    assert list(ledger.hours) == [at("2026-01-06 00:00")]
    assert {cell: lent["cpu"].value() for cell, lent in ledger.total.items()} == {
        Cell("p", "", ""): 1800,
        Cell("p", "node-2", "team-a"): 1800,
    }


def test_sums_over_nodes_and_namespaces() -> None:
    one, two = parse_resources({"cpu": "1"}), parse_resources({"cpu": "2", "pods": "1"})
    sums = {Cell("p", "a", "x"): one, Cell("p", "b", "x"): two, Cell("q", "b", "y"): two}
    assert {cell: str(lent["cpu"]) for cell, lent in without_nodes(sums).items()} == {Cell("p", "", "x"): "3", Cell("q", "", "y"): "2"}
    assert set(without_namespaces(sums)) == {Cell("p", "", ""), Cell("q", "", "")}
