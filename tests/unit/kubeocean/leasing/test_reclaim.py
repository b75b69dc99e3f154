"""Tests of kubeocean.leasing.reclaim."""

from __future__ import annotations

from random import Random

import pytest

from kubeocean.leasing.reclaim import LeasedPod, Reclaim, ReclaimRules, Step, excess, reclaim, reclaim_order, shortage
from tests.unit.kubeocean.builders import at, pod, policy
from vkubelet.api.objects import Json, PodRef
from vkubelet.api.quantity import parse_resources

STRICT, LENIENT = ReclaimRules(force=True), ReclaimRules(force=True, allow_out_of_window_pods=True)
CLOSED = "kubeocean.io/out-of-time-windows"
NINE = at("2026-01-05 09:00")


def leased(name: str, *, priority: int = 0, created: str = "2026-01-01T00:00:00Z", tolerant: bool = False, **requests: str) -> LeasedPod:
    ref = PodRef("default", name, name, "v")
    return LeasedPod(ref=ref, priority=priority, created=created, requests=parse_resources(requests), tolerates_closed=tolerant)


def names(pods: list[LeasedPod]) -> list[str]:
    return [each.ref.name for each in pods]


@pytest.mark.parametrize(
    ("force", "grace", "instant", "expected"),
    [
        (False, 0, "2026-01-05 10:00", Reclaim(Step.NOTHING)),
        (True, 0, "2026-01-05 09:00", Reclaim(Step.DELETE, NINE)),
        (True, 60, "2026-01-05 09:00:59", Reclaim(Step.EVICT, at("2026-01-05 09:01"))),
        (True, 60, "2026-01-05 09:01:00", Reclaim(Step.DELETE, at("2026-01-05 09:01"))),
    ],
)
def test_reclaim_evicts_during_the_grace_and_deletes_after_it(force: bool, grace: int, instant: str, expected: Reclaim) -> None:
    ended = policy(spec={"forceReclaim": force, "gracefulReclaimPeriodSeconds": grace})
    assert reclaim(ReclaimRules.of(ended), since=NINE, instant=at(instant)) == expected


def test_lowest_priority_goes_first_then_the_youngest_and_pods_that_may_stay_do() -> None:
    pods = [
        leased("old", created="2026-01-01T00:00:00Z"),
        leased("young", created="2026-01-02T00:00:00Z"),
        leased("low", priority=-5, created="2025-01-01T00:00:00Z"),
        leased("high", priority=5, created="2026-01-03T00:00:00Z"),
        leased("tolerant", priority=-9, tolerant=True),
    ]
    assert names(reclaim_order(pods, LENIENT)) == ["low", "young", "old", "high"]
    assert names(reclaim_order(pods, STRICT))[0] == "tolerant"


def test_excess_is_no_more_than_it_takes_and_only_what_holds_the_short_resource() -> None:
    pods = [leased("memory-only", priority=-9, memory="1Gi"), leased("a", cpu="1"), leased("b", priority=1, cpu="2"), leased("c", cpu="1")]
    assert names(excess(pods, parse_resources({"cpu": "4", "memory": "1Gi"}), STRICT)) == []
    assert names(excess(pods, parse_resources({"cpu": "3", "memory": "1Gi"}), STRICT)) == ["c"]
    assert names(excess(pods, parse_resources({"cpu": "2500m", "memory": "1Gi"}), STRICT)) == ["c", "a"]
    assert names(excess(pods, parse_resources({"cpu": "0", "memory": "1Gi"}), STRICT)) == ["c", "a", "b"]


def test_pods_that_may_stay_count_but_are_not_named() -> None:
    pods = [leased("tolerant", cpu="3", tolerant=True), leased("a", cpu="1")]
    assert names(excess(pods, parse_resources({"cpu": "2"}), LENIENT)) == ["a"]
    assert names(excess(pods, parse_resources({"cpu": "2"}), STRICT)) == ["tolerant"]


def test_a_small_pod_is_spared_when_a_larger_one_has_to_go_anyway() -> None:
    pods = [
        leased("old-small", cpu="100m"),
        leased("young-small", cpu="100m", created="2026-01-01T00:00:02Z"),
        leased("big", cpu="2", created="2026-01-01T00:00:01Z"),
        leased("keep", priority=5, cpu="1"),
    ]
    assert names(excess(pods, parse_resources({"cpu": "1200m"}), STRICT)) == ["big"]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_named_can_be_spared_and_the_others_fit(seed: int) -> None:
    random = Random(seed)
    pods = [
        leased(
            f"p{n}",
            priority=random.randrange(3),
            created=f"2026-01-01T00:00:{n:02}Z",
            cpu=str(random.randrange(5)),
            memory=str(random.randrange(5)),
        )
        for n in range(12)
    ]
    amounts = parse_resources({"cpu": str(random.randrange(20)), "memory": str(random.randrange(20))})
    chosen = excess(pods, amounts, STRICT)
    kept = [pod for pod in pods if pod not in chosen]
    assert not shortage(kept, amounts)
    assert all(shortage([*kept, pod], amounts) for pod in chosen)


def test_resource_that_is_leased_no_more_is_short_altogether() -> None:
    assert names(excess([leased("gpu", **{"nvidia.com/gpu": "1"}), leased("a", cpu="1")], parse_resources({"cpu": "4"}), STRICT)) == ["gpu"]


def test_leased_pod_of_a_virtual_pod() -> None:
    spec = {"priority": 7, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    found = LeasedPod.of(pod(spec, creationTimestamp="2026-01-01T00:00:00Z"))
    assert (found.priority, found.tolerates_closed, found.requests) == (7, False, parse_resources({"cpu": "1", "pods": "1"}))


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"key": CLOSED, "operator": "Exists"}, True),
        ({"key": CLOSED, "operator": "Equal", "value": "true", "effect": "NoExecute"}, True),
        ({"operator": "Exists"}, True),
        ({"key": CLOSED, "operator": "Exists", "tolerationSeconds": 60}, False),
        ({"key": CLOSED, "operator": "Exists", "effect": "NoSchedule"}, False),
        ({"key": CLOSED, "value": "other"}, False),
        ({"key": "kubeocean.io/vnode", "operator": "Exists"}, False),
    ],
)
def test_a_toleration_counts_as_in_kubernetes_if_it_has_no_end(toleration: Json, tolerates: bool) -> None:
    assert LeasedPod.of(pod({"tolerations": [toleration]})).tolerates_closed is tolerates
