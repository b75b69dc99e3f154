"""Rules of streams: how lines of a log are judged."""

from __future__ import annotations

import pytest

from vkubelet.testing.conformance.rules import Broken
from vkubelet.testing.conformance.streams import _expect_times


def test_lines_with_times_in_order_are_accepted() -> None:
    _expect_times(["2026-01-01T00:00:00Z one", "2026-01-01T00:00:00.123456789Z two", "2026-01-01T02:00:01+01:00 three"])


@pytest.mark.parametrize("line", ["two", "2026-01-01 two", "2026-01-01T00:00:00 two", ""])
def test_line_without_a_whole_time_is_shown(line: str) -> None:
    with pytest.raises(Broken, match="does not begin with an RFC 3339 time"):
        _expect_times(["2026-01-01T00:00:00Z one", line])


def test_times_that_run_backwards_are_refused() -> None:
    with pytest.raises(Broken, match="backwards"):
        _expect_times(["2026-01-01T00:00:01Z one", "2026-01-01T00:00:00Z two"])
