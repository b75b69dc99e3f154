"""Tests of what keepers write as logs: the kubelet's format, parts of long lines, rotation."""

from __future__ import annotations

import re
import resource
import signal
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from vkubelet_providers.process.keeper.logfile import LONGEST_LINE, Lines, LogFiles, name_of, numbers, stamp
from vkubelet_providers.process.logs import Plain

NANOS = 1_795_295_562_859_822_907
MOMENT = stamp(NANOS)


def test_a_line_is_written_as_the_kubelet_reads_it() -> None:
    assert MOMENT == b"2026-11-21T21:12:42.859822907Z"
    lines = Lines(b"stderr")
    assert lines.feed(b"one\ntw", MOMENT) == MOMENT + b" stderr F one\n"
    assert lines.feed(b"o\n\n", MOMENT) == MOMENT + b" stderr F two\n" + MOMENT + b" stderr F \n"
    assert lines.feed(b"unended", MOMENT) == b""
    assert lines.end(MOMENT) == MOMENT + b" stderr F unended\n"
    assert lines.end(MOMENT) == b""


def test_long_lines_are_cut_into_parts_of_which_only_the_last_is_full() -> None:
    lines = Lines(b"stdout")
    out = lines.feed(b"x" * (2 * LONGEST_LINE + 1), MOMENT) + lines.feed(b"y\n", MOMENT)
    assert [line.split(b" ")[2] for line in out.splitlines()] == [b"P", b"P", b"F"]
    assert out.splitlines()[-1].endswith(b" F xy")


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_what_was_said_comes_back_whole(pieces: list[bytes]) -> None:
    lines, plain, said = Lines(b"stdout"), Plain(), b"".join(pieces)
    written = b"".join(lines.feed(piece, MOMENT) for piece in pieces) + lines.end(MOMENT)
    shown = plain.feed(written).split(b"\n")[:-1]
    assert all(line.startswith(MOMENT + b" ") for line in shown)
    expected = said.split(b"\n") if said and not said.endswith(b"\n") else said.split(b"\n")[:-1]
    assert [line[len(MOMENT) + 1 :] for line in shown] == expected


def test_parts_are_put_together_whatever_the_blocks(tmp_path: Path) -> None:
    text = b"a" * 50_000 + b"\nb\n"
    written = Lines(b"stdout").feed(text, MOMENT)
    for size in (7, 16_384, 1 << 20):
        plain = Plain()
        shown = b"".join(plain.feed(written[i : i + size]) for i in range(0, len(written), size))
        assert shown == MOMENT + b" " + b"a" * 50_000 + b"\n" + MOMENT + b" b\n"


def test_files_hold_whole_lines_and_only_the_last_ones_stay(tmp_path: Path) -> None:
    log = LogFiles(str(tmp_path), largest=1000, most=3)
    for number in range(300):
        log.write(b"stdout", b"line %d\n" % number, nanos=NANOS)
    log.end(nanos=NANOS)
    there = numbers(str(tmp_path))
    assert len(there) == 3 and there == list(range(there[0], there[0] + 3)) and there[0] > 5
    data = [(tmp_path / name_of(number)).read_bytes() for number in there]
    assert all(len(each) <= 1000 and each.endswith(b"\n") for each in data)
    found = [int(word) for word in re.findall(rb"line (\d+)\n", b"".join(data))]
    assert found == list(range(found[0], 300))


def test_a_line_that_is_larger_than_a_file_may_be_is_written_all_the_same(tmp_path: Path) -> None:
    log = LogFiles(str(tmp_path), largest=10, most=5)
    log.write(b"stdout", b"first\nsecond\n", nanos=NANOS)
    log.end(nanos=NANOS)
    assert [(tmp_path / name_of(number)).read_bytes().split()[-1] for number in (0, 1)] == [b"first", b"second"]


def test_a_file_that_can_not_be_made_costs_lines_and_not_the_container(tmp_path: Path) -> None:
    log = LogFiles(str(tmp_path), largest=100, most=5)
    (tmp_path / name_of(1)).mkdir()
    for number in range(6):
        log.write(b"stdout", b"line %d\n" % number, nanos=NANOS)
    (tmp_path / name_of(1)).rmdir()
    for number in range(6, 8):
        log.write(b"stdout", b"line %d\n" % number, nanos=NANOS)
    log.end(nanos=NANOS)
    data = b"".join((tmp_path / name_of(number)).read_bytes() for number in numbers(str(tmp_path)))
    assert data.startswith(MOMENT + b" stdout F line 0\n") and data.endswith(b"line 7\n") and b"line 3" not in data


def test_half_a_line_on_a_disk_that_is_full_is_taken_back(tmp_path: Path) -> None:
    log, limit = LogFiles(str(tmp_path), largest=1 << 20, most=5), 100
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        log.write(b"stdout", b"one\ntwo\nthree\nfour\n", nanos=NANOS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    log.write(b"stdout", b"five\n", nanos=NANOS)
    log.end(nanos=NANOS)
    expected = b"".join(MOMENT + b" stdout F %b\n" % text for text in (b"one", b"two", b"five"))
    assert (tmp_path / name_of(0)).read_bytes() == expected
