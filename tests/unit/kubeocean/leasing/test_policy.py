"""Tests of kubeocean.leasing.policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from attrs import evolve

from kubeocean.leasing.policy import NO_EXECUTE, NO_SCHEDULE, Decision, NodeFacts, Terms, decide, ended
from kubeocean.model.crds import ResourceLeasingPolicy
from kubeocean.model.windows import TimeWindow, is_open
from tests.unit.kubeocean.builders import at, binding, limit, node, policy
from vkubelet.api.objects import Json
from vkubelet.api.quantity import Resources, format_resources, parse_resources
from vkubelet.testing.clock import ManualClock

NODE = NodeFacts("node-1", {"gpu": "a10"}, parse_resources({"cpu": "4", "memory": "8Gi", "pods": "110"}))
TERMS = Terms("demo", None, ZoneInfo("UTC"))
MONDAY_NOON = at("2026-01-05 12:00")


def selector(key: str, *values: str) -> Json:
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}]}


def hours(start: str, end: str, *days: str) -> list[Json]:
    return [{"start": start, "end": end, "days": list(days)}]


def decided(
    policies: Iterable[ResourceLeasingPolicy],
    *,
    instant: datetime = MONDAY_NOON,
    used: Resources | None = None,
    closed_since: datetime | None = None,
    terms: Terms = TERMS,
) -> Decision:
    return decide(NODE, policies, terms=terms, used=used or {}, instant=instant, closed_since=closed_since)


@pytest.mark.parametrize(
    ("policies", "reason"),
    [
        ([], "NoMatchingPolicy"),
        ([policy(spec={"cluster": "other"})], "NoMatchingPolicy"),
        ([policy(spec={"nodeSelector": selector("gpu", "h100")})], "NoMatchingPolicy"),
        ([policy(deletionTimestamp="2026-01-02T00:00:00Z")], "NoMatchingPolicy"),
        ([policy(spec={"timeWindows": hours("25:00", "26:00")})], "OnlyInvalidPolicies"),
        ([policy(spec={"resourceLimits": [limit("cpu", percent=101)]})], "OnlyInvalidPolicies"),
    ],
)
def test_without_a_valid_matching_policy_there_is_no_virtual_node(policies: list[ResourceLeasingPolicy], reason: str) -> None:
    assert decided(policies) == Decision(exists=False, reason=reason)


def test_node_the_binding_does_not_select_does_not_exist() -> None:
    terms = Terms("demo", selector("gpu", "h100"), ZoneInfo("UTC"))
    assert decided([policy()], terms=terms) == Decision(exists=False, reason="NotSelectedByBinding")


def test_oldest_policy_decides_and_name_breaks_the_tie() -> None:
    older = policy("z", {"resourceLimits": [limit("cpu", quantity="1500m"), limit("memory", quantity="3Gi")]})
    newer = policy("b", {"resourceLimits": [limit("cpu", quantity=3)]}, creationTimestamp="2026-01-02T00:00:00Z")
    twin = policy("a", {}, creationTimestamp="2026-01-02T00:00:00Z")
    decision = decided([newer, older])
    assert (decision.applied, format_resources(decision.amounts)) == (("z",), {"cpu": "1500m", "memory": "3Gi", "pods": "110"})
    assert decided([newer]).applied == ("b",)
    assert decided([newer, twin]).applied == ("a",)
    assert decision.details == "z(cpu=1500m, memory=3Gi)"


def test_higher_priority_decides_before_age() -> None:
    assert decided([policy("old"), policy("new", {"priority": 1}, creationTimestamp="2026-01-02T00:00:00Z")]).applied == ("new",)
    assert decided([policy("old"), policy("low", {"priority": -1}, creationTimestamp="2025-01-01T00:00:00Z")]).applied == ("old",)


def test_invalid_policy_does_not_stand_in_the_way_of_a_valid_one() -> None:
    assert decided([policy("bad", {"priority": 9, "timeZone": "Europe/Atlantis"}), policy("good")]).applied == ("good",)


def test_day_and_night_policies_take_turns_without_closing_the_node() -> None:
    day = policy("day", {"timeWindows": hours("08:00", "19:59"), "resourceLimits": [limit("cpu", percent=25)]})
    night = policy("night", {"timeWindows": hours("20:00", "07:59")})
    at_noon, at_night = decided([day, night]), decided([day, night], instant=at("2026-01-05 20:00"))
    assert (at_noon.applied, at_noon.effect, format_resources(at_noon.amounts)["cpu"]) == (("day",), "", "1")
    assert (at_night.applied, at_night.effect, format_resources(at_night.amounts)["cpu"]) == (("night",), "", "4")
    assert at_noon.next_edge == at("2026-01-05 20:00")


def test_local_pods_reduce_what_percentages_count_from() -> None:
    used = parse_resources({"cpu": "1", "memory": "2Gi", "pods": "10"})
    limits = [limit("cpu", quantity=3, percent=50), limit("memory", quantity="2Gi", percent=75)]
    amounts = decided([policy(spec={"resourceLimits": limits})], used=used).amounts
    assert format_resources(amounts) == {"cpu": "1500m", "memory": "2Gi", "pods": "100"}


def test_closed_node_keeps_its_amounts_and_only_refuses_new_pods() -> None:
    decision = decided([policy(spec={"timeWindows": hours("20:00", "22:00")})])
    assert (decision.exists, decision.open, decision.effect, decision.closed_since) == (True, False, "NoSchedule", MONDAY_NOON)
    assert format_resources(decision.amounts)["cpu"] == "4"
    assert decision.next_edge == at("2026-01-05 20:00")


@pytest.mark.parametrize(
    ("grace", "instant", "effect", "next_edge"),
    [
        (0, "2026-01-05 10:01:00", "NoExecute", "2026-01-06 09:00"),
        (60, "2026-01-05 10:01:00", "NoSchedule", "2026-01-05 10:02"),
        (60, "2026-01-05 10:01:59", "NoSchedule", "2026-01-05 10:02"),
        (60, "2026-01-05 10:02:00", "NoExecute", "2026-01-06 09:00"),
    ],
)
def test_force_reclaim_closes_first_and_drives_out_after_the_grace(grace: int, instant: str, effect: str, next_edge: str) -> None:
    force = policy(spec={"timeWindows": hours("09:00", "10:00"), "forceReclaim": True, "gracefulReclaimPeriodSeconds": grace})
    decision = decided([force], instant=at(instant), closed_since=at("2026-01-05 10:01"))
    assert (decision.effect, decision.closed_since, decision.next_edge) == (effect, at("2026-01-05 10:01"), at(next_edge))


def test_a_node_that_was_closed_later_than_now_counts_as_closed_now() -> None:
    force = policy(spec={"timeWindows": hours("09:00", "10:00"), "forceReclaim": True, "gracefulReclaimPeriodSeconds": 60})
    decision = decided([force], instant=at("2026-01-05 10:01"), closed_since=at("2026-01-05 11:01"))
    assert (decision.closed_since, decision.next_edge) == (at("2026-01-05 10:01"), at("2026-01-05 10:02"))


def test_opening_forgets_since_when_the_node_was_closed() -> None:
    decision = decided([policy()], closed_since=at("2026-01-05 10:01"))
    assert (decision.effect, decision.closed_since) == ("", None)


def test_closed_node_follows_the_rules_of_the_policy_that_ended_last() -> None:
    early = policy("early", {"priority": 5, "timeWindows": hours("06:00", "08:00")})
    late = policy("late", {"timeWindows": hours("08:30", "11:00"), "forceReclaim": True})
    decision = decided([early, late])
    assert (decision.applied, decision.effect) == (("late",), "NoExecute")


def test_zone_of_the_policy_counts_before_that_of_the_binding_and_of_the_process() -> None:
    nine = hours("09:00", "10:00")
    seven_utc = at("2026-07-06 07:30")
    berlin = Terms.of(binding({"timeZone": "Europe/Berlin"}), process_zone="Asia/Tokyo")
    assert decided([policy(spec={"timeWindows": nine})], instant=seven_utc, terms=berlin).open
    assert not decided([policy(spec={"timeWindows": nine, "timeZone": "UTC"})], instant=seven_utc, terms=berlin).open
    tokyo = Terms.of(binding(), process_zone="Asia/Tokyo")
    assert decided([policy(spec={"timeWindows": nine})], instant=at("2026-07-06 00:30"), terms=tokyo).open


def test_ended_names_who_handed_over_and_when() -> None:
    night = policy("night", {"priority": 10, "timeWindows": hours("22:00", "05:59")})
    rest = policy("rest")
    found = ended([night, rest], node=NODE, terms=TERMS, instant=MONDAY_NOON)
    assert found is not None
    assert (found.policy.name, found.at) == ("night", at("2026-01-05 06:00"))
    assert ended([rest], node=NODE, terms=TERMS, instant=MONDAY_NOON) is None


def test_nobody_ended_when_the_node_was_closed_before() -> None:
    assert ended([policy(spec={"timeWindows": hours("09:00", "17:00")})], node=NODE, terms=TERMS, instant=MONDAY_NOON) is None


def test_allocatable_counts_and_capacity_only_without_it() -> None:
    both = node(status={"capacity": {"cpu": "8"}, "allocatable": {"cpu": "7500m"}}, labels={"a": "b"})
    assert NodeFacts.of(both) == NodeFacts("node-1", {"a": "b"}, parse_resources({"cpu": "7500m"}))
    assert format_resources(NodeFacts.of(node(status={"capacity": {"cpu": "8"}})).allocatable) == {"cpu": "8"}


NIGHTS_AND_WEEKENDS: Json = {
    "forceReclaim": True,
    "gracefulReclaimPeriodSeconds": 120,
    "timeWindows": [
        {"start": "18:00", "end": "08:00", "days": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]},
        {"start": "00:00", "end": "23:59", "days": ["Saturday", "Sunday"]},
    ],
}
"""Upstream's sample, which leases on weekday nights and all day on weekends."""


def leased_by_the_calendar(zone: ZoneInfo, instant: datetime) -> bool:
    """The same in words, by a calendar on the wall; the night of a weekday is that which begins on it."""
    shown = instant.astimezone(zone)
    time, day = shown.strftime("%H:%M"), shown.strftime("%a")
    morning_of_a_weeknight = {"Mon": False, "Tue": True, "Wed": True, "Thu": True, "Fri": True}
    return day in ("Sat", "Sun") or time >= "18:00" or (morning_of_a_weeknight[day] and time <= "08:00")


@pytest.mark.parametrize(
    ("zone", "begin", "minutes_open", "step"),
    [
        # A weeknight has 14 h and 1 min, four of them beside one from Friday 18:00 to Monday 00:00, which has 54 h.
        ("Europe/Berlin", "2026-03-23 00:00", 2 * (4 * 841 + 54 * 60) - 60, 1),
        ("Europe/Berlin", "2026-10-19 00:00", 2 * (4 * 841 + 54 * 60) + 60, 15),
        ("America/New_York", "2026-03-02 06:00", 2 * (4 * 841 + 54 * 60) - 60, 15),
        # Its clock goes back by half an hour.
        ("Australia/Lord_Howe", "2026-03-30 00:00", 2 * (4 * 841 + 54 * 60) + 30, 15),
    ],
)
async def test_weekday_nights_and_weekends_through_two_weeks_with_a_clock_change(
    zone: str, begin: str, minutes_open: int, step: int
) -> None:
    """Minute by minute as the calendar says; every edge is announced from the one before, and the grace kept after each end.

    The full decision is made every minute in one zone, in the others around edges and every quarter of an hour.
    """
    lent, wall = policy("p", {**NIGHTS_AND_WEEKENDS, "timeZone": zone}), ZoneInfo(zone)
    start = at(begin) - timedelta(days=1)
    clock = ManualClock(start)
    walked = [start + timedelta(minutes=minute) for minute in range(16 * 24 * 60)]
    truth = [leased_by_the_calendar(wall, instant) for instant in walked]
    edges = [instant for instant, before, now in zip(walked[1:], truth, truth[1:], strict=False) if before != now]
    closed_since: datetime | None = None
    opened = upcoming = 0
    for instant, is_leased in zip(walked[: 15 * 24 * 60], truth, strict=False):
        assert clock.now() == instant
        upcoming += edges[upcoming] <= instant
        opened += is_leased and instant >= start + timedelta(days=1)
        await clock.advance(60)
        assert is_open(lent.windows, wall, instant) == is_leased, instant
        if instant.minute % step and instant - edges[upcoming - 1] > timedelta(minutes=3):
            continue
        found = decide(NODE, [lent], terms=TERMS, used={}, instant=instant, closed_since=closed_since)
        closed_since = found.closed_since
        assert (found.exists, found.open) == (True, is_leased), instant
        grace_ends = closed_since + timedelta(minutes=2) if closed_since else instant
        assert found.effect == ("" if is_leased else NO_EXECUTE if grace_ends <= instant else NO_SCHEDULE), instant
        assert found.next_edge == min(edge for edge in (grace_ends, edges[upcoming]) if edge > instant), instant
    assert opened == minutes_open


@pytest.mark.parametrize("sample", [[{"start": "08:01", "end": "08:00"}], [{"start": "00:00", "end": "23:59"}], []])
async def test_upstreams_all_day_samples_have_no_gap(sample: list[Json]) -> None:
    """Two weeks with a clock change, minute by minute: never closed, and no edge to look for."""
    lent = policy("p", {**NIGHTS_AND_WEEKENDS, "timeWindows": sample, "timeZone": "Europe/Berlin"})
    clock = ManualClock(at("2026-03-20 00:00"))
    for _ in range(14 * 24 * 6):
        found = decide(NODE, [lent], terms=TERMS, used={}, instant=clock.now())
        assert (found.open, found.next_edge, found.effect) == (True, None, "")
        await clock.advance(600)


class CountedWindows(tuple[TimeWindow, ...]):
    """The windows of a policy; `read` counts how often they were gone through."""

    read = 0

    def __iter__(self) -> Iterator[TimeWindow]:
        self.read += 1
        return super().__iter__()


def test_edges_are_worked_out_once_for_all_nodes_of_a_policy() -> None:
    windows = CountedWindows([TimeWindow("20:00", "06:59")])
    tidal = evolve(policy(spec={"forceReclaim": True}), windows=windows)
    first = decided([tidal])
    once = windows.read
    for number in range(50):
        node_facts = NodeFacts(f"node-{number}", {}, NODE.allocatable)
        later = MONDAY_NOON + timedelta(seconds=number)
        again = decide(node_facts, [tidal], terms=TERMS, used={}, instant=later, closed_since=MONDAY_NOON)
        assert (again.open, again.next_edge) == (first.open, first.next_edge)
    assert windows.read == once
    assert decided([tidal], instant=at("2026-01-05 20:00")).open
    assert not decided([tidal], instant=MONDAY_NOON).open, "also when the clock was set back"
