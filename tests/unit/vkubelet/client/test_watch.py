"""A stream is cut into lines wherever its chunks end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vkubelet.client.watch import LineSplitter, watch_params

LINES = st.lists(st.binary(min_size=1, max_size=20).map(lambda line: b"{" + line.replace(b"\n", b"") + b"}"), max_size=6)


@given(LINES, st.lists(st.integers(0, 150), max_size=8))
def test_lines_are_whole_wherever_the_chunks_end(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    splitter = LineSplitter()
    got = [line for start, end in zip(edges, edges[1:], strict=False) for line in splitter.feed(data[start:end])]
    assert got == lines
    assert not splitter.pending


def test_empty_lines_are_no_events() -> None:
    splitter = LineSplitter()
    assert list(splitter.feed(b"\n\r\n{}\r\n \n")) == [b"{}\r"]


def test_an_unfinished_line_is_pending() -> None:
    splitter = LineSplitter()
    assert not splitter.feed(b'{"type"')
    assert splitter.pending
    assert list(splitter.feed(b":1}\n")) == [b'{"type":1}']
    assert not splitter.pending


def test_a_long_line_in_many_chunks_takes_linear_time() -> None:
    splitter = LineSplitter()
    for _ in range(20_000):
        splitter.feed(b"x" * 1000)
    [line] = splitter.feed(b"\n")
    assert len(line) == 20_000_000


def test_watch_asks_for_bookmarks_and_for_initial_events_only_when_told() -> None:
    plain, first = dict(watch_params("5", initial=False)), dict(watch_params("", initial=True))
    assert plain["allowWatchBookmarks"] == "true"
    assert plain["resourceVersion"] == "5"
    assert "sendInitialEvents" not in plain
    assert (first["sendInitialEvents"], first["resourceVersionMatch"], first["resourceVersion"]) == ("true", "NotOlderThan", "")
    assert "resourceVersion" not in dict(watch_params("", initial=False))


def test_the_splitter_counts_what_it_holds_of_an_unfinished_line() -> None:
    splitter = LineSplitter()
    splitter.feed(b"xx")
    splitter.feed(b"xxx")
    assert splitter.held == 5
    splitter.feed(b"\n\nyy")
    assert splitter.held == 2
