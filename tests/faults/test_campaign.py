"""The default campaign finds nothing in the product, and every planted bug; a schedule runs again exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.planted import DEFAULT_SCHEDULES, DEFAULT_SEED, HERE, PAGE, ROOT, Planted, in_tree, page, patches, tree
from tests.faults.simulation.campaign import report_of, run, run_all, shares
from tests.faults.simulation.schedule import Schedule
from tests.faults.simulation.worlds import Outcome, judged, play, scenarios

_LINES = """
import json, sys
from tests.faults.simulation.schedule import Schedule
from tests.faults.simulation.worlds import play
print(json.dumps([play(Schedule.parse(each)).lines() for each in sys.argv[1:]]))
"""
REPEATED = ("mock/pods seed=3 crash:9:2", "mock/churn seed=3 slow:20:4", "kubeocean/pods seed=3 crash:20:2 lost:9:0")
TOGETHER = (
    "",
    " crash:9:2",
    " crash:9:2 refused:30:503",
    " crash:9:2 cut@hub:28:10",
    " refused:900:503",
    " clock:12:3600 lag@hub:14:10",
    " dropped@hub:20:3",
    " dropped@hub:20:3 stall:12:20",
    " stale@hub:6:5",
)
ONCE_FAILED = (
    "kubeocean/leaders seed=1 lost:38:1",
    "kubeocean/unbind seed=1 crash:58:1",
    "mock/pods seed=1 lag@hub:12:22",
    "kubeocean/churn seed=1 slow:41:4",
    "kubeocean/outages seed=1 crash:62:1",
    "kubeocean/copies seed=20261124 refused:28:409",
    "kubeocean/copies seed=20261124 severed:28:5",
    "kubeocean/return seed=943749 crash:23:5 cut@hub:9:25",
    "kubeocean/kinds-unbind seed=402 severed:43:5",
    "kubeocean/withdrawn seed=1 clock:3:-3600",
    "kubeocean/tokens seed=1 clock:6:-3600",
    "kubeocean/tokens seed=1 refused:39:409",
    "kubeocean/tokens seed=791192 severed:46:5",
    "kubeocean/withdrawn seed=791192 clock:45:-3600",
)
"""Schedules in which a campaign has found a defect of the product, of a scene or of an oracle."""
SCENARIOS = ["/".join(each) for each in scenarios()]


def lines_elsewhere(hash_seed: str) -> list[list[str]]:
    """The histories of another interpreter."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ended = subprocess.run([sys.executable, "-c", _LINES, *REPEATED], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found: list[list[str]] = json.loads(ended.stdout)
    return found


@pytest.mark.timeout(300)
def test_a_seed_gives_the_same_history_in_every_process() -> None:
    assert lines_elsewhere("1") == lines_elsewhere("2") == [play(Schedule.parse(each)).lines() for each in REPEATED]


def test_schedules_that_run_together_have_the_histories_that_each_has_alone() -> None:
    schedules = [Schedule.parse(f"mock/pods seed=3{each}") for each in TOGETHER]
    together = {outcome.schedule: outcome.digest for outcome in run_all(schedules, jobs=2)}
    assert together == {schedule: judged(schedule).digest for schedule in schedules}
    assert len(set(together.values())) == len(TOGETHER) - 1, "only the fault of a write that does not happen changes nothing"


def test_a_campaign_that_is_given_up_leaves_no_process() -> None:
    schedules = [Schedule.parse(f"{world} seed=3{each}") for world in ("mock/pods", "kubeocean/pods") for each in TOGETHER]
    outcomes = run_all(schedules, jobs=2)
    next(outcomes)
    groups = {os.getpgid(int(each)) for each in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()} - {os.getpgrp()}
    assert groups
    outcomes.close()
    within = time.monotonic() + 10.0
    while _running() & groups and time.monotonic() < within:
        time.sleep(0.02)
    assert not _running() & groups


def test_a_campaign_continues_where_an_earlier_one_has_stopped() -> None:
    complete: list[Schedule] = []
    first, second = list[Schedule](), list[Schedule]()
    run(seed=3, only=["mock/pods"], most=13, on_outcome=lambda outcome: complete.append(outcome.schedule))
    earlier = run(seed=3, only=["mock/pods"], most=6, on_outcome=lambda outcome: first.append(outcome.schedule))
    assert earlier.following == 5 and "--seed 3 --after 5" in earlier.text()
    later = run(seed=3, only=["mock/pods"], most=8, after=earlier.following, on_outcome=lambda outcome: second.append(outcome.schedule))
    assert later.following == 12
    assert set(first) | set(second) == set(complete) and set(first) & set(second) == {Schedule("mock", "pods", 3)}


def test_a_campaign_that_is_interrupted_reports_what_has_run() -> None:
    seen = []

    def interrupt(outcome: Outcome) -> None:
        seen.append(outcome.schedule)
        if len(seen) == 2:
            raise KeyboardInterrupt

    report = run(seed=3, only=["mock/pods"], jobs=1, on_outcome=interrupt)
    assert report.schedules == len(seen) == 2 and "2 schedules" in report.text()


def _running() -> set[int]:
    """Groups with a process that is more than an entry which its new parent has to reap."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group = path.read_text().rpartition(") ")[2].split()[:3]
            if state != "Z":
                found.add(int(group))
    return found


def test_another_seed_gives_another_history() -> None:
    assert play(Schedule("mock", "pods", 1)).lines() != play(Schedule("mock", "pods", 2)).lines()


@pytest.mark.parametrize("schedule", ONCE_FAILED)
def test_a_schedule_that_failed_once_finds_nothing(schedule: str) -> None:
    assert not judged(Schedule.parse(schedule)).violations


@pytest.fixture(scope="module")
def default_campaign() -> dict[str, list[Schedule]]:
    """The schedules of the default campaign by scenario."""
    return shares(seed=DEFAULT_SEED, most=DEFAULT_SCHEDULES, jobs=1)


@pytest.mark.timeout(300)
def test_the_default_campaign_has_schedules_for_every_scenario(default_campaign: dict[str, list[Schedule]]) -> None:
    assert list(default_campaign) == SCENARIOS
    every = [schedule for schedules in default_campaign.values() for schedule in schedules]
    assert len(set(every)) == len(every) == DEFAULT_SCHEDULES


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_default_campaign_finds_nothing(scenario: str, default_campaign: dict[str, list[Schedule]]) -> None:
    report = report_of(default_campaign[scenario], seed=DEFAULT_SEED, jobs=1)
    assert not report.failed, report.text()
    assert report.schedules == len(default_campaign[scenario])


FOUND = [planted for planted in patches() if planted.header("Found-by")]
"""Those for which `python -m tests.faults planted` has recorded a schedule."""


@pytest.mark.parametrize("planted", FOUND, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found(planted: Planted) -> None:
    with tree(planted) as place:
        schedule, _, oracle = in_tree(place, planted.header("Found-by"))
    assert schedule and oracle


@pytest.mark.timeout(300)
def test_the_default_campaign_finds_every_planted_bug(default_campaign: dict[str, list[Schedule]]) -> None:
    every = {str(schedule) for schedules in default_campaign.values() for schedule in schedules}
    found = patches(folders=[HERE])
    assert not [each.name for each in found if not 0 < int(each.header("Found-after") or 0) <= DEFAULT_SCHEDULES]
    # A defect that changes the number of writes or events has a plan with other numbers.
    other = [each.name for each in found if each.header("Found-by") not in every]
    assert len(other) <= 2, other


def test_the_documentation_shows_every_planted_bug() -> None:
    assert PAGE.read_text() == page(), "run: make docs"
    assert len(patches()) >= 40
