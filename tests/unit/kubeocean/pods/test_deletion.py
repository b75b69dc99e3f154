"""Tests of kubeocean.pods.deletion."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubeocean.pods.deletion import OUT_OF_SERVICE, PhysicalPodDeleter, grace_in_worker
from kubeocean.pods.physical import PhysicalPodReconciler
from tests.faults.model.server import ApiModel
from tests.unit.kubeocean.builders import at, node, pod, worker_scope
from vkubelet.api.objects import PODS, Key, Node, Pod
from vkubelet.clock import rfc3339
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost

NOW = at("2026-01-05 12:00")


def deleted(grace: int) -> Pod:
    """A virtual pod whose deletion was asked for with this grace, which has expired."""
    return pod(deletionTimestamp=rfc3339(NOW - timedelta(seconds=1)), deletionGracePeriodSeconds=grace)


def machine(ready: str, *, seconds: float = 0, out_of_service: bool = False) -> Node:
    """A physical node whose Ready condition has been `ready` for `seconds`."""
    taints = [{"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}] if out_of_service else []
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": rfc3339(NOW - timedelta(seconds=seconds))}
    return node({"taints": taints}, status={"conditions": [condition]})


SILENT = machine("Unknown", seconds=90)


@pytest.mark.parametrize(
    ("what", "virtual", "physical", "seconds"),
    [
        ("an ordinary grace has expired on a silent node", deleted(30), SILENT, 1),
        ("an ordinary grace has expired on a node that answers", deleted(30), machine("True"), 1),
        ("the process takes its pods along", pod(), SILENT, 1),
        ("forced, the node answers", deleted(0), machine("True", seconds=90), 1),
        ("forced, the node has just fallen silent", deleted(0), machine("Unknown", seconds=59), 1),
        ("forced, the node has been silent for more than a minute", deleted(0), SILENT, 0),
        ("the hub has deleted the object, the node is silent", None, SILENT, 0),
        ("the hub has deleted the object, the node answers", None, machine("True"), 1),
        ("the physical node is deleted", deleted(30), None, 0),
        ("the physical node is out of service", deleted(30), machine("Unknown", out_of_service=True), 0),
        ("a node that answers is not out of service, whatever taint it has", deleted(30), machine("True", out_of_service=True), 1),
        ("the physical node has never reported", deleted(0), node(), 1),
    ],
)
def test_expired_grace_becomes_zero_only_after_force_or_with_the_node(
    what: str, virtual: Pod | None, physical: Node | None, seconds: int
) -> None:
    assert grace_in_worker(0.0, pod=virtual, node=physical, now=NOW) == seconds, what


@given(
    grace=st.floats(min_value=-10, max_value=1e6),
    asked=st.integers(min_value=1, max_value=10**6),
    ready=st.sampled_from(["True", "False", "Unknown"]),
    seconds=st.floats(min_value=0, max_value=1e6),
)
@example(grace=0.0, asked=30, ready="Unknown", seconds=1e6)
def test_no_ordinary_deletion_removes_a_pod_of_a_node_that_exists(grace: float, asked: int, ready: str, seconds: float) -> None:
    assert grace_in_worker(grace, pod=deleted(asked), node=machine(ready, seconds=seconds), now=NOW) >= 1


def test_grace_that_is_left_is_rounded_up_whatever_became_of_the_node() -> None:
    assert [grace_in_worker(left, pod=deleted(30), node=None, now=NOW) for left in (0.1, 29.2, 30.0)] == [1, 30, 30]


async def repeated(first: float, *, after: float, then: float, skew: float = 0.0, unseen: bool = False) -> int:
    """Requests the deletion of a running physical pod twice, the second time with an `unseen` first one; returns its grace period.

    The worker's clock is `skew` seconds ahead.
    """
    clock = ManualClock(NOW)
    model = ApiModel(now=lambda: clock.now() + timedelta(seconds=skew))
    body = {"metadata": {"name": "web"}, "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "app:1"}]}}
    model.call("POST", "/api/v1/nodes", {"metadata": {"name": "node-1"}}, user="owner")
    model.call("POST", "/api/v1/namespaces", {"metadata": {"name": "mnt"}}, user="owner")
    model.call("POST", "/api/v1/namespaces/mnt/pods", body, user="owner")
    client = model.client("kubeocean", clock=clock)
    scope = worker_scope(RecordingHost(client=client, clock=clock))
    deleter = PhysicalPodDeleter(scope=scope, physical=PhysicalPodReconciler(scope=scope, released=lambda pod: None))
    cached = await client.get(PODS, Key("mnt", "web"))
    for seconds, grace in ((0.0, first), (after, then)):
        await clock.advance(seconds)
        await deleter.delete(pod().ref, cached if unseen else await client.get(PODS, Key("mnt", "web")), grace)
    left = (await client.get(PODS, Key("mnt", "web"))).metadata.deletion_grace_period_seconds
    assert left is not None
    return left


@pytest.mark.parametrize("skew", [0.0, 0.4, -0.4, 3600.0])
async def test_repeated_deletion_leaves_the_rest_of_the_grace_period(skew: float) -> None:
    assert await repeated(10.0, after=5.2, then=4.8, skew=skew) == 10


async def test_repeated_deletion_leaves_the_rest_also_if_the_watch_does_not_show_the_first() -> None:
    assert await repeated(30.0, after=5.2, then=24.8, unseen=True) == 30


async def test_shorter_deletion_counts_from_the_first_request() -> None:
    assert await repeated(60.0, after=10.0, then=5.0) == 15


async def test_expired_grace_period_ends_a_longer_one_at_once() -> None:
    assert await repeated(3600.0, after=30.0, then=0.0) == 1


async def test_deletion_of_a_pod_that_no_longer_exists_is_not_remembered() -> None:
    """The watch may have shown the end of the pod before its deletion was requested, so nothing else would forget it."""
    clock = ManualClock(NOW)
    model = ApiModel(now=clock.now)
    model.call("POST", "/api/v1/namespaces", {"metadata": {"name": "mnt"}}, user="owner")
    client = model.client("kubeocean", clock=clock)
    scope = worker_scope(RecordingHost(client=client, clock=clock))
    deleter = PhysicalPodDeleter(scope=scope, physical=PhysicalPodReconciler(scope=scope, released=lambda pod: None))
    body = {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "main", "image": "app:1"}]}}

    async def physical() -> Pod:
        model.call("POST", "/api/v1/namespaces/mnt/pods", body, user="owner")
        return await client.get(PODS, Key("mnt", "web"))

    gone = await physical()
    await deleter.delete(pod().ref, gone, 30.0)
    assert deleter._requested == {gone.key: gone.metadata.uid}, "the watch will show it"
    await deleter.delete(pod().ref, gone, 30.0)
    assert deleter._requested == {}, "a live read has shown it"
    await deleter.delete(pod().ref, gone, 30.0)
    assert deleter._requested == {}, "not found"
    await physical()
    await deleter.delete(pod().ref, gone, 30.0)
    assert deleter._requested == {}, "conflict with a pod of another UID"
