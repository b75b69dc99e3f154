"""The text of `kubeocean plan`."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from kubeocean.commands.calendar import Plan, Question, blocked_by, blocks, latest
from kubeocean.commands.output import Format, data, rendered
from kubeocean.explain.calendar import calendar
from tests.unit.kubeocean.builders import at, policy
from tests.unit.kubeocean.explain.test_calendar import DAY, NIGHT, guarded, lease, of_a_day
from vkubelet.errors import SettingsError

START = at("2026-01-05 07:00")


def plan(*policies: object, days: int = 1, notes: tuple[str, ...] = ()) -> Plan:
    made = lease(*policies)  # type: ignore[arg-type]
    zones = {each.name: str(made.zone_of(each)) for each in made.policies}
    return Plan(binding="demo", calendar=calendar(made, start=START, until=START + timedelta(days=days)), zones=zones, notes=notes)


def text(made: Plan, *, wide: bool = False) -> list[str]:
    return list(rendered(blocks(made, wide=wide), width=10_000))


def test_edges_are_shown_by_both_clocks_with_amounts_and_evictions() -> None:
    berlin = {"timeZone": "Europe/Berlin", "timeWindows": [{"start": "11:00", "end": "11:59"}], "priority": -5}
    shown = text(plan(NIGHT, DAY, policy("berlin", berlin, uid="b")))
    assert shown[0] == "ClusterBinding demo: 4 edges from 2026-01-05T07:00Z to 2026-01-06T07:00Z"
    assert [line.split("  ")[0] for line in shown[2:7]] == [
        "LOCAL TIME",
        "Mon 05 Jan 08:00 UTC",
        "Mon 05 Jan 11:00 CET",
        "Mon 05 Jan 12:00 CET",
        "Mon 05 Jan 20:00 UTC",
    ]
    assert "replaces night: cpu 4 -> cpu 1" in shown[3] and "1 pod" in shown[3] and "2026-01-05T10:00Z" in shown[4]
    (evicted,) = (line for line in shown if "default/web-1" in line)
    assert evicted.startswith("Mon 05 Jan 08:00 UTC  Mon 05 Jan 08:10 UTC")


def test_a_deadline_that_another_window_may_change_is_shown_as_such() -> None:
    soon = policy("soon", {"timeWindows": [{"start": "08:05", "end": "08:07"}], "priority": 1}, uid="s")
    (evicted,) = (line for line in text(plan(NIGHT, soon)) if "default/web-1" in line)
    assert evicted.startswith("Mon 05 Jan 08:00 UTC  Mon 05 Jan 08:10 UTC; decided again Mon 05 Jan 08:05 UTC")


def test_a_pod_that_a_budget_blocks_is_shown_with_it() -> None:
    made = guarded(NIGHT, allows=0, pods=["u1"])
    shown = blocks(
        Plan(binding="demo", calendar=calendar(made, start=START, until=START + timedelta(days=1)), zones={}, notes=()), wide=False
    )
    lines = [line for line in rendered(shown, width=10_000) if "default/web-" in line]
    assert [("  no budget  " in line, "  default/web, which allows none  " in line) for line in lines] == [(True, False), (False, True)]
    soon = policy("soon", {"timeWindows": [{"start": "08:05", "end": "08:20"}], "priority": 1}, uid="soon")
    (blocked,) = (each for each in of_a_day(guarded(NIGHT, soon, allows=0, pods=["u1"])).evictions if each.blocked_by)
    assert latest(blocked, "UTC") == "none; it may stay from Mon 05 Jan 08:05 UTC"
    (some,) = (each for each in of_a_day(guarded(NIGHT, allows=1)).evictions if each.blocked_by)
    assert blocked_by(some) == "default/web, which allows 1 at a time"


def test_a_window_that_changes_no_node_is_shown_as_such() -> None:
    shadowed = policy("shadowed", {"timeWindows": [{"start": "08:00", "end": "08:59"}], "priority": -5}, uid="s")
    assert sum("no node changes" in line for line in text(plan(policy("always"), shadowed))) == 2


def test_an_empty_calendar_and_its_notes_are_sentences() -> None:
    shown = text(plan(policy("always"), notes=("ResourceLeasingPolicy always has no time windows: it is always open",)))
    assert shown[1:3] == [
        "  ! ResourceLeasingPolicy always has no time windows: it is always open",
        "No window opens or closes in this time.",
    ]


def test_data_for_programs_has_utc_times_and_quantities() -> None:
    made = json.loads(data([plan(NIGHT)], Format.JSON))
    edge = made[0]["calendar"]["edges"][0]
    assert (edge["at"], edge["closes"], edge["changes"][0]["before"]["amounts"]["cpu"]) == ("2026-01-05T08:00:00Z", ["night"], "4")
    assert edge["evictions"][0]["deadline"] == "2026-01-05T08:10:00Z" and edge["evictions"][0]["pod"]["name"] == "web-1"


@pytest.mark.parametrize("days", [0, -1, 32])
def test_a_useless_number_of_days_is_an_error_of_the_flag(days: int) -> None:
    with pytest.raises(SettingsError, match="--days: must be from 1 to 31"):
        Question(days=days).check()
