"""The processes of a fleet are killed after their 1st, 2nd, … nth write while a cluster joins, is denied, comes back and is deleted.

Each time the desired state is reached, and then nothing more is written. All writes: `FAULTS_WHOLE=1`; else a part that a seed chooses.
"""

from __future__ import annotations

import pytest

from tests.faults.at_writes import failed_at_writes
from tests.faults.simulation.fleet_world import FleetWorld
from tests.faults.simulation.schedule import Kind, Schedule

SEED, CRASHES = 1, 12


@pytest.mark.parametrize("scenario", FleetWorld.scenarios)
def test_f_8_the_desired_state_is_reached_after_a_crash_at_each_write(scenario: str) -> None:
    failed = failed_at_writes(Schedule(FleetWorld.name, scenario, SEED), {Kind.CRASH: 2.0}, each=CRASHES)
    assert not failed, [(str(each.schedule), each.violations[:3]) for each in failed]
