"""Tests of reading logs while they grow and are rotated."""

from __future__ import annotations

from pathlib import Path

from vkubelet.testing.clock import ManualClock
from vkubelet_providers.process.keeper.logfile import LogFiles, name_of
from vkubelet_providers.process.logs import begin_of_tail, read

NANOS = 1_795_295_562_859_822_907


def written(directory: Path, count: int) -> LogFiles:
    log = LogFiles(str(directory), largest=1000, most=100)
    for number in range(count):
        log.write(b"stdout", b"line %d\n" % number, nanos=NANOS)
    return log


async def collected(directory: Path, begin: int) -> list[int]:
    text = b"".join([chunk async for chunk in read(directory, begin=begin, ended=None, clock=ManualClock())])
    return [int(line.split()[-1]) for line in text.splitlines()]


async def test_all_files_are_read_in_order(tmp_path: Path) -> None:
    written(tmp_path, 200).end(nanos=NANOS)
    assert len(list(tmp_path.iterdir())) > 3
    assert await collected(tmp_path, 0) == list(range(200))


async def test_a_tail_begins_late_enough_to_be_quick_and_early_enough_to_be_whole(tmp_path: Path) -> None:
    written(tmp_path, 2000).end(nanos=NANOS)
    begin = begin_of_tail(tmp_path, 10)
    assert begin > 10
    found = await collected(tmp_path, begin)
    assert found[-10:] == list(range(1990, 2000)) and len(found) >= 10


async def test_following_ends_only_after_what_was_written_before_the_end(tmp_path: Path) -> None:
    log, looks = written(tmp_path, 5), 0

    def ended() -> bool:
        nonlocal looks
        looks += 1
        if looks == 3:
            log.write(b"stdout", b"line 5\n" * 100, nanos=NANOS)
            log.end(nanos=NANOS)
        return looks >= 3

    text = b"".join([chunk async for chunk in read(tmp_path, begin=0, ended=ended, clock=ManualClock(autojump=True))])
    assert text.count(b"line 5") == 100 and text.count(b"\n") == 105


async def test_nothing_is_read_of_what_is_not_there(tmp_path: Path) -> None:
    assert await collected(tmp_path / "none", 0) == []


async def test_a_tail_is_whole_whatever_the_text(tmp_path: Path) -> None:
    """Text may hold the marks of the file's own lines."""
    log = LogFiles(str(tmp_path), largest=2000, most=100)
    for number in range(400):
        log.write(b"stdout", b" F  F  F  F  F  F line %d\n" % number, nanos=NANOS)
    log.end(nanos=NANOS)
    assert len(await collected(tmp_path, begin_of_tail(tmp_path, 200))) >= 200


async def test_a_line_whose_end_was_rotated_away_does_not_swallow_another(tmp_path: Path) -> None:
    for number, text in enumerate(("P begins", "F ends", "F other")):
        (tmp_path / name_of(number)).write_text(f"2026 stdout {text}\n")
    (tmp_path / name_of(1)).unlink()
    text = b"".join([chunk async for chunk in read(tmp_path, begin=0, ended=None, clock=ManualClock())])
    assert text == b"2026 begins\n2026 other\n"
