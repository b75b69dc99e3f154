"""What a run has made is remembered in a file that another process can undo.

Invariant: only recorded things are touched, and processes only while they are the recorded ones.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from vkubelet.clock import SystemClock
from vkubelet.testing.cluster.ledger import Entry, Kind, Ledger
from vkubelet.testing.cluster.processes import ProcessId


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def file(directory: Path, name: str, owner: str = "hub") -> Entry:
    (directory / name).write_text("x", encoding="ascii")
    return Entry(kind=Kind.PATH, name=str(directory / name), owner=owner)


def test_another_process_reads_what_was_recorded(path: Path) -> None:
    ledger = Ledger(path)
    entries = [
        Entry(kind=Kind.LINK, name="vkb0"),
        Entry(kind=Kind.CGROUP, name="vkubelet-0-2", owner="worker/node-1"),
        Entry(kind=Kind.PROCESS, name="etcd", owner="hub", pid=123, started=456),
    ]
    for entry in entries:
        ledger.add(entry)
    assert Ledger(path).entries() == entries


def test_entries_are_narrowed_by_kind_and_owner(path: Path) -> None:
    ledger = Ledger(path)
    link, group = Entry(kind=Kind.LINK, name="a", owner="hub"), Entry(kind=Kind.CGROUP, name="a", owner="worker")
    for entry in (link, group):
        ledger.add(entry)
    assert ledger.entries(Kind.LINK) == [link]
    assert ledger.entries(owner="worker") == [group]


def test_the_latest_process_of_a_name_counts(path: Path) -> None:
    ledger = Ledger(path)
    for pid in (10, 11):
        ledger.add_process(ProcessId(name="kubelet", pid=pid, started=1), "worker/node-1")
    assert ledger.process("worker/node-1", "kubelet") == ProcessId(name="kubelet", pid=11, started=1)
    assert ledger.process("worker/node-2", "kubelet") is None


async def test_undoing_one_owner_leaves_the_others(path: Path, tmp_path: Path) -> None:
    ledger = Ledger(path)
    mine, other = file(tmp_path, "mine"), file(tmp_path, "other", owner="worker")
    ledger.add(mine)
    ledger.add(other)
    await ledger.undo(SystemClock(), lambda entry: entry.owner == "hub")
    assert not Path(mine.name).exists()
    assert Path(other.name).exists()
    assert Ledger(path).entries() == [other]


async def test_the_file_goes_with_the_last_entry(path: Path, tmp_path: Path) -> None:
    ledger = Ledger(path)
    ledger.add(file(tmp_path, "mine"))
    await ledger.undo(SystemClock())
    assert not path.exists()


async def test_things_that_are_gone_already_are_no_error(path: Path, tmp_path: Path) -> None:
    ledger = Ledger(path)
    ledger.add(Entry(kind=Kind.PATH, name=str(tmp_path / "never")))
    await ledger.undo(SystemClock())
    assert ledger.entries() == []


async def test_a_reused_pid_is_not_signalled(path: Path) -> None:
    # The test's own process stands for a stranger that has got the pid: if it were signalled, nothing would be reported at all.
    ledger = Ledger(path)
    ledger.add(Entry(kind=Kind.PROCESS, name="etcd", owner="hub", pid=os.getpid(), started=1))
    await ledger.undo(SystemClock())
    assert ledger.entries() == []


def test_after_a_reboot_only_files_are_still_ours(path: Path, tmp_path: Path) -> None:
    ledger = Ledger(path)
    kept = file(tmp_path, "mine")
    for entry in (Entry(kind=Kind.LINK, name="vkb0"), Entry(kind=Kind.PROCESS, name="etcd", pid=1, started=1), kept):
        ledger.add(entry)
    state = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**state, "boot": "another"}), encoding="utf-8")
    assert Ledger(path).entries() == [kept]
