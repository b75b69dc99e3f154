"""Runs the schedules of a campaign on all cores until its time or number is over, and reports what was injected and found.

Invariant: a failing schedule is reported by the line that runs it again, shrunk.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection, wait

from attrs import define, field

from tests.faults.simulation.branches import Slots
from tests.faults.simulation.plan import bases, campaign
from tests.faults.simulation.schedule import Kind, Schedule
from tests.faults.simulation.shrink import shrink
from tests.faults.simulation.worlds import Outcome, judged, scenarios, start

_SHOWN = 20
_BATCH, _LARGE_BATCH = 640, 1280
"""Schedules that are planned at a time, where the first failure ends a campaign and where not: the more, the more of them have a
beginning in common, and the less evenly are scenarios served by a campaign that has no time left."""
_SLOT_CHECKED_EVERY = 1.0
_SHRUNK = 5
"""Failures that are shrunk: many failures usually have one cause."""


Plan = Callable[[Sequence[Outcome]], Iterator[Schedule]]


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
    following: int = 0
    """Number of planned schedules, those without faults apart, after which the campaign continues: all before it have run."""
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
        yield f"it continues with --seed {self.seed} --after {self.following}"
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
            yield f"- `{outcome.schedule}` (history {outcome.digest})"
            yield from (f"  - {violation}" for violation in outcome.violations[:5])


def run(
    *,
    seed: int,
    seconds: float = math.inf,
    most: int | None = None,
    jobs: int = 0,
    only: Sequence[str] = (),
    kinds: Collection[Kind] = (),
    after: int = 0,
    stop: bool = False,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> Report:
    """Runs a campaign of `most` schedules or so many seconds, whatever is less; `only` names scenarios as `world/scenario`.

    It continues an earlier one `after` so many planned schedules. With `kinds` it runs single faults of these, and no combinations. `jobs`
    is the number of processes that run at a time, 0 for one on each core. With `stop` the first failure ends it, unshrunk, and so does a
    KeyboardInterrupt. `on_outcome` is called for each schedule at once.
    """
    began, report, is_over = time.monotonic(), Report(seed, following=after), False
    chosen = scenarios(only)
    known: list[Outcome] = []
    plan = partial(campaign, seed=seed, kinds=kinds)
    for schedules in _batches(bases(chosen, seed), plan, known=known, most=most, size=_BATCH if stop else _LARGE_BATCH, after=after):
        outcomes: list[Outcome] = []
        try:
            for outcome in run_all(schedules, jobs or os.cpu_count() or 1, until=began + seconds):
                outcomes.append(outcome)
                on_outcome(outcome)
        except KeyboardInterrupt:
            is_over = True
        order = {schedule: number for number, schedule in enumerate(schedules)}
        outcomes.sort(key=lambda outcome: order[outcome.schedule])
        report.following += len(schedules) if known and len(outcomes) == len(schedules) else 0
        known += [] if known else outcomes
        for outcome in outcomes:
            report.add(outcome)
            if stop and report.failed:
                break
        if is_over or time.monotonic() >= began + seconds or (stop and report.failed):
            break
    report.seconds = time.monotonic() - began
    report.shrunk = [] if stop or is_over else [smallest(outcome) for outcome in _different(report.failed)]
    return report


def shares(*, seed: int, most: int, jobs: int = 0) -> dict[str, list[Schedule]]:
    """Returns the schedules of a campaign by `world/scenario`; runs those without faults, as the plan depends on them."""
    first = bases(scenarios(), seed)
    known = list(run_all(first, jobs or os.cpu_count() or 1))
    found: dict[str, list[Schedule]] = {}
    for schedules in _batches(first, partial(campaign, seed=seed), known=known, most=most, size=_LARGE_BATCH):
        for schedule in schedules:
            found.setdefault(f"{schedule.world}/{schedule.scenario}", []).append(schedule)
    return found


def report_of(schedules: Sequence[Schedule], *, seed: int, jobs: int = 0) -> Report:
    """Runs these schedules, of a campaign of that seed."""
    began, report = time.monotonic(), Report(seed)
    for outcome in run_all(schedules, jobs or os.cpu_count() or 1):
        report.add(outcome)
    report.seconds = time.monotonic() - began
    report.shrunk = [smallest(outcome) for outcome in _different(report.failed)]
    return report


def _batches(
    first: list[Schedule], plan: Plan, *, known: Sequence[Outcome], most: int | None, size: int, after: int = 0
) -> Iterator[list[Schedule]]:
    """Yields the schedules of a campaign in parts, first those without faults, whose outcomes are `known` when the next part is made; then
    the planned ones `after` so many."""
    yield first
    planned, number = islice(plan(sorted(known, key=lambda outcome: str(outcome.schedule))), after, None), len(first)
    while batch := list(islice(planned, size if most is None else min(most - number, size))):
        number += len(batch)
        yield batch


def run_all(schedules: Sequence[Schedule], jobs: int, *, until: float = math.inf) -> Iterator[Outcome]:
    """Runs schedules, those of one scenario and seed together, in so many processes; starts none of them after `until`.

    Raises ChildProcessError.
    """
    groups: dict[Schedule, list[Schedule]] = {}
    for schedule in dict.fromkeys(schedules):
        groups.setdefault(schedule.with_faults(()), []).append(schedule)
    waiting = sorted(groups.values(), key=len)
    running: dict[Connection, int] = {}
    with closing(Slots(jobs)) as slots, _ended(running):
        while running or (waiting and time.monotonic() < until):
            while waiting and time.monotonic() < until and slots.take():
                process, receiver = start(waiting.pop(), slots=slots, until=until)
                running[receiver] = process
            for receiver in wait(list(running), timeout=_SLOT_CHECKED_EVERY if waiting else None):
                assert isinstance(receiver, Connection)
                outcome = _received(receiver)
                if outcome is not None:
                    yield outcome
                    continue
                _, status = os.waitpid(running.pop(receiver), 0)
                if status:
                    raise ChildProcessError(f"a simulation ended with the status {status}")


@contextmanager
def _ended(running: Mapping[Connection, int]) -> Iterator[None]:
    """Ends the processes that are left, with their copies: they would keep the output of their parent open."""
    try:
        yield
    finally:
        for process in running.values():
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _received(receiver: Connection) -> Outcome | None:
    """Returns the next outcome of a process, or None when it sends no more."""
    try:
        outcome: Outcome = receiver.recv()
    except EOFError:
        return None
    return outcome


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
