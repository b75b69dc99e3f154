"""The amounts and the status of a ResourceLeasingPolicy, and when it is written."""

from datetime import timedelta
from random import Random

import pytest

from kubeocean.model.crds import ResourceLeasingPolicy
from kubeocean.policies.status import Amounts, Pace, PolicyAmounts, Verdict, status_change
from tests.unit.kubeocean.builders import at, policy, unknown
from vkubelet.api.objects import Json, apply_merge, get_condition
from vkubelet.api.quantity import Resources, add_resources, format_resources, parse_resources
from vkubelet.testing.clock import ManualClock

NOW = at("2026-01-05 09:00")


def reported(verdict: Verdict) -> Json:
    report = status_change(policy(), verdict, now=NOW)
    assert report is not None
    status: Json = report.patch["status"]
    return status


def stored(status: Json) -> ResourceLeasingPolicy:
    return ResourceLeasingPolicy.parse(unknown({"metadata": {"name": "p"}, "spec": {"cluster": "demo"}, "status": status}))


def amounts(cpu: str) -> Amounts:
    return Amounts(parse_resources({"cpu": "8"}), parse_resources({"cpu": cpu}))


def test_an_open_policy_is_active() -> None:
    status = reported(Verdict("", open=True, zone="UTC", edge=at("2026-01-05 17:00")))
    assert (status["phase"], status["activeTimeWindow"], status["timeZone"]) == ("Active", True, "UTC")
    assert status["nextEdge"] == "2026-01-05T17:00:00Z"
    assert status["lastAppliedTime"] == "2026-01-05T09:00:00Z"


def test_a_closed_policy_is_inactive_but_valid() -> None:
    status = reported(Verdict("", open=False, zone="UTC"))
    valid, active = (get_condition(status["conditions"], kind) for kind in ("Valid", "Active"))
    assert valid is not None and active is not None
    assert (status["phase"], valid["status"], active["reason"]) == ("Inactive", "True", "InactiveTimeWindow")


def test_an_invalid_policy_failed_and_says_which_field() -> None:
    status = reported(Verdict("spec.timeWindows[0]: bad"))
    valid = get_condition(status["conditions"], "Valid")
    assert valid is not None
    assert (status["phase"], valid["reason"], valid["message"]) == ("Failed", "ValidationError", "spec.timeWindows[0]: bad")
    assert status["activeTimeWindow"] is False


def test_nothing_new_is_not_written() -> None:
    verdict = Verdict("", open=True, zone="UTC", nodes=("a",), amounts=amounts("1"))
    assert status_change(stored(reported(verdict)), verdict, now=NOW + timedelta(days=1)) is None


def test_nodes_it_decides_about_are_counted_and_named_up_to_a_limit() -> None:
    status = reported(Verdict("", open=True, zone="UTC", nodes=("b", "a")))
    assert (status["decidingNodes"], status["nodes"], status["observedGeneration"]) == (2, ["a", "b"], policy().generation)
    many = reported(Verdict("", open=True, zone="UTC", nodes=[f"n{number:03}" for number in range(100)]))
    assert (many["decidingNodes"], len(many["nodes"]), many["nodes"][0]) == (100, 32, "n000")


def test_a_message_has_at_most_the_characters_that_the_definition_permits() -> None:
    condition = get_condition(reported(Verdict("é" * 32_769))["conditions"], "Valid")
    assert condition is not None and condition["message"] == "é" * 32_767 + "…"


def test_amounts_are_told_and_nothing_of_the_earlier_ones_is_left() -> None:
    before = reported(Verdict("", open=True, zone="UTC", amounts=amounts("1")))
    assert (before["offered"], before["leased"]) == ({"cpu": "8"}, {"cpu": "1"})
    other = Amounts(parse_resources({"memory": "1Gi"}), {})
    report = status_change(stored(before), Verdict("", open=True, zone="UTC", amounts=other), now=NOW)
    assert report is not None and report.only_amounts
    after = apply_merge({"status": before}, report.patch)["status"]
    assert (after["offered"], after["leased"]) == ({"memory": "1Gi"}, {})


def test_amounts_that_are_not_known_yet_stay_as_they_were_told() -> None:
    before = reported(Verdict("", open=True, zone="UTC", amounts=amounts("1")))
    assert status_change(stored(before), Verdict("", open=True, zone="UTC"), now=NOW) is None


def test_anything_but_amounts_is_worth_a_write_of_its_own() -> None:
    before = reported(Verdict("", open=True, zone="UTC", amounts=amounts("1")))
    for verdict in (Verdict("", zone="UTC", amounts=amounts("2")), Verdict("", open=True, zone="UTC", nodes=("a",), amounts=amounts("1"))):
        report = status_change(stored(before), verdict, now=NOW)
        assert report is not None and not report.only_amounts


def test_a_definition_that_drops_our_fields_is_not_written_to_again() -> None:
    verdict = Verdict("", open=True, zone="UTC", edge=at("2026-01-05 17:00"), nodes=("a",), amounts=amounts("1"))
    report = status_change(policy(), verdict, now=NOW)
    assert report is not None
    kept = {name: report.status[name] for name in ("phase", "activeTimeWindow", "conditions")}
    assert status_change(stored(kept), verdict, now=NOW, last_sent=report.status) is None
    assert status_change(stored(kept), verdict, now=NOW) is not None
    assert status_change(stored(kept), Verdict("", open=True, zone="UTC"), now=NOW, last_sent=report.status) is not None


async def test_amounts_that_stand_still_are_written_after_a_second() -> None:
    clock, said = ManualClock(), {"offered": {}, "leased": {"cpu": "1"}}
    pace = Pace(clock)
    assert pace.wait("p", said) == 1.0
    await clock.advance(0.5)
    # Another amount begins the second anew.
    assert pace.wait("p", {**said, "leased": {"cpu": "2"}}) == 1.0
    await clock.advance(1)
    assert pace.wait("p", {**said, "leased": {"cpu": "2"}}) == 0.0


async def test_amounts_that_never_stand_still_are_written_every_half_minute() -> None:
    """A pod every 0.5 s for an hour."""
    clock = ManualClock()
    pace, writes = Pace(clock), 0
    for number in range(7200):
        if pace.wait("p", {"offered": {}, "leased": {"cpu": str(number)}}) == 0.0:
            writes += 1
            pace.wrote("p")
        await clock.advance(0.5)
    assert writes == pytest.approx(120, abs=2)


async def test_many_small_changes_apart_cost_no_more_than_three_writes_at_once() -> None:
    """A pod every 5 s for an hour."""
    clock = ManualClock()
    pace, writes = Pace(clock), 0
    for number in range(3600):
        if pace.wait("p", {"offered": {}, "leased": {"cpu": str(number // 5)}}) == 0.0:
            writes += 1
            pace.wrote("p")
        await clock.advance(1)
    assert 100 <= writes <= 123


async def test_status_that_another_client_replaces_is_written_with_a_growing_back_off() -> None:
    """For an hour it names other nodes, and moves the condition, a second after each of our writes."""
    clock = ManualClock(at("2026-01-05 09:00"))
    pace, writes, last_sent = Pace(clock), 0, None
    there = policy()
    for second in range(3600):
        ours = Verdict("", open=True, zone="UTC", nodes=("a", "b"), amounts=amounts(str(second // 600)))
        report = status_change(there, ours, now=clock.now(), last_sent=last_sent)
        assert report is not None
        if not report.repeated or pace.wait_to_repeat("p") == 0.0:
            last_sent, writes = report.status, writes + 1
            there = stored(reported(Verdict("", open=False, zone="UTC", nodes=("a",))))
        await clock.advance(1)
    assert writes < 25


async def test_what_is_new_is_written_at_once_beside_another_writer() -> None:
    ours = Verdict("", open=True, zone="UTC", nodes=("a", "b"))
    first = status_change(policy(), ours, now=NOW)
    assert first is not None and not first.repeated
    theirs = stored(reported(Verdict("", open=True, zone="UTC", nodes=("a",))))
    undone = status_change(theirs, ours, now=NOW, last_sent=first.status)
    assert undone is not None and undone.repeated
    new = status_change(theirs, Verdict("", open=False, zone="UTC", nodes=("a", "b")), now=NOW, last_sent=first.status)
    assert new is not None and not new.repeated


async def test_a_quiet_time_forgets_that_a_status_was_replaced() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    for _ in range(20):
        await clock.advance(pace.wait_to_repeat("p"))
    await clock.advance(1000)
    assert pace.wait_to_repeat("p") == 0.0
    assert pace.wait_to_repeat("p") == 1.0


RESOURCES = ("cpu", "memory", "nvidia.com/gpu")


def some(random: Random) -> Resources:
    return parse_resources({name: str(random.randrange(4)) for name in random.sample(RESOURCES, random.randrange(1, 4))})


@pytest.mark.parametrize("seed", range(10))
def test_sums_are_those_of_the_nodes_put_last(seed: int) -> None:
    random, amounts = Random(seed), PolicyAmounts()
    nodes: dict[str, tuple[str, Resources, Resources]] = {}
    for _ in range(300):
        name, policy = f"node-{random.randrange(8)}", random.choice("ab")
        match random.randrange(4):
            case 0:
                nodes.pop(name, None)
                amounts.remove(name)
            case 1 if name in nodes:
                nodes[name] = (*nodes[name][:2], some(random))
                assert amounts.lease(name, nodes[name][2]) == nodes[name][0]
            case _:
                nodes[name] = (policy, some(random), some(random))
                amounts.put(name, policy=policy, offered=nodes[name][1], leased=nodes[name][2])
    for policy in "ab":
        offered: Resources = {}
        leased: Resources = {}
        for decided_by, node_offered, node_leased in nodes.values():
            if decided_by == policy:
                offered, leased = add_resources(offered, node_offered), add_resources(leased, node_leased)
        found = amounts.of(policy)
        assert format_resources(found.offered) == format_resources(offered)
        assert format_resources(found.leased) == format_resources({name: amount for name, amount in leased.items() if amount})


def test_a_node_that_changes_nothing_is_no_change() -> None:
    amounts, four = PolicyAmounts(), parse_resources({"cpu": "4"})
    assert amounts.put("n", policy="p", offered=four, leased={})
    assert not amounts.put("n", policy="p", offered=four, leased={})
    assert amounts.lease("unknown", four) == ""
