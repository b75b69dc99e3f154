"""Tests of kubeocean.leasing.reclaim."""

from __future__ import annotations

import pytest

from kubeocean.leasing.reclaim import LeasedPod, Reclaim, Step, excess, reclaim, reclaim_order
from tests.unit.kubeocean.builders import at, pod, policy
from vkubelet.api.objects import PodRef
from vkubelet.api.quantity import parse_resources

NINE = at("2026-01-05 09:00")


def leased(name: str, *, priority: int = 0, created: str = "2026-01-01T00:00:00Z", exempt: bool = False, **requests: str) -> LeasedPod:
    ref = PodRef("default", name, name, "v")
    return LeasedPod(ref=ref, priority=priority, created=created, requests=parse_resources(requests), exempt=exempt)


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
    assert reclaim(ended, since=NINE, instant=at(instant)) == expected


def test_lowest_priority_goes_first_then_the_youngest_and_exempt_ones_stay() -> None:
    pods = [
        leased("old", created="2026-01-01T00:00:00Z"),
        leased("young", created="2026-01-02T00:00:00Z"),
        leased("low", priority=-5, created="2025-01-01T00:00:00Z"),
        leased("high", priority=5, created="2026-01-03T00:00:00Z"),
        leased("exempt", priority=-9, exempt=True),
    ]
    assert names(reclaim_order(pods)) == ["low", "young", "old", "high"]


def test_excess_is_no_more_than_it_takes_and_only_what_holds_the_short_resource() -> None:
    pods = [leased("memory-only", priority=-9, memory="1Gi"), leased("a", cpu="1"), leased("b", priority=1, cpu="2"), leased("c", cpu="1")]
    assert names(excess(pods, parse_resources({"cpu": "4", "memory": "1Gi"}))) == []
    assert names(excess(pods, parse_resources({"cpu": "3", "memory": "1Gi"}))) == ["c"]
    assert names(excess(pods, parse_resources({"cpu": "2500m", "memory": "1Gi"}))) == ["c", "a"]
    assert names(excess(pods, parse_resources({"cpu": "0", "memory": "1Gi"}))) == ["c", "a", "b"]


def test_exempt_pods_count_but_are_not_named() -> None:
    pods = [leased("exempt", cpu="3", exempt=True), leased("a", cpu="1")]
    assert names(excess(pods, parse_resources({"cpu": "2"}))) == ["a"]


def test_resource_that_is_leased_no_more_is_short_altogether() -> None:
    assert names(excess([leased("gpu", **{"nvidia.com/gpu": "1"}), leased("a", cpu="1")], parse_resources({"cpu": "4"}))) == ["gpu"]


def test_leased_pod_of_a_virtual_pod() -> None:
    spec = {
        "priority": 7,
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        "tolerations": [{"key": "kubeocean.io/out-of-time-windows", "operator": "Exists"}],
    }
    found = LeasedPod.of(pod(spec, creationTimestamp="2026-01-01T00:00:00Z"))
    assert (found.priority, found.exempt, found.requests) == (7, True, parse_resources({"cpu": "1", "pods": "1"}))
    assert not LeasedPod.of(pod({"tolerations": [{"operator": "Exists"}]})).exempt
