"""Runs the schedules of a campaign on all cores until its time or number is over, and reports what was injected and found.

Invariant: a failing schedule is reported by the line that runs it again, shrunk.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from itertools import islice

from attrs import define, field

from tests.faults.simulation.plan import bases, campaign
from tests.faults.simulation.schedule import Schedule
from tests.faults.simulation.shrink import shrink
from tests.faults.simulation.worlds import Outcome, judged, scenarios

_SHOWN = 20
_SHRUNK = 5
"""Failures that are shrunk: many failures usually have one cause."""


@define
class Report:
    """Figures of a campaign."""

    seed: int
    schedules: int = 0
    seconds: float = 0.0
    virtual_seconds: float = 0.0
    faults: Counter[str] = field(factory=Counter)
    coverage: Counter[tuple[str, str]] = field(factory=Counter)
    """Number of faults by site and kind."""
    sites: set[str] = field(factory=set)
    failed: list[Outcome] = field(factory=list)
    shrunk: list[Outcome] = field(factory=list)

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.virtual_seconds += outcome.virtual_seconds
        self.sites |= set(outcome.sites)
        for kind, site in outcome.injected:
            self.faults[kind] += 1
            self.coverage[site, kind] += 1
        if outcome.violations:
            self.failed.append(outcome)

    @property
    def per_minute(self) -> float:
        return 60.0 * self.schedules / self.seconds if self.seconds else 0.0

    def text(self) -> str:
        """Formats the report as Markdown."""
        return "\n".join([*self._summary(), "", *self._coverage(), "", *self._violations()])

    def _summary(self) -> Iterator[str]:
        yield f"seed {self.seed}: {self.schedules} schedules in {self.seconds:.0f} s, {self.per_minute:.0f} a minute; "
        yield f"{self.virtual_seconds / 3600:.1f} hours of virtual time; {len(self.failed)} schedules failed"
        yield ""
        yield "| fault | injected |"
        yield "|---|---|"
        yield from (f"| {kind} | {number} |" for kind, number in sorted(self.faults.items()))

    def _coverage(self) -> Iterator[str]:
        kinds = sorted({kind for site, kind in self.coverage if site in self.sites})
        yield f"| write site | {' | '.join(kinds)} |"
        yield f"|---{'|---' * len(kinds)}|"
        for site in sorted(self.sites):
            yield f"| {site} | {' | '.join(str(self.coverage[site, kind]) for kind in kinds)} |"

    def _violations(self) -> Iterator[str]:
        yield "violations: none" if not self.failed else f"violations: {len(self.failed)}"
        for outcome in (self.shrunk + self.failed)[:_SHOWN]:
            yield f"- `{outcome.schedule}`"
            yield from (f"  - {violation}" for violation in outcome.violations[:5])


def run(
    *,
    seed: int,
    seconds: float = math.inf,
    most: int | None = None,
    jobs: int = 0,
    only: Sequence[str] = (),
    stop: bool = False,
    on_failure: Callable[[Outcome], None] = lambda outcome: None,
) -> Report:
    """Runs a campaign of `most` schedules or so many seconds, whatever is less; `only` names scenarios as `world/scenario`.

    `jobs` is the number of processes: 1 runs all in this one, 0 takes all cores. With `stop` the first failure ends it, unshrunk.
    `on_failure` is called for each failure at once: a long campaign may be interrupted.
    """
    began, report = time.monotonic(), Report(seed)
    chosen = [each for each in scenarios() if not only or "/".join(each) in only]
    known: list[Outcome] = []
    with _runner(jobs) as run_all:
        for planned in (
            lambda: iter(bases(chosen, seed)),
            lambda: islice(campaign(known, seed), None if most is None else most - len(known)),
        ):
            for outcome in run_all(planned(), began + seconds):
                report.add(outcome)
                if outcome.violations:
                    on_failure(outcome)
                if report.schedules <= len(chosen):
                    known.append(outcome)
                if stop and report.failed:
                    break
            known.sort(key=lambda outcome: str(outcome.schedule))
            if stop and report.failed:
                break
    report.seconds = time.monotonic() - began
    report.shrunk = [] if stop else [smallest(outcome) for outcome in _different(report.failed)]
    return report


RunAll = Callable[[Iterator[Schedule], float], Iterator[Outcome]]


@contextmanager
def _runner(jobs: int) -> Iterator[RunAll]:
    if jobs == 1:
        yield _one_by_one
        return
    with ProcessPoolExecutor(jobs or os.cpu_count()) as pool:
        yield partial(_in_parallel, pool)


def _one_by_one(schedules: Iterator[Schedule], until: float) -> Iterator[Outcome]:
    for schedule in schedules:
        yield judged(schedule)
        if time.monotonic() >= until:
            return


def _in_parallel(pool: ProcessPoolExecutor, schedules: Iterator[Schedule], until: float) -> Iterator[Outcome]:
    running: set[Future[Outcome]] = set()
    while True:
        room = 2 * (os.cpu_count() or 1) - len(running)
        running |= {pool.submit(judged, schedule) for schedule in islice(schedules, room if time.monotonic() < until else 0)}
        if not running:
            return
        done, running = wait(running, return_when=FIRST_COMPLETED)
        yield from (future.result() for future in done)


def _different(failed: Sequence[Outcome]) -> list[Outcome]:
    """Returns the first failure of each oracle and scenario."""
    found: dict[tuple[str, str], Outcome] = {}
    for outcome in failed:
        found.setdefault((outcome.violations[0].oracle, outcome.schedule.scenario), outcome)
    return list(found.values())[:_SHRUNK]


def smallest(outcome: Outcome) -> Outcome:
    """Shrinks a failing schedule; returns the outcome of the smallest."""
    names = {violation.oracle for violation in outcome.violations}

    def fails(schedule: Schedule) -> bool:
        return any(violation.oracle in names for violation in judged(schedule).violations)

    return judged(shrink(outcome.schedule, fails))
