"""The memory of a campaign, which its forks share: joined pages change nothing, and what a campaign does not need is not imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.planted import ROOT
from tests.faults.simulation import branches
from tests.faults.simulation.schedule import Schedule
from tests.faults.simulation.worlds import judged

_MODULES = "import sys, tests.faults.simulation.campaign; print(*{each.partition('.')[0] for each in sys.modules})"


def exit_code_of_joined(schedule: Schedule, digest: str) -> int:
    """Runs the schedule with joined pages, in a process of its own; returns 0 when its history has the digest."""
    process = os.fork()
    if not process:
        branches.join_pages()
        os._exit(int(judged(schedule).digest != digest))
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_a_schedule_has_the_same_history_with_joined_pages() -> None:
    schedule = Schedule.parse("mock/pods seed=3 crash:9:2")
    assert exit_code_of_joined(schedule, judged(schedule).digest) == 0


def test_pages_stay_as_they_are_where_the_kernel_does_not_show_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(branches, "_AREAS", tmp_path / "missing")
    branches.join_pages()


def test_a_campaign_imports_nothing_of_real_clusters() -> None:
    ended = subprocess.run([sys.executable, "-c", _MODULES], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"kubernetes", "pydantic", "pytest", "requests"} & set(ended.stdout.split())
