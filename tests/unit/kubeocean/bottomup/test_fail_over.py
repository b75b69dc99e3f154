"""When a silent worker is given up, and which pods leave."""

from __future__ import annotations

import asyncio

import pytest

from kubeocean.bottomup.binding import BindingReconciler
from kubeocean.bottomup.fail_over import FailOver, FailOverParts, is_due, leaving
from kubeocean.bottomup.reclaim import Reclaimer
from kubeocean.bottomup.virtual_nodes import VirtualNodes
from kubeocean.worker import Reach
from tests.support.stall import stall_meter
from tests.unit.kubeocean.builders import binding, pod
from tests.unit.kubeocean.crowd import PODS, CrowdedHost
from vkubelet.api.shapes import Json
from vkubelet.provider import NodeDescription
from vkubelet.testing.clock import ManualClock

FAIL_OVER = {"onUnreachable": {"mode": "FailOver", "afterSeconds": 60}}
UNREACHABLE = "node.kubernetes.io/unreachable"


def silent(clock: ManualClock, *, error: str = "no route") -> Reach:
    """A worker that was lost and has not answered for a minute."""
    reach = Reach(clock, lost_after=40)
    if error:
        reach.failed(error)
    reach.lost = True
    return reach


async def test_a_worker_is_given_up_after_the_time_that_the_binding_names() -> None:
    clock = ManualClock()
    reach = silent(clock)
    await clock.advance(59)
    assert not is_due(binding(FAIL_OVER), reach)
    await clock.advance(1)
    assert is_due(binding(FAIL_OVER), reach)
    assert not is_due(binding({"onUnreachable": {"mode": "Hold"}}), reach)
    reach.answered()
    assert not is_due(binding(FAIL_OVER), reach)


async def test_a_worker_that_nobody_asked_is_not_given_up() -> None:
    clock = ManualClock()
    reach = silent(clock, error="")
    await clock.advance(600)
    assert not is_due(binding(FAIL_OVER), reach)


async def test_a_process_that_starts_amid_an_outage_counts_anew() -> None:
    """While none ran nobody asked the worker: what an earlier one saw may have passed."""
    clock = ManualClock()
    earlier = silent(clock)
    await clock.advance(60)
    later = silent(clock)
    assert is_due(binding(FAIL_OVER), earlier) and not is_due(binding(FAIL_OVER), later)
    await clock.advance(60)
    assert is_due(binding(FAIL_OVER), later)


@pytest.mark.parametrize(
    ("toleration", "leaves"),
    [
        ({"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}, True),
        ({"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": UNREACHABLE, "operator": "Exists"}, False),
        ({"operator": "Exists"}, False),
        ({"key": UNREACHABLE, "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "kubeocean.io/vnode", "operator": "Exists"}, True),
    ],
)
def test_only_what_tolerates_an_unreachable_node_for_ever_stays(toleration: Json, leaves: bool) -> None:
    one = pod({"tolerations": [toleration]})
    assert leaving([one]) == ([one] if leaves else [])


def test_what_has_ended_or_ends_is_left_alone() -> None:
    ended = pod(status={"phase": "Succeeded"})
    ends = pod(deletionTimestamp="2026-01-05T09:00:00Z")
    assert leaving([ended, ends]) == []


class Outage:
    """A silent worker of many nodes, whose binding asks for failing over."""

    def __init__(self, nodes: int) -> None:
        self.host = CrowdedHost(nodes)
        virtual = VirtualNodes(self.host)
        for name in self.host.names:
            virtual.declare(NodeDescription(name, {"cpu": "4"}), physical_name=name, physical_uid=name)
        served = BindingReconciler(self.host, "demo")
        served.current = binding(FAIL_OVER)
        self.reach = Reach(self.host.clock, lost_after=40)
        self.reclaimer = Reclaimer(self.host, per_second=10)
        parts = FailOverParts(host=self.host, binding=served, virtual=virtual, reach=self.reach, reclaimer=self.reclaimer)
        self.fail_over = FailOver(parts)

    async def last(self, seconds: float) -> None:
        """The worker stays silent for so long."""
        for _ in range(2):
            self.reach.failed("no route")
            await self.host.manual_clock.advance(seconds / 2)
        self.reach.failed("no route")
        self.reach.lost = True


async def test_other_tasks_run_between_the_nodes_that_fail_over() -> None:
    outage = Outage(100)
    await outage.last(120)
    async with stall_meter() as stall:
        await outage.fail_over.check()
    assert len(outage.reclaimer.ordered()) == 100 * PODS
    assert stall.turns >= 5
    async with stall_meter() as stall:
        outage.reach.answered()
        await outage.fail_over.check()
    assert not outage.reclaimer.ordered()
    assert stall.turns >= 5


@pytest.mark.parametrize("nodes", [10, 20])
async def test_a_pass_while_failed_over_looks_at_each_pod_once(nodes: int) -> None:
    outage = Outage(nodes)
    await outage.last(120)
    for _ in range(3):
        outage.host.pods.listed = outage.host.pods.lookups = 0
        await outage.fail_over.check()
        assert outage.host.pods.listed == nodes * PODS
        assert outage.host.pods.lookups <= nodes * PODS


async def test_orders_stop_when_the_worker_answers_in_the_midst_of_a_pass() -> None:
    outage = Outage(100)
    await outage.last(120)
    async with asyncio.TaskGroup() as group:
        group.create_task(outage.fail_over.check())
        group.create_task(_answer(outage.reach))
    assert len(outage.reclaimer.ordered()) < 100 * PODS
    await outage.fail_over.check()
    assert not outage.reclaimer.ordered()


async def _answer(reach: Reach) -> None:
    reach.answered()
