"""When the tokens of a pod are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.copies.tokens import refresh_at

EXPIRY = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
HOUR, TEN_MINUTES = 3600.0, 600.0


def share(uid: str, lifetime: float) -> float:
    """At which share of its lifetime a token is renewed."""
    issued = EXPIRY - timedelta(seconds=lifetime)
    return (refresh_at(uid, EXPIRY, lifetime=lifetime) - issued).total_seconds() / lifetime


@given(uid=st.uuids().map(str), lifetime=st.floats(min_value=TEN_MINUTES, max_value=24 * HOUR))
def test_tokens_are_renewed_between_70_and_90_percent_of_their_life(uid: str, lifetime: float) -> None:
    assert 0.7 - 1e-6 <= share(uid, lifetime) <= 0.9 + 1e-6


@given(uid=st.uuids().map(str))
def test_ten_minute_tokens_reach_their_containers_before_the_old_ones_end(uid: str) -> None:
    # A kubelet takes up to 90 seconds to show a changed Secret, and its cache lags.
    assert EXPIRY - refresh_at(uid, EXPIRY, lifetime=TEN_MINUTES) >= timedelta(seconds=119)


@given(uid=st.uuids().map(str), days=st.integers(min_value=2, max_value=400))
def test_long_lived_tokens_are_renewed_after_a_day_as_a_kubelet_does(uid: str, days: int) -> None:
    issued = EXPIRY - timedelta(days=days)
    assert refresh_at(uid, EXPIRY, lifetime=days * 24 * HOUR) == issued + timedelta(days=1)


def test_the_point_depends_on_the_pod_alone_so_another_process_finds_the_same() -> None:
    assert share(str(UUID(int=7)), HOUR) == pytest.approx(0.7102711, abs=1e-6)


def test_tokens_issued_at_the_same_time_are_renewed_at_different_times() -> None:
    shares = sorted(share(str(UUID(int=number)), HOUR) for number in range(1000))
    steps = [later - earlier for earlier, later in zip(shares, shares[1:], strict=False)]
    # A thousand pods of an hour's token over twelve minutes: never more than a few per second, no long silence.
    assert max(steps) < 0.005
    assert shares[0] < 0.705 and shares[-1] > 0.895
