"""Schedules as text, the plan of a campaign, and shrinking."""

from __future__ import annotations

from itertools import islice

from attrs import evolve

from tests.faults.simulation.plan import aim, campaign, enumerated
from tests.faults.simulation.schedule import Fault, Kind, Schedule
from tests.faults.simulation.shrink import shrink
from tests.faults.simulation.worlds import Outcome

BASE = Outcome(Schedule("mock", "pods", 1), (), (), 4, {"hub": 3}, ("hub create pods",) * 4, frozenset({4}), 200.0, "")


def test_a_schedule_is_its_text() -> None:
    made = Schedule("mock", "pods", 7, (Fault(Kind.CRASH, 3, 2.0), Fault(Kind.CUT, 10, 60.0, "hub"), Fault(Kind.CLOCK, 5, -3600.0)))
    assert str(made) == "mock/pods seed=7 crash:3:2 cut@hub:10:60 clock:5:-3600"
    assert Schedule.parse(str(made)) == made


def test_every_write_is_crashed_after_and_every_event_is_missed() -> None:
    single = {str(schedule.faults[0]) for schedule in enumerated(BASE)}
    assert {f"crash:{number}:2" for number in range(1, 5)} <= single
    assert {f"dropped@hub:{number}:3" for number in range(1, 4)} <= single


def test_a_campaign_is_the_same_for_the_same_seed() -> None:
    first, second, other = (list(islice(campaign([BASE], seed), 300)) for seed in (1, 1, 2))
    assert first == second != other
    assert set(enumerated(BASE)) <= set(first)
    assert any(len(schedule.faults) > 1 for schedule in first)


def test_each_write_site_meets_each_kind_of_fault_before_one_returns() -> None:
    sites = ("hub create pods", "hub create pods", "hub create pods", "hub delete pods")
    base = evolve(BASE, sites=sites)
    single = len(list(enumerated(base)))
    planned = [aim(base, schedule.faults[0]) for schedule in islice(campaign([base], 1), single)]
    assert len(set(planned)) == len(set(planned[: len(set(planned))])) < single


def test_each_write_site_meets_each_kind_of_fault_per_scenario_before_one_returns() -> None:
    bases = {scenario: evolve(BASE, schedule=Schedule("mock", scenario, 1)) for scenario in ("pods", "churn")}
    planned = list(islice(campaign(list(bases.values()), 1), 2 * len(list(enumerated(BASE)))))
    aims = [aim(bases[schedule.scenario], schedule.faults[0]) for schedule in planned]
    in_scenarios = [(schedule.scenario, *each) for schedule, each in zip(planned, aims, strict=True)]
    assert len(set(aims[: len(set(aims))])) == len(set(aims))
    assert len(set(in_scenarios[: len(set(in_scenarios))])) == len(set(in_scenarios)) > len(set(aims))


def test_writes_of_pods_meet_each_kind_of_fault_per_scenario_before_other_writes() -> None:
    sites = ("hub create leases", "hub patch pods/status", "hub create leases", "hub patch pods/status")
    bases = {scenario: evolve(BASE, schedule=Schedule("mock", scenario, 1), sites=sites) for scenario in ("pods", "churn")}
    planned = [sites[each.faults[0].at - 1] for each in campaign(list(bases.values()), 1, kinds=(Kind.CRASH,))]
    assert sorted(planned[:4]) == ["hub create leases"] * 2 + ["hub patch pods/status"] * 2
    assert planned[4:8] == ["hub patch pods/status"] * 2 + ["hub create leases"] * 2


def test_a_campaign_of_some_kinds_has_each_of_their_single_faults_once() -> None:
    planned = list(campaign([BASE], 1, kinds=(Kind.DROPPED, Kind.STALE)))
    assert len(planned) == len(set(planned))
    assert set(planned) == {each for each in enumerated(BASE) if each.faults[0].kind in (Kind.DROPPED, Kind.STALE)}


def test_a_failing_schedule_is_shrunk_to_what_it_needs() -> None:
    needed = (Fault(Kind.CRASH, 3, 20.0), Fault(Kind.CUT, 10, 600.0, "hub"))
    noise = tuple(Fault(Kind.LOST, number) for number in range(1, 7))

    def fails(schedule: Schedule) -> bool:
        kinds = {fault.kind: fault.value for fault in schedule.faults}
        return Kind.CRASH in kinds and kinds.get(Kind.CUT, 0.0) >= 40.0

    shrunk = shrink(Schedule("mock", "pods", 1, noise + needed), fails)
    assert [fault.kind for fault in shrunk.faults] == [Kind.CRASH, Kind.CUT]
    assert 40.0 <= shrunk.faults[1].value < 80.0
    assert shrunk.faults[0].value <= 2.0
