"""Tests of fleet.ocm.heartbeats."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.ocm.heartbeats import Pulse, Verdict, checks_clock, clocks_differ, grace_multiple
from tests.unit.fleet.builders import managed

START = datetime(2026, 1, 1, tzinfo=UTC)
PERIOD = 60


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def verdict(pulse: Pulse, seconds: float, *, multiple: int = 5) -> Verdict:
    return pulse.verdict(now=at(seconds), seconds=PERIOD, multiple=multiple)


def test_f_141_renewals_have_stopped_after_five_periods_and_not_before() -> None:
    pulse = Pulse.begin(at(0), now=at(0)).after(at(60), now=at(61))
    assert verdict(pulse, 61 + 299) is Verdict.ALIVE and verdict(pulse, 61 + 300) is Verdict.STOPPED
    assert pulse.due(now=at(62), seconds=PERIOD) == at(61 + 300)


def test_f_141_a_renewal_makes_a_stopped_cluster_alive_again() -> None:
    pulse = Pulse.begin(at(0), now=at(0))
    assert verdict(pulse, 400) is Verdict.STOPPED
    assert verdict(pulse.after(at(400), now=at(401)), 401) is Verdict.ALIVE


def test_f_141_a_hub_that_starts_judges_nothing_before_two_periods() -> None:
    pulse = Pulse.begin(at(-3600), now=at(0))
    assert verdict(pulse, 0) is Verdict.UNDECIDED and verdict(pulse, 119) is Verdict.UNDECIDED
    assert pulse.due(now=at(0), seconds=PERIOD) == at(120) and verdict(pulse, 120) is Verdict.STOPPED


def test_f_141_a_hub_that_was_away_for_an_hour_does_not_hold_that_against_a_cluster() -> None:
    pulse = Pulse.begin(at(0), now=at(0)).after(at(60), now=at(60)).resumed(now=at(3660))
    assert verdict(pulse, 3660) is Verdict.UNDECIDED
    assert verdict(pulse.after(at(3665), now=at(3665)), 3665 + 299) is Verdict.ALIVE
    assert verdict(pulse, 3660 + 120) is Verdict.STOPPED


def test_f_141_a_lease_that_was_never_renewed_counts_after_two_watched_periods() -> None:
    pulse = Pulse.begin(None, now=at(0))
    assert verdict(pulse, 119) is Verdict.UNDECIDED and verdict(pulse, 120) is Verdict.STOPPED
    assert pulse.due(now=at(0), seconds=PERIOD) == at(120)


def test_f_141_the_multiple_may_be_set_for_each_cluster() -> None:
    pulse = Pulse.begin(at(0), now=at(0)).after(at(60), now=at(60))
    assert verdict(pulse, 60 + 599, multiple=10) is Verdict.ALIVE and verdict(pulse, 60 + 600, multiple=10) is Verdict.STOPPED


@pytest.mark.parametrize(("text", "multiple"), [("10", 10), ("", 5), ("0", 5), ("-1", 5), ("many", 5), ("1.5", 5), ("²", 5)])
def test_f_141_an_invalid_multiple_sets_none(text: str, multiple: int) -> None:
    assert grace_multiple(managed(annotations={"fleet.vkubelet.io/lease-grace-multiple": text})) == multiple


@given(st.integers(-7200, 7200), st.integers(1, 20))
def test_f_25_a_cluster_whose_clock_is_wrong_stays_alive_while_it_renews(skew: int, renewals: int) -> None:
    pulse = Pulse.begin(at(skew), now=at(0))
    for number in range(1, renewals + 1):
        pulse = pulse.after(at(skew + number * PERIOD), now=at(number * PERIOD))
        assert verdict(pulse, number * PERIOD) is Verdict.ALIVE
        assert verdict(pulse, number * PERIOD + 299) is Verdict.ALIVE
    assert verdict(pulse, renewals * PERIOD + 300) is Verdict.STOPPED


def test_f_25_an_event_that_is_no_renewal_counts_for_nothing() -> None:
    pulse = Pulse.begin(at(0), now=at(0))
    assert pulse.after(at(0), now=at(200)) == pulse and verdict(pulse, 300) is Verdict.STOPPED


@pytest.mark.parametrize(("apart", "differ"), [(0, False), (299, False), (300, True), (-299, False), (-300, True), (3600, True)])
def test_f_143_clocks_differ_from_five_periods_on_either_way(apart: int, differ: bool) -> None:
    assert clocks_differ(at(apart), now=at(0), seconds=PERIOD) is differ


def test_f_143_the_annotation_switches_the_check_off() -> None:
    key = "registration.open-cluster-management.io/skip-clock-sync-check"
    assert checks_clock(managed()) and not checks_clock(managed(annotations={key: "true"}))
