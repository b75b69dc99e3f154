"""The processes of a fleet are killed after their 1st, 2nd, … nth write while a cluster joins, is denied, comes back and is deleted.

Each time the desired state is reached, and then nothing more is written. All writes: `FAULTS_WHOLE=1`; else a part that a seed chooses.
"""

from __future__ import annotations

import pytest

from tests.faults.cut.choice import Choice
from tests.faults.simulation.campaign import run_all
from tests.faults.simulation.fleet_world import FleetWorld
from tests.faults.simulation.schedule import Fault, Kind, Schedule
from tests.faults.simulation.worlds import judged

SEED, CRASHES = 1, 12


@pytest.mark.parametrize("scenario", FleetWorld.scenarios)
def test_f_8_the_desired_state_is_reached_after_a_crash_at_each_write(scenario: str) -> None:
    base = Schedule(FleetWorld.name, scenario, SEED)
    undisturbed = judged(base)
    assert not undisturbed.violations and undisturbed.writes > 5
    choice = Choice.of(scenario)
    numbers = choice.part(range(1, undisturbed.writes + 1), CRASHES)
    print(f"{undisturbed.writes} writes, seed {choice.seed}: {numbers}")
    schedules = [base.with_faults([Fault(Kind.CRASH, number, 2.0)]) for number in numbers]
    failed = [outcome for outcome in run_all(schedules, jobs=1) if outcome.violations]
    assert not failed, [(str(each.schedule), each.violations[:3]) for each in failed]
