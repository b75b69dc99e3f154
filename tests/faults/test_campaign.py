"""The default campaign finds nothing in the product, and every planted bug; a schedule runs again exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.faults.planted import DEFAULT_SCHEDULES, DEFAULT_SEED, ROOT, Planted, in_tree, patches, tree
from tests.faults.simulation.campaign import run
from tests.faults.simulation.schedule import Schedule
from tests.faults.simulation.worlds import play

_LINES = """
import json, sys
from tests.faults.simulation.schedule import Schedule
from tests.faults.simulation.worlds import play
print(json.dumps([play(Schedule.parse(each)).lines() for each in sys.argv[1:]]))
"""
REPEATED = ("mock/pods seed=3 crash:9:2", "kubeocean/pods seed=3 crash:20:2 lost:9:0")


def lines_elsewhere(hash_seed: str) -> list[list[str]]:
    """The histories of another interpreter."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ended = subprocess.run([sys.executable, "-c", _LINES, *REPEATED], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found: list[list[str]] = json.loads(ended.stdout)
    return found


@pytest.mark.timeout(300)
def test_a_seed_gives_the_same_history_in_every_process() -> None:
    assert lines_elsewhere("1") == lines_elsewhere("2") == [play(Schedule.parse(each)).lines() for each in REPEATED]


def test_another_seed_gives_another_history() -> None:
    assert play(Schedule("mock", "pods", 1)).lines() != play(Schedule("mock", "pods", 2)).lines()


@pytest.mark.timeout(600)
def test_the_default_campaign_finds_nothing() -> None:
    report = run(seed=DEFAULT_SEED, most=DEFAULT_SCHEDULES, jobs=1)
    assert not report.failed, report.text()
    assert report.schedules == DEFAULT_SCHEDULES


FOUND = [planted for planted in patches() if planted.header("Found-by")]
"""Those for which `python -m tests.faults planted` has recorded a schedule."""


@pytest.mark.parametrize("planted", FOUND, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found(planted: Planted) -> None:
    with tree(planted) as place:
        schedule, _, oracle = in_tree(place, planted.header("Found-by"))
    assert schedule and oracle
