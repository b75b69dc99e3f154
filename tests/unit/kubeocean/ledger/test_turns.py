"""Which policy decided in which part of a time."""

from __future__ import annotations

from datetime import datetime

from kubeocean.leasing.policy import Terms
from kubeocean.ledger.account import Part
from kubeocean.ledger.turns import Turns
from tests.unit.kubeocean.builders import at, binding, policy

TERMS = Terms.of(binding(), process_zone="UTC")
DAY = policy("day", {"timeWindows": [{"start": "08:00", "end": "19:59"}], "priority": 1})
NIGHT = policy("night", {"timeWindows": [{"start": "20:00", "end": "07:59"}]})
NOON, MIDNIGHT = at("2026-01-05 12:00"), at("2026-01-06 00:00")


def parts(of: Turns, start: datetime, end: datetime, *policies: str) -> list[Part]:
    return of.parts([each for each in (DAY, NIGHT) if each.name in policies], TERMS, start=start, end=end)


def test_without_a_policy_a_time_is_one_part() -> None:
    assert parts(Turns(), NOON, MIDNIGHT) == [Part("", NOON, MIDNIGHT)]


def test_a_time_is_split_at_the_edges_of_the_windows() -> None:
    edge = at("2026-01-05 20:00")
    assert parts(Turns(), NOON, MIDNIGHT, "day", "night") == [Part("day", NOON, edge), Part("night", edge, MIDNIGHT)]


def test_a_closed_node_counts_for_the_policy_that_decided_last() -> None:
    assert {part.policy for part in parts(Turns(), NOON, at("2026-01-06 12:00"), "day")} == {"day"}


def test_parts_cover_their_time_whatever_was_asked_before() -> None:
    turns, times = Turns(), [at(f"2026-01-0{day} {hour:02}:30") for day in (5, 6, 7) for hour in (1, 7, 8, 13, 19, 21)]
    for start in times:
        for end in times:
            if start < end:
                found = parts(turns, start, end, "day", "night")
                assert (found[0].start, found[-1].end) == (start, end)
                assert all(one.end == other.start for one, other in zip(found, found[1:], strict=False))
                # What is older than a day is in no hour of the ledger, and not split.
                recent = [part for part in found if (end - part.start).total_seconds() <= 86400]
                assert all(part.policy == ("day" if 8 <= part.start.hour < 20 else "night") for part in recent[1:])
