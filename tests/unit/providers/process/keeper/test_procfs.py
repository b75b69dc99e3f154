"""Tests of reading /proc."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest

from vkubelet_providers.process.keeper import procfs

LINE = "42 (a) b (c)) S 7 42 41 0 -1 4194560 100 0 0 0 250 50 30 20 20 0 1 0 987654 1000000 25 18446744073709551615 0 0 0 0\n"


def test_a_name_may_hold_anything() -> None:
    stat = procfs.parse_stat(LINE)
    assert (stat.pid, stat.state, stat.parent, stat.group, stat.session, stat.start) == (42, "S", 7, 42, 41, 987654)
    assert stat.cpu == 300 / procfs.TICKS and stat.waited_cpu == 50 / procfs.TICKS
    assert stat.resident == 25 * procfs.PAGE


@pytest.mark.parametrize("text", ["", "42 (x) S 1", "no parentheses " + "1 " * 40])
def test_what_is_no_line_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        procfs.parse_stat(text)


def test_a_process_is_told_from_a_later_one_of_its_number() -> None:
    own = os.getpid()
    assert procfs.is_alive(own, procfs.started(own))
    assert not procfs.is_alive(own, procfs.started(own) - 1)
    assert procfs.started(2**30) == 0 and not procfs.is_alive(2**30, 0)
    assert own in procfs.children(os.getppid()) and own in procfs.descendants(os.getppid())


def test_children_of_all_threads_are_seen() -> None:
    started: list[subprocess.Popen[bytes]] = []
    go = threading.Event()

    def start_one() -> None:
        started.append(subprocess.Popen(["sleep", "60"]))
        go.wait(30)

    thread = threading.Thread(target=start_one)
    thread.start()
    try:
        while not started:
            thread.join(0.01)
        assert started[0].pid in procfs.children(os.getpid())
    finally:
        go.set()
        thread.join()
        for one in started:
            one.kill()
            one.wait()


def test_paths_in_lists_of_mounts_may_hold_anything() -> None:
    assert procfs.unescaped(rb"/a\040b\134c" + "/ä\udcff".encode(errors="surrogateescape")) == b"/a b\\c/\xc3\xa4\xff"
