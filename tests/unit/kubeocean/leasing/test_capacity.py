"""Tests of kubeocean.leasing.capacity."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.leasing.capacity import Usage, leased, left_over
from kubeocean.model.crds import ResourceLimit
from kubeocean.worker.cluster import cost_of
from tests.unit.kubeocean.builders import pod
from vkubelet.api.objects import Json, Pod
from vkubelet.api.quantity import ZERO, Quantity, Resources, format_resources, parse_resources


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
    for uid, phase, node, cpu, is_leased in history:
        if phase == "gone":
            usage.remove(uid)
            alive.pop(uid, None)
            continue
        each = asking(str(cpu), uid=uid, phase=phase, node=node)
        usage.put(each, leased=is_leased)
        alive[uid] = each, is_leased
    fresh = Usage()
    for each, is_leased in alive.values():
        fresh.put(each, leased=is_leased)
    for node in ("node-1", "node-2"):
        assert usage.local(node) == fresh.local(node)
        assert usage.leased(node) == fresh.leased(node)


def quantity(text: str) -> Quantity:
    return Quantity.parse(text)


@pytest.mark.parametrize(
    ("allocatable", "used", "limits", "expected"),
    [
        # Figures of Kubeocean (Go).
        (
            {"cpu": "4", "memory": "8Gi"},
            {"cpu": "500m", "memory": "1Gi"},
            [ResourceLimit("cpu", quantity("2")), ResourceLimit("memory", quantity("4Gi"))],
            {"cpu": "2", "memory": "4Gi"},
        ),
        (
            {"cpu": "4", "memory": "8Gi"},
            {"cpu": "1", "memory": "2Gi"},
            [ResourceLimit("cpu", quantity("3"), 50), ResourceLimit("memory", quantity("2Gi"), 75)],
            {"cpu": "1500m", "memory": "2Gi"},
        ),
        ({"cpu": "4", "memory": "8Gi"}, {"cpu": "1", "memory": "1Gi"}, [], {"cpu": "3", "memory": "7Gi"}),
        # Zero can be written in both ways.
        ({"cpu": "4", "memory": "8Gi"}, {}, [ResourceLimit("cpu", percent=0)], {"cpu": "0", "memory": "8Gi"}),
        ({"cpu": "4"}, {}, [ResourceLimit("cpu", quantity("0"))], {"cpu": "0"}),
        # Whole units only, but for thousandths of a CPU.
        ({"nvidia.com/gpu": "3", "pods": "110"}, {}, [ResourceLimit("nvidia.com/gpu", percent=50), ResourceLimit("pods", percent=33)],
         {"nvidia.com/gpu": "1", "pods": "36"}),
        ({"cpu": "1001m"}, {}, [ResourceLimit("cpu", percent=50)], {"cpu": "500m"}),
        ({"memory": "1001"}, {}, [ResourceLimit("memory", percent=50)], {"memory": "500"}),
        # Each limit acts on what those before it left; unknown resources are passed over.
        ({"cpu": "4"}, {}, [ResourceLimit("cpu", percent=50), ResourceLimit("cpu", percent=50), ResourceLimit("x", percent=1)],
         {"cpu": "1"}),
        ({"cpu": "1"}, {"cpu": "3"}, [], {"cpu": "0"}),
    ],
)  # fmt: skip
def test_leased_amounts(allocatable: dict[str, str], used: dict[str, str], limits: list[ResourceLimit], expected: dict[str, str]) -> None:
    amounts = leased(left_over(parse_resources(allocatable), parse_resources(used)), limits)
    assert format_resources(amounts) == expected


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.one_of(st.none(), st.integers(0, 10**6)),
    st.one_of(st.none(), st.integers(0, 100)),
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]),
)
def test_amount_is_between_zero_and_what_is_left(have: int, used: int, most: int | None, percent: int | None, name: str) -> None:
    milli = Quantity.parse(f"{have}m")
    left = left_over({name: milli}, {name: Quantity.parse(f"{used}m")})
    limit = ResourceLimit(name, None if most is None else Quantity.parse(f"{most}m"), percent)
    amount = leased(left, [limit])[name]
    assert ZERO <= amount <= left[name] <= milli
    assert amount == amount.floor("m" if name == "cpu" else "1")


def test_limit_reads_as_in_policy_details() -> None:
    assert str(ResourceLimit("cpu", quantity("4"), 80)) == "cpu=4/80%"
    assert str(ResourceLimit("memory", percent=90)) == "memory=90%"
    assert str(ResourceLimit("memory", quantity("2Gi"))) == "memory=2Gi"
