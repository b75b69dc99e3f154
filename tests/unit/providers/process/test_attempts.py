"""Tests of what lies on the disk of one start of a container."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from attrs import evolve

from vkubelet import Terminated
from vkubelet_providers.process.attempts import About, Attempt, State, as_terminated, moment, parse_state, session_of
from vkubelet_providers.process.keeper import procfs
from vkubelet_providers.process.keeper.loop import write_state

BASE = {"pid": 10, "start": 20, "keeper": 9, "boot": "b", "started": 1_000_000_000}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}', json.dumps({**BASE, "pid": "x"})])
def test_half_a_state_is_none(text: str) -> None:
    assert parse_state(text) is None


@pytest.mark.parametrize(
    ("end", "code", "reason"),
    [
        ({"exit_code": 0}, 0, "Completed"),
        ({"exit_code": 3}, 3, "Error"),
        ({"exit_code": 137, "signal": 9}, 137, "Error"),
        ({"exit_code": 137, "signal": 9, "oom": 1}, 137, "OOMKilled"),
        ({"exit_code": 137, "unknown": True}, 137, "ContainerStatusUnknown"),
    ],
)
def test_an_end_is_told_in_the_kubelets_words(end: dict[str, int], code: int, reason: str) -> None:
    state = parse_state(json.dumps({**BASE, "finished": 2_500_000_000, **end}))
    assert state is not None
    expected = Terminated(code, reason, "bye", started_at=moment(1_000_000_000), finished_at=moment(2_500_000_000))
    assert as_terminated(state, "bye") == expected


def test_a_state_is_written_whole(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path / "0", "main", 0)
    attempt.make(About(image="image", memory_limit=5), uid=None)
    assert attempt.state() is None and not attempt.is_kept()
    write_state(str(attempt.directory), BASE)
    assert attempt.state() == State(pid=10, start=20, keeper=9, boot="b", started=1_000_000_000)
    assert attempt.about() == About(image="image", memory_limit=5)
    assert not list(attempt.directory.glob("*.new"))


def test_a_keeper_lives_as_long_as_its_lock(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, "main", 0)
    lock = attempt.lock()
    assert attempt.is_kept()
    with pytest.raises(BlockingIOError):
        attempt.lock()
    os.close(lock)
    assert not attempt.is_kept()


def test_who_is_given_up_is_unknown_from_then_on(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, "main", 0)
    state = attempt.give_up(State(pid=10, start=20, keeper=9, started=7), finished=8)
    assert attempt.state() == state and state.unknown
    ended = attempt.terminated(state)
    assert (ended.exit_code, ended.reason) == (137, "ContainerStatusUnknown") and "not known" in ended.message


def test_a_message_is_cut_where_the_kubelet_cuts_it(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, "main", 0)
    attempt.message_file.write_bytes(b"m" * 5000)
    assert attempt.terminated(State(pid=1, start=1, keeper=1, finished=5)).message == "m" * 4096


def test_a_session_of_another_boot_or_of_another_process_has_gone() -> None:
    leader = os.fork()
    if leader == 0:
        os.setsid()
        signal.pause()
    try:
        state = State(pid=leader, start=procfs.started(leader), keeper=1, boot=procfs.boot_id())
        while os.getsid(leader) != leader:
            os.sched_yield()
        assert session_of(state, just_now=False) == [leader]
        for other in ({"boot": "before"}, {"start": state.start + 1}, {"pid": 0}):
            assert not session_of(evolve(state, **other), just_now=True)
    finally:
        os.kill(leader, signal.SIGKILL)
        os.waitpid(leader, 0)


def test_who_is_left_of_a_session_is_known_only_just_after_its_first_process() -> None:
    """Later its number may be another one's."""
    reading, writing = os.pipe()
    leader = os.fork()
    if leader == 0:
        os.setsid()
        child = os.fork()
        if child == 0:
            signal.pause()
        os.write(writing, b"%d %d" % (child, procfs.started(os.getpid())))
        os._exit(0)
    child, start = (int(word) for word in os.read(reading, 100).split())
    try:
        os.waitpid(leader, 0)
        state = State(pid=leader, start=start, keeper=1, boot=procfs.boot_id())
        assert session_of(state, just_now=True) == [child] and session_of(state, just_now=False) == []
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


def test_what_can_not_be_read_is_told_as_unknown_and_not_as_never_begun(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, "main", 0)
    (tmp_path / "state.json").write_text('{"pid": 1')
    state = attempt.state()
    assert state is not None and state.finished and attempt.terminated(state).reason == "ContainerStatusUnknown"


def test_a_state_is_written_also_where_there_is_no_room_for_another_file(tmp_path: Path) -> None:
    write_state(str(tmp_path), BASE)
    (tmp_path / "state.json.new").mkdir()
    write_state(str(tmp_path), {**BASE, "finished": 5, "exit_code": 3})
    state = Attempt(tmp_path, "main", 0).state()
    assert state is not None and (state.finished, state.exit_code) == (5, 3)


def test_what_is_made_is_open_to_its_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    for number, mask in enumerate((0o077, 0)):
        attempt = Attempt(tmp_path / f"containers/main/{number}", "main", number)
        before = os.umask(mask)
        try:
            attempt.make(About(), uid=None)
        finally:
            os.umask(before)
        modes = {path: path.stat().st_mode & 0o777 for path in (attempt.directory, attempt.root, attempt.logs, attempt.message_file)}
        assert list(modes.values()) == [0o711, 0o700, 0o700, 0o600]
        assert not (attempt.directory / "container.json").stat().st_mode & 0o077


def test_who_is_given_up_is_told_also_by_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path / "gone", "main", 0)
    assert attempt.give_up(State(pid=10, start=20, keeper=9, started=7), finished=8).unknown


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_containers_directory_is_its_users_only_when_all_is_laid_out(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path / "0", "main", 0)
    attempt.make(About(), uid=65534)
    about = attempt.root.stat()
    assert (about.st_uid, about.st_mode & 0o777) == (0, 0o700)
    attempt.give(uid=65534)
    assert attempt.root.stat().st_uid == attempt.message_file.stat().st_uid == 65534
