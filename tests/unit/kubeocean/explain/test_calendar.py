"""The calendar of `kubeocean plan` agrees with what the deciding code then does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from attrs import evolve
from hypothesis import HealthCheck, Phase, given, settings

from kubeocean.explain.budgets import Budgets
from kubeocean.explain.calendar import Calendar, Offer, calendar, window_edges
from kubeocean.explain.lease import Lease, LeasedNode
from kubeocean.leasing.policy import NodeFacts
from kubeocean.leasing.reclaim import LeasedPod
from kubeocean.model.crds import ResourceLeasingPolicy
from kubeocean.model.windows import is_open
from tests.unit.kubeocean.builders import at, limit, pod, policy
from tests.unit.kubeocean.explain.leases import GRID, TERMS, Observer, Sample, changes, samples
from vkubelet.api.quantity import add_resources, format_resources, parse_resources

AHEAD = 150
"""Instants of the grid that are foretold: a day and an hour."""
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without shrinking, which would repeat two days of decisions thousands of times."""


def foretold_changes(made: Calendar) -> set[object]:
    return {
        (edge.at, tuple(each.nodes), _state(each.before), tuple(_amounts(each.before)), _state(each.after), tuple(_amounts(each.after)))
        for edge in made.edges
        for each in edge.changes
    }


def observed_changes(observer: Observer, start: datetime) -> set[object]:
    """The changes of the nodes since the start, those of one instant and kind together."""
    groups = defaultdict(list)
    for when, name, before, after in changes(observer.offers):
        if when > start:
            groups[when, _state(before), _state(after)].append((name, before, after))
    found = set()
    for (when, old, new), group in groups.items():
        sums = [parse_resources({}), parse_resources({})]
        for _, before, after in group:
            sums = [add_resources(sums[0], before.amounts), add_resources(sums[1], after.amounts)]
        names = tuple(sorted(name for name, _, _ in group))
        found.add(
            (when, names, old, tuple(sorted(format_resources(sums[0]).items())), new, tuple(sorted(format_resources(sums[1]).items())))
        )
    return found


def _state(offer: Offer) -> tuple[object, ...]:
    return (offer.policy, offer.open, offer.effect)


def _amounts(offer: Offer) -> list[tuple[str, str]]:
    return sorted(format_resources(offer.amounts).items())


@settings(max_examples=200, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(samples())
def test_evictions_amounts_and_times_foretold_are_those_observed(sample: Sample) -> None:
    observer = Observer(sample)
    observer.run(sample.before)
    lease, already = observer.lease(), len(observer.evictions)
    made = calendar(lease, start=sample.start, until=sample.start + GRID * (AHEAD - 1))
    observer.run(AHEAD)
    assert foretold_changes(made) == observed_changes(observer, sample.start)
    foretold = {(each.at, each.node, each.pod, each.deadline, each.why) for each in made.evictions}
    assert foretold == {(each.at, each.node, *each.what) for each in observer.evictions[already:]}
    assert len(foretold) == len(made.evictions), "no pod is evicted twice"


@settings(max_examples=30, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(samples())
def test_window_edges_are_the_instants_at_which_a_policy_opens_or_closes(sample: Sample) -> None:
    observer = Observer(sample)
    lease = observer.lease()
    for each in sample.policies:
        found = dict(window_edges(lease, each, start=sample.start, until=sample.start + GRID * (AHEAD - 1)))
        zone = TERMS.zone_for(each)
        states = {sample.start + GRID * number: is_open(each.windows, zone, sample.start + GRID * number) for number in range(AHEAD)}
        assert found == {when: state for when, state in states.items() if when > sample.start and states[when - GRID] != state}


# --- One by one ---------------------------------------------------------------------------------------------------------------------------


def lease(*policies: ResourceLeasingPolicy, pods: int = 2) -> Lease:
    """A node of four cores with pods of one core each."""
    spec = {"containers": [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}
    leased = [LeasedPod.of(pod(spec, name=f"web-{n}", uid=f"u{n}", creationTimestamp=f"2026-01-01T00:00:0{n}Z")) for n in range(pods)]
    facts = NodeFacts("node-1", {}, parse_resources({"cpu": "4", "pods": "110"}))
    return Lease(terms=TERMS, policies=policies, nodes=[LeasedNode(facts=facts, virtual="v", used={}, pods=leased)])


NIGHT = policy(
    "night",
    {"timeWindows": [{"start": "20:00", "end": "07:59"}], "forceReclaim": True, "gracefulReclaimPeriodSeconds": 600},
    uid="night",
)
DAY = policy("day", {"timeWindows": [{"start": "08:00", "end": "19:59"}], "resourceLimits": [limit("cpu", percent=25)]}, uid="day")


def of_a_day(lease: Lease, start: str = "2026-01-05 07:00") -> Calendar:
    return calendar(lease, start=at(start), until=at(start) + timedelta(days=1))


def test_a_window_that_closes_evicts_all_pods_with_the_grace_of_its_policy() -> None:
    made = of_a_day(lease(NIGHT))
    closes, grace, opens = made.edges
    assert (closes.at, closes.closes, grace.at, opens.opens) == (at("2026-01-05 08:00"), ["night"], at("2026-01-05 08:10"), ["night"])
    assert [(each.pod.name, each.deadline) for each in closes.evictions] == [
        ("web-1", at("2026-01-05 08:10")),
        ("web-0", at("2026-01-05 08:10")),
    ]
    assert [(each.before.open, each.after.open, each.after.effect) for each in closes.changes] == [(True, False, "NoSchedule")]
    assert grace.changes[0].after.effect == "NoExecute" and not grace.evictions


def test_a_hand_over_to_a_smaller_policy_evicts_only_the_excess() -> None:
    made = of_a_day(lease(NIGHT, DAY))
    handed, back = made.edges
    assert (handed.opens, handed.closes, back.opens, back.closes) == (["day"], ["night"], ["night"], ["day"])
    (change,) = handed.changes
    assert (change.before.policy, change.after.policy) == ("night", "day")
    assert (format_resources(change.before.amounts)["cpu"], format_resources(change.after.amounts)["cpu"]) == ("4", "1")
    assert [(each.pod.name, each.deadline) for each in handed.evictions] == [("web-1", at("2026-01-05 08:10"))]


def test_a_deadline_is_marked_where_the_node_changes_before_it() -> None:
    """Its pods are blocked by budgets that are not read: a pod that is still there at 08:05 is decided about again."""
    soon = policy("soon", {"timeWindows": [{"start": "08:05", "end": "08:07"}], "priority": 1}, uid="soon")
    closes = of_a_day(lease(NIGHT, soon)).edges[0]
    assert [(each.deadline, each.decided_again) for each in closes.evictions] == [(at("2026-01-05 08:10"), at("2026-01-05 08:05"))] * 2
    alone = of_a_day(lease(NIGHT)).edges[0]
    assert [each.decided_again for each in alone.evictions] == [None, None], "that the grace period ends is no other decision"
    late = policy("late", {"timeWindows": [{"start": "08:10", "end": "08:20"}]}, uid="late")
    assert {each.decided_again for each in of_a_day(lease(NIGHT, late)).edges[0].evictions} == {at("2026-01-05 08:10")}


# --- Budgets ------------------------------------------------------------------------------------------------------------------------------


def guarded(*policies: ResourceLeasingPolicy, allows: int, pods: Sequence[str] = ("u0", "u1")) -> Lease:
    """The same, with a budget that counts some of the pods."""
    return evolve(lease(*policies), budgets=Budgets(of_pod=dict.fromkeys(pods, "default/web"), allowed={"default/web": allows}))


def test_a_pod_that_a_budget_blocks_leaves_at_its_deadline() -> None:
    closes, *_ = of_a_day(guarded(NIGHT, allows=0, pods=["u1"])).edges
    assert [(each.pod.name, each.blocked_by, each.allows, each.deadline, each.stays) for each in closes.evictions] == [
        ("web-0", "", 0, at("2026-01-05 08:10"), None),
        ("web-1", "default/web", 0, at("2026-01-05 08:10"), None),
    ]


def test_a_blocked_pod_may_stay_once_its_node_opens_again() -> None:
    soon = policy("soon", {"timeWindows": [{"start": "08:05", "end": "08:20"}], "priority": 1}, uid="soon")
    made = of_a_day(guarded(NIGHT, soon, allows=0, pods=["u1"]))
    (blocked,) = (each for each in made.evictions if each.blocked_by)
    assert (blocked.at, blocked.stays, blocked.decided_again) == (at("2026-01-05 08:00"), at("2026-01-05 08:05"), None)
    assert [each.decided_again for each in made.evictions if not each.blocked_by] == [None], "it has left at 08:00"


def test_a_change_at_the_deadline_of_a_blocked_pod_is_marked() -> None:
    """Whether the process deletes the pod or decides about its node first is not known."""
    late = policy("late", {"timeWindows": [{"start": "08:10", "end": "08:20"}]}, uid="late")
    found = of_a_day(guarded(NIGHT, late, allows=0)).edges[0].evictions
    assert {(each.blocked_by, each.deadline, each.stays, each.decided_again) for each in found} == {
        ("default/web", at("2026-01-05 08:10"), None, at("2026-01-05 08:10"))
    }
    assert {each.decided_again for each in of_a_day(guarded(NIGHT, allows=0)).edges[0].evictions} == {None}


def test_a_blocked_pod_gets_the_deadline_of_the_policy_that_decides_last() -> None:
    """The window of another policy opens for two minutes, offers nothing, and evicts with a longer grace when it closes."""
    nothing = {"resourceLimits": [limit("cpu", percent=0)], "forceReclaim": True, "gracefulReclaimPeriodSeconds": 1800}
    soon = policy("soon", {"timeWindows": [{"start": "08:05", "end": "08:06"}], "priority": 1, **nothing}, uid="soon")
    made = of_a_day(guarded(NIGHT, soon, allows=0))
    assert [(each.at, each.blocked_by, each.deadline) for each in made.evictions] == [
        (at("2026-01-05 08:00"), "default/web", at("2026-01-05 08:37"))
    ] * 2


def test_a_blocked_pod_occupies_its_node_and_the_next_edge_evicts_another() -> None:
    """At 08:00 only one pod fits; the younger one is blocked, and no other pod leaves in its place."""
    made = of_a_day(guarded(NIGHT, DAY, allows=0, pods=["u1"]))
    assert [(each.pod.name, each.blocked_by, each.deadline) for each in made.evictions] == [
        ("web-1", "default/web", at("2026-01-05 08:10"))
    ]


def test_a_budget_that_allows_some_lets_as_many_go_at_once() -> None:
    soon = policy("soon", {"timeWindows": [{"start": "08:05", "end": "08:07"}], "priority": 1}, uid="soon")
    found = of_a_day(guarded(NIGHT, soon, allows=1)).edges[0].evictions
    assert [(each.pod.name, each.blocked_by, each.allows, each.decided_again) for each in found] == [
        ("web-1", "", 0, None),
        ("web-0", "default/web", 1, at("2026-01-05 08:05")),
    ]


def test_a_deletion_without_a_grace_period_asks_no_budget() -> None:
    at_once = policy("night", {"timeWindows": [{"start": "20:00", "end": "07:59"}], "forceReclaim": True}, uid="night")
    assert [each.blocked_by for each in of_a_day(guarded(at_once, allows=0)).evictions] == ["", ""]


# --- One by one ---------------------------------------------------------------------------------------------------------------------------


def test_changes_after_the_calendar_count_for_deadlines_in_it() -> None:
    soon = policy("soon", {"timeWindows": [{"start": "08:05", "end": "08:07"}], "priority": 1}, uid="soon")
    made = calendar(lease(NIGHT, soon), start=at("2026-01-05 07:00"), until=at("2026-01-05 08:02"))
    assert [edge.at for edge in made.edges] == [at("2026-01-05 08:00")]
    assert {each.decided_again for each in made.evictions} == {at("2026-01-05 08:05")}


def test_a_policy_without_windows_has_no_edges() -> None:
    assert of_a_day(lease(policy("always"))).edges == []


def test_windows_of_a_policy_that_decides_about_no_node_are_in_the_calendar() -> None:
    shadowed = policy("shadowed", {"timeWindows": [{"start": "08:00", "end": "08:59"}], "priority": -5}, uid="s")
    made = of_a_day(lease(policy("always"), shadowed))
    seen = [(list(edge.opens), list(edge.closes), list(edge.changes)) for edge in made.edges]
    assert seen == [(["shadowed"], [], []), ([], ["shadowed"], [])]


def test_the_calendar_of_one_policy_has_only_edges_that_concern_it() -> None:
    other = policy("other", {"timeWindows": [{"start": "10:00", "end": "10:59"}], "priority": -5}, uid="o")
    made = of_a_day(lease(NIGHT, DAY, other))
    assert {edge.at.hour for edge in made.of("day").edges} == {8, 20} and {edge.at.hour for edge in made.of("other").edges} == {10, 11}


def test_invalid_and_deleted_policies_have_no_windows() -> None:
    broken = policy("broken", {"timeWindows": [{"start": "8", "end": "9"}]})
    gone = policy("gone", {"timeWindows": [{"start": "10:00", "end": "11:00"}]}, deletionTimestamp="2026-01-01T00:00:00Z")
    assert of_a_day(lease(broken, gone)).edges == []
