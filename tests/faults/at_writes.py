"""A schedule with one fault at its nth write, for each n that a seed chooses, or for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.faults.cut.choice import Choice
from tests.faults.simulation.campaign import run_all
from tests.faults.simulation.schedule import Fault, Kind, Schedule
from tests.faults.simulation.worlds import Outcome, judged


def failed_at_writes(base: Schedule, faults: Mapping[Kind, float], *, each: int) -> Sequence[Outcome]:
    """The outcomes with violations; `faults` are kinds and their seconds, of which `each` is tried so often."""
    undisturbed = judged(base)
    assert not undisturbed.violations and undisturbed.writes > 5
    choice = Choice.of(base.scenario)
    numbers = {kind: choice.part(range(1, undisturbed.writes + 1), each) for kind in faults}
    print(f"{undisturbed.writes} writes, seed {choice.seed}: {numbers}")
    schedules = [base.with_faults([Fault(kind, number, faults[kind])]) for kind, chosen in numbers.items() for number in chosen]
    return [outcome for outcome in run_all(schedules, jobs=1) if outcome.violations]
