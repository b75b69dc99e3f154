"""Two replicas of a binding with four shards: one is killed or stands still at its nth write, or does not get the answer.

Each time the desired state is reached, no pod runs twice or is lost, and no two replicas write for one shard. All writes:
`FAULTS_WHOLE=1`; else a part that a seed chooses.
"""

from __future__ import annotations

import pytest

from tests.faults.cut.choice import Choice
from tests.faults.simulation.campaign import run_all
from tests.faults.simulation.schedule import Fault, Kind, Schedule
from tests.faults.simulation.shards_world import ShardsWorld
from tests.faults.simulation.worlds import judged

SEED, EACH = 1, 5
FAULTS = {Kind.CRASH: 5.0, Kind.LOST: 1.0, Kind.STALL: 30.0}


@pytest.mark.parametrize("scenario", ShardsWorld.scenarios)
def test_the_desired_state_is_reached_after_a_fault_at_each_write(scenario: str) -> None:
    base = Schedule(ShardsWorld.name, scenario, SEED)
    undisturbed = judged(base)
    assert not undisturbed.violations and undisturbed.writes > 5
    choice = Choice.of(scenario)
    numbers = {kind: choice.part(range(1, undisturbed.writes + 1), EACH) for kind in FAULTS}
    print(f"{undisturbed.writes} writes, seed {choice.seed}: {numbers}")
    schedules = [base.with_faults([Fault(kind, number, FAULTS[kind])]) for kind, chosen in numbers.items() for number in chosen]
    failed = [outcome for outcome in run_all(schedules, jobs=1) if outcome.violations]
    assert not failed, [(str(each.schedule), each.violations[:3]) for each in failed]
