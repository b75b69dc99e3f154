"""Tests of kubeocean.model.windows, against tables and against a clock that is read minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.model.windows import DAYS, TimeWindow, is_open, next_edge, previous_edge, zone_of
from tests.unit.kubeocean.builders import at, window

UTC_ZONE = ZoneInfo("UTC")
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("windows", "instant", "expected"),
    [
        ([], "2026-01-05 03:00", True),
        ([window("09:00", "17:00")], "2026-01-05 09:00:00", True),
        ([window("09:00", "17:00")], "2026-01-05 17:00:59", True),
        ([window("09:00", "17:00")], "2026-01-05 08:59:59", False),
        ([window("09:00", "17:00")], "2026-01-05 17:01:00", False),
        ([window("22:00", "06:00")], "2026-01-05 23:00", True),
        ([window("22:00", "06:00")], "2026-01-05 05:00", True),
        ([window("22:00", "06:00")], "2026-01-05 12:00", False),
        ([window("08:00", "08:00")], "2026-01-05 08:00:30", True),
        ([window("08:00", "08:00")], "2026-01-05 08:01", False),
        ([window("18:00", "24:00")], "2026-01-05 23:59:59", True),
        ([window("18:00", "24:00")], "2026-01-06 00:00", False),
        # Monday's window holds on Tuesday morning, not on Monday morning.
        ([window("22:00", "06:00", "monday")], "2026-01-06 05:00", True),
        ([window("22:00", "06:00", "MONDAY")], "2026-01-05 23:00", True),
        ([window("22:00", "06:00", "Monday")], "2026-01-05 05:00", False),
        ([window("22:00", "06:00", "Sunday")], "2026-01-05 05:00", True),
        ([window("09:00", "10:00"), window("12:00", "13:00")], "2026-01-05 12:30", True),
        # What is not valid is never open, and closes nothing else.
        ([window("9:00", "17:00")], "2026-01-05 12:00", False),
        ([window("09:00", "17:00", "Funday")], "2026-01-05 12:00", False),
        ([window("bad", "17:00"), window("11:00", "13:00")], "2026-01-05 12:00", True),
    ],
)
def test_window_is_open(windows: list[TimeWindow], instant: str, expected: bool) -> None:
    assert is_open(windows, UTC_ZONE, at(instant)) is expected


@pytest.mark.parametrize(
    "windows",
    [
        [window("08:01", "08:00")],
        [window("00:00", "23:59")],
        [window("00:00", "24:00")],
        [window("08:00", "19:59"), window("20:00", "07:59")],
        [window("00:00", "11:59"), window("12:00", "24:00")],
        [window("18:00", "08:00", *DAYS[:4]), window("18:00", "24:00", "Friday"), window("00:00", "24:00", "Saturday", "Sunday")]
        + [window("00:00", "24:00", *DAYS[:5])],
    ],
)
def test_windows_that_meet_have_no_edges(windows: list[TimeWindow]) -> None:
    assert is_open(windows, BERLIN, at("2026-01-05 12:00"))
    assert next_edge(windows, BERLIN, at("2026-01-05 12:00")) is None
    assert previous_edge(windows, BERLIN, at("2026-01-05 12:00")) is None


@pytest.mark.parametrize(
    ("windows", "zone", "instant", "before", "after"),
    [
        ([window("09:00", "17:00")], UTC_ZONE, "2026-01-05 12:00", "2026-01-05 09:00", "2026-01-05 17:01"),
        ([window("09:00", "17:00")], UTC_ZONE, "2026-01-05 09:00", "2026-01-05 09:00", "2026-01-05 17:01"),
        ([window("09:00", "17:00")], UTC_ZONE, "2026-01-05 20:00", "2026-01-05 17:01", "2026-01-06 09:00"),
        ([window("09:00", "17:00")], BERLIN, "2026-07-01 12:00", "2026-07-01 07:00", "2026-07-01 15:01"),
        ([window("22:00", "06:00", "Friday")], UTC_ZONE, "2026-01-05 12:00", "2026-01-03 06:01", "2026-01-09 22:00"),
        ([window("18:00", "24:00", "Monday")], UTC_ZONE, "2026-01-05 19:00", "2026-01-05 18:00", "2026-01-06 00:00"),
        # The clock goes forward at 01:00 UTC: 02:00 is 03:00.
        ([window("02:30", "04:00")], BERLIN, "2026-03-29 00:00", "2026-03-28 03:01", "2026-03-29 01:00"),
        # A window inside the skipped hour does not happen on that day.
        ([window("02:30", "02:45")], BERLIN, "2026-03-29 00:00", "2026-03-28 01:46", "2026-03-30 00:30"),
        # The clock goes back at 01:00 UTC: 02:30 comes twice.
        ([window("02:15", "02:30")], BERLIN, "2026-10-25 00:20", "2026-10-25 00:15", "2026-10-25 00:31"),
        ([window("02:15", "02:30")], BERLIN, "2026-10-25 00:40", "2026-10-25 00:31", "2026-10-25 01:15"),
    ],
)
def test_edges(windows: list[TimeWindow], zone: ZoneInfo, instant: str, before: str, after: str) -> None:
    assert previous_edge(windows, zone, at(instant)) == at(before)
    assert next_edge(windows, zone, at(instant)) == at(after)


minutes = st.integers(0, 24 * 60 - 1).map(lambda minute: f"{minute // 60:02}:{minute % 60:02}")
windows_of_a_week = st.lists(
    st.builds(TimeWindow, minutes, minutes, st.lists(st.sampled_from(DAYS), max_size=4).map(tuple)), min_size=1, max_size=4
)
zones = st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kolkata", "Africa/Cairo"])
instants = st.datetimes(datetime(2025, 1, 1), datetime(2027, 12, 31)).map(
    lambda moment: moment.replace(tzinfo=UTC, second=0, microsecond=0)
)


def shown(windows: list[TimeWindow], zone: ZoneInfo, instant: datetime) -> bool:
    """Opens a window at its first minute and follows it to its last, as somebody would who watches a clock on the wall."""
    local = instant.astimezone(zone)
    now, today, yesterday = local.strftime("%H:%M"), DAYS[local.weekday()], DAYS[local.weekday() - 1]
    for each in windows:
        began_today = not each.days or today in each.days
        began_yesterday = not each.days or yesterday in each.days
        if each.start <= each.end and began_today and each.start <= now <= each.end:
            return True
        if each.start > each.end and ((began_today and now >= each.start) or (began_yesterday and now <= each.end)):
            return True
    return False


@given(windows_of_a_week, zones, instants)
@settings(max_examples=60, deadline=None)
def test_edges_agree_with_reading_the_clock_every_minute(windows: list[TimeWindow], zone_name: str, instant: datetime) -> None:
    zone = ZoneInfo(zone_name)
    now = shown(windows, zone, instant)
    assert is_open(windows, zone, instant) == now
    edge = next_edge(windows, zone, instant)
    end = min(edge or instant + timedelta(days=8), instant + timedelta(days=8))
    step = instant
    while step < end:
        assert shown(windows, zone, step) == now
        step += timedelta(minutes=1)
    assert edge is None or edge > end or shown(windows, zone, edge) != now


@given(windows_of_a_week, zones, instants)
@settings(max_examples=60, deadline=None)
def test_previous_edge_is_the_last_change_that_reading_the_clock_backwards_shows(
    windows: list[TimeWindow], zone_name: str, instant: datetime
) -> None:
    zone = ZoneInfo(zone_name)
    now, edge = shown(windows, zone, instant), previous_edge(windows, zone, instant)
    step, limit = instant, instant - timedelta(days=8)
    while step > limit and shown(windows, zone, step - timedelta(minutes=1)) == now:
        step -= timedelta(minutes=1)
    assert edge == step if step > limit else edge is None or edge <= limit


@pytest.mark.parametrize("name", ["Europe/Atlantis", "../UTC", "/etc/passwd", "Europe", "\0"])
def test_unknown_zone_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match="is unknown"):
        zone_of(name)


def test_first_named_zone_counts_and_utc_without_any() -> None:
    assert zone_of("", "Europe/Berlin", "UTC").key == "Europe/Berlin"
    assert zone_of("", "").key == "UTC"


@pytest.mark.parametrize("bad", [("24:00", "08:00"), ("8:00", "09:00"), ("08:00", "24:01"), ("08:60", "09:00"), ("", "")])
def test_bad_times_are_named(bad: tuple[str, str]) -> None:
    assert TimeWindow(*bad).problems()


def test_previous_edge_is_right_where_the_clock_skips_midnight() -> None:
    """In Cairo 2026-04-24 begins at 01:00; the window opened at 23:30 on the evening before."""
    cairo = ZoneInfo("Africa/Cairo")
    assert previous_edge([window("23:30", "22:59")], cairo, at("2026-04-24 10:06")) == at("2026-04-23 21:30")
    assert next_edge([window("23:30", "22:59")], cairo, at("2026-04-23 21:00")) == at("2026-04-23 21:30")
