"""Tests of kubeocean.leasing.usage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.leasing.usage import Usage
from kubeocean.worker.cluster import cost_of
from tests.unit.kubeocean.builders import pod
from vkubelet.api.objects import Pod
from vkubelet.api.quantity import Resources, format_resources
from vkubelet.api.shapes import Json


def container(cpu: str = "", memory: str = "", **more: object) -> Json:
    requests = {name: amount for name, amount in (("cpu", cpu), ("memory", memory)) if amount}
    return {"name": "c", "resources": {"requests": requests}, **more}


def asking(cpu: str, *, uid: str = "uid-1", phase: str = "Running", node: str = "node-1") -> Pod:
    return pod({"nodeName": node, "containers": [container(cpu)]}, uid=uid, status={"phase": phase})


def text(amounts: Resources) -> dict[str, str]:
    return format_resources(amounts)


def test_running_and_pending_pods_count_and_finished_ones_do_not() -> None:
    usage = Usage()
    assert usage.put(asking("1"), leased=False) == {"node-1"}
    assert usage.put(asking("2", uid="uid-2", phase="Pending"), leased=False) == {"node-1"}
    assert usage.put(asking("4", uid="uid-3", phase="Succeeded"), leased=False) == frozenset()
    assert text(usage.local("node-1")) == {"cpu": "3", "pods": "2"}
    assert usage.put(asking("1", phase="Failed"), leased=False) == {"node-1"}
    assert text(usage.local("node-1")) == {"cpu": "2", "pods": "1"}


def test_leased_pods_are_counted_apart() -> None:
    usage = Usage()
    usage.put(asking("1"), leased=False)
    usage.put(asking("2", uid="uid-2"), leased=True)
    assert text(usage.local("node-1")) == {"cpu": "1", "pods": "1"}
    assert text(usage.leased("node-1")) == {"cpu": "2", "pods": "1"}


def test_pod_that_changes_hands_changes_sums() -> None:
    usage = Usage()
    usage.put(asking("1"), leased=True)
    assert usage.put(asking("1"), leased=False) == {"node-1"}
    assert text(usage.local("node-1")) == {"cpu": "1", "pods": "1"}
    assert not usage.leased("node-1")


def test_same_pod_again_changes_nothing() -> None:
    usage = Usage()
    usage.put(asking("1"), leased=False)
    assert usage.put(asking("1"), leased=False) == frozenset()
    assert usage.put(asking("2"), leased=False) == {"node-1"}
    assert text(usage.local("node-1")) == {"cpu": "2", "pods": "1"}


def test_pod_counts_only_once_it_is_bound() -> None:
    usage = Usage()
    assert usage.put(asking("1", node=""), leased=False) == frozenset()
    assert usage.put(asking("1", node="node-2"), leased=False) == {"node-2"}
    assert usage.remove("uid-1") == {"node-2"}
    assert usage.remove("uid-1") == frozenset()
    assert not usage.local("node-2")


@pytest.mark.parametrize("keep", [lambda pod: pod, cost_of], ids=["all of it", "its cost"])
def test_a_local_pod_counts_with_what_its_kubelet_holds_for_it(keep: Callable[[Pod], Pod]) -> None:
    entry = {"name": "c", "allocatedResources": {"cpu": "4"}, "resources": {"requests": {"cpu": "4"}}}
    refused = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    status = {"phase": "Running", "containerStatuses": [entry], "conditions": [refused]}
    usage = Usage()
    usage.put(keep(pod({"nodeName": "node-1", "containers": [container("64")]}, status=status)), leased=False)
    assert text(usage.local("node-1"))["cpu"] == "4"
    usage.put(keep(pod({"nodeName": "node-1", "containers": [container("1")]}, status={**status, "conditions": []})), leased=False)
    assert text(usage.local("node-1"))["cpu"] == "4"


steps = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["Running", "Pending", "Succeeded", "gone"]),
        st.sampled_from(["node-1", "node-2", ""]),
        st.integers(0, 3),
        st.booleans(),
    )
)


@given(steps)
def test_sums_equal_a_fresh_count_after_any_history(history: list[tuple[str, str, str, int, bool]]) -> None:
    usage, alive = Usage(), dict[str, tuple[Pod, bool]]()
    for uid, phase, node, cpu, leased in history:
        if phase == "gone":
            usage.remove(uid)
            alive.pop(uid, None)
            continue
        each = asking(str(cpu), uid=uid, phase=phase, node=node)
        usage.put(each, leased=leased)
        alive[uid] = each, leased
    fresh = Usage()
    for each, leased in alive.values():
        fresh.put(each, leased=leased)
    for node in ("node-1", "node-2"):
        assert usage.local(node) == fresh.local(node)
        assert usage.leased(node) == fresh.leased(node)
