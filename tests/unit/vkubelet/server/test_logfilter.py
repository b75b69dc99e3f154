"""A log that flows by is cut as one that is held as a whole would be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkubelet.clock import parse_rfc3339
from vkubelet.server.logfilter import LineCount, LogFilter

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TEXTS = st.binary(max_size=90).map(lambda text: text.replace(b"\n", b""))
ENTRIES = st.lists(st.tuples(st.integers(0, 50), TEXTS), max_size=12)


def line(second: int, text: bytes) -> bytes:
    return (BEGIN + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S.123456789Z ").encode() + text + b"\n"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]


def filtered(wanted: LogFilter, chunks: list[bytes]) -> bytes:
    return b"".join(wanted.feed(chunk) for chunk in chunks) + wanted.finish()


@given(
    entries=ENTRIES,
    cuts=st.lists(st.integers(0, 2000), max_size=8),
    tail=st.none() | st.integers(0, 14),
    since=st.none() | st.integers(0, 50),
    timestamps=st.booleans(),
    limit=st.none() | st.integers(1, 400),
    newline_at_end=st.booleans(),
)
def test_cut_log_equals_the_obvious_answer(
    *,
    entries: list[tuple[int, bytes]],
    cuts: list[int],
    tail: int | None,
    since: int | None,
    timestamps: bool,
    limit: int | None,
    newline_at_end: bool,
) -> None:
    whole = b"".join(line(*entry) for entry in entries)
    whole = whole if newline_at_end else whole.removesuffix(b"\n")
    chunks = pieces(whole, cuts)
    count = LineCount()
    for chunk in chunks:
        count.feed(chunk)
    assert count.lines == len(entries)

    skip = 0 if tail is None else max(0, count.lines - tail)
    wanted = LogFilter(
        skip=skip,
        lines=None if tail is None else count.lines - skip,
        since=None if since is None else BEGIN + timedelta(seconds=since),
        timestamps=timestamps,
        limit=limit,
    )

    chosen = list(zip(entries, split(whole), strict=True))[skip:]
    kept = [raw if timestamps else raw[31:] for (second, _), raw in chosen if since is None or second >= since]
    assert filtered(wanted, chunks) == b"".join(kept)[:limit]


def split(whole: bytes) -> list[bytes]:
    parts = whole.split(b"\n")
    ended = [part + b"\n" for part in parts[:-1]]
    return ended + ([parts[-1]] if parts[-1] else [])


@given(data=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=6), timestamps=st.booleans())
def test_where_chunks_are_cut_changes_nothing_for_any_bytes(data: bytes, cuts: list[int], timestamps: bool) -> None:
    whole = filtered(LogFilter(timestamps=timestamps), [data] if data else [])
    assert filtered(LogFilter(timestamps=timestamps), pieces(data, cuts)) == whole
    assert not timestamps or whole == data


def test_since_is_compared_to_the_nanosecond() -> None:
    wanted = LogFilter(since=parse_rfc3339("2026-01-01T00:00:00.000001Z"))
    log = b"2026-01-01T00:00:00.000000999Z before\n2026-01-01T00:00:00.000001Z at\n2026-01-01T00:00:00.000001001Z after\n"
    assert filtered(wanted, [log]) == b"at\nafter\n"


def test_other_time_zones_are_understood() -> None:
    wanted = LogFilter(since=parse_rfc3339("2026-01-01T12:00:00Z"))
    log = b"2026-01-01T13:59:59+02:00 before\n2026-01-01T14:00:00+02:00 at\n2026-01-01T12:00:00.5+00:00 after\n"
    assert filtered(wanted, [log]) == b"at\nafter\n"


def test_a_line_without_time_stays_with_the_line_before() -> None:
    wanted = LogFilter(since=BEGIN + timedelta(seconds=5))
    log = line(1, b"early") + b"  at early frame\n" + line(9, b"late") + b"  at late frame\n"
    assert filtered(wanted, [log]) == b"late\n  at late frame\n"


def test_a_thing_that_only_looks_like_a_time_is_no_error() -> None:
    wanted = LogFilter(since=BEGIN)
    assert filtered(wanted, [b"2026-99-99T00:00:00Z odd\n"]) == b"odd\n"


def test_an_empty_message_is_an_empty_line_with_or_without_the_space() -> None:
    assert filtered(LogFilter(), [b"2026-01-01T00:00:00Z \n2026-01-01T00:00:00Z\n"]) == b"\n\n"


def test_nothing_more_is_wanted_after_the_limit_or_the_last_line() -> None:
    limited = LogFilter(limit=3)
    assert limited.feed(line(1, b"abcdef")) == b"abc"
    assert limited.done
    counted = LogFilter(lines=1)
    assert counted.feed(line(1, b"one")[:-1]) == b"one"
    assert not counted.done
    assert counted.feed(b"\n" + line(2, b"two")) == b"\n"
    assert counted.done
    assert LogFilter(lines=0).done


@pytest.mark.parametrize("skip", [0, 1])
def test_a_line_without_end_is_passed_on_and_not_held(skip: int) -> None:
    wanted = LogFilter(skip=skip)
    passed = len(wanted.feed(line(1, b"")[:-1]))
    for _ in range(100):
        passed += len(wanted.feed(b"x" * 10_000))
    assert passed == (0 if skip else 1_000_000)
