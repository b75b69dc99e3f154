"""Tests of kubeocean.pods.resize."""

from __future__ import annotations

import pytest

from kubeocean.pods.resize import Pending, Room, resized, unfit
from tests.unit.kubeocean.builders import pod
from vkubelet.api.quantity import parse_resources
from vkubelet.api.shapes import Json

NEVER = Pending("Infeasible", "the virtual node does not lease so much: cpu")
NOT_NOW = Pending("Deferred", "other pods have too much of what the virtual node leases: cpu")


def requesting(cpu: str, memory: str = "1Gi", **more: Json) -> Json:
    return {"containers": [{"name": "main", "image": "a", "resources": {"requests": {"cpu": cpu, "memory": memory}}}], **more}


@pytest.mark.parametrize(
    ("now", "wanted", "others", "expected"),
    [
        ("1", "2", "0", None),
        ("1", "4", "0", None),
        ("1", "4001m", "0", NEVER),
        ("1", "3", "1", None),
        ("1", "3", "1001m", NOT_NOW),
        # What shrinks always may, also where a lease shrank below it.
        ("9", "8", "5", None),
        ("2", "2", "5", None),
    ],
)
def test_pod_grows_within_what_its_virtual_node_leases(now: str, wanted: str, others: str, expected: Pending | None) -> None:
    room = Room(parse_resources({"cpu": "4", "memory": "4Gi"}), parse_resources({"cpu": others}))
    assert unfit(requesting(wanted), requesting(now), room) == expected


def test_only_what_grows_is_looked_at() -> None:
    room = Room(parse_resources({"cpu": "4", "memory": "4Gi"}), parse_resources({"memory": "8Gi"}))
    assert unfit(requesting("2"), requesting("1"), room) is None
    found = unfit(requesting("2", "2Gi"), requesting("1"), room)
    assert found == Pending("Deferred", "other pods have too much of what the virtual node leases: memory")


def test_amounts_are_compared_by_value_and_sidecars_count() -> None:
    sidecar = {"name": "side", "image": "b", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1000m"}}}
    there = requesting("1", initContainers=[sidecar])
    same = requesting("1000m", "1024Mi", initContainers=[{**sidecar, "resources": {"limits": {"cpu": 1}}}])
    assert resized(same, there) == {}
    more = requesting("1", initContainers=[{**sidecar, "resources": {"limits": {"cpu": "2"}}}])
    assert resized(more, there) == {"initContainers": [{"name": "side", "resources": {"limits": {"cpu": "2"}}}]}


def test_what_stands_on_a_pod_is_read_as_it_was_written() -> None:
    note = {"kubeocean.io/resize-pending": str(NOT_NOW)}
    assert Pending.of(pod(annotations=note).metadata) == NOT_NOW
    assert Pending.of(pod().metadata) is None and Pending.of(pod(annotations={"kubeocean.io/resize-pending": "x"}).metadata) is None
