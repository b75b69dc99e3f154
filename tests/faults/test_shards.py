"""Two replicas of a binding with four shards: one is killed or stands still at its nth write, or does not get the answer.

Each time the desired state is reached, no pod runs twice or is lost, and no two replicas write for one shard. All writes:
`FAULTS_WHOLE=1`; else a part that a seed chooses.
"""

from __future__ import annotations

import pytest

from tests.faults.at_writes import failed_at_writes
from tests.faults.simulation.schedule import Kind, Schedule
from tests.faults.simulation.shards_world import ShardsWorld

SEED, EACH = 1, 5
FAULTS = {Kind.CRASH: 5.0, Kind.LOST: 1.0, Kind.STALL: 30.0}


@pytest.mark.parametrize("scenario", ShardsWorld.scenarios)
def test_the_desired_state_is_reached_after_a_fault_at_each_write(scenario: str) -> None:
    failed = failed_at_writes(Schedule(ShardsWorld.name, scenario, SEED), FAULTS, each=EACH)
    assert not failed, [(str(each.schedule), each.violations[:3]) for each in failed]
