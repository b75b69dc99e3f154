"""Caches of what pods use: when a token is renewed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from vkubelet.resolve.objects import due_at

ISSUED = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("life", "due"), [(600, 480), (3600, 2880), (86400, 69120), (10 * 86400, 86400)])
def test_a_token_is_renewed_at_eighty_percent_or_after_a_day(life: int, due: int) -> None:
    moments = {(due_at(f"uid-{number}", ISSUED + timedelta(seconds=life), life=life) - ISSUED).total_seconds() for number in range(50)}
    assert due - 10 <= min(moments) <= max(moments) <= due
    assert len(moments) > 40, "pods do not renew all at once"
