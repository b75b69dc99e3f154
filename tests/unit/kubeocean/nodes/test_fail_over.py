"""When a silent worker is given up, and which pods leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.binding.virtual_nodes import VirtualNodes
from kubeocean.nodes.fail_over import FailOver, leaving
from kubeocean.nodes.reclaim import Reclaimer
from tests.support.stall import stall_meter
from tests.unit.kubeocean.builders import binding, pod, scope
from tests.unit.kubeocean.crowd import PODS, CrowdedHost
from vkubelet.api.codec import encode_json
from vkubelet.api.objects import Json, JsonView, Node
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.control.contact import Outcome
from vkubelet.control.reach import Reach
from vkubelet.node.declared import HEALTHY
from vkubelet.node.render import Endpoint, new_node, wanted
from vkubelet.provider import NodeDescription
from vkubelet.testing.host import RecordingHost

FAIL_OVER = {"onUnreachable": {"mode": "FailOver", "afterSeconds": 60}}
UNREACHABLE = "node.kubernetes.io/unreachable"
SERVED, UNSERVED, SILENT = Outcome.SERVED, Outcome.UNSERVED, Outcome.SILENT
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fine"}
NODE = NodeDescription("vnode-demo-node-1", {"cpu": "4"}, conditions=[READY])


class Stand:
    """A binding with one node and one pod; `seconds` of attempts each time it is asked."""

    def __init__(self, *, mode: JsonView = FAIL_OVER) -> None:
        self.host = RecordingHost(client=Client(Connection("https://192.0.2.1")))
        self.clock = self.host.manual_clock
        self.reach = Reach(self.clock, "worker cluster", lost_after=40, ask_every=10)
        self.nodes = VirtualNodes(self.host)
        self.nodes.declare(NODE, physical_name="node-1", physical_uid="node-uid")
        self.host.pods.put(pod())
        bound = BindingReconciler(self.host, "demo")
        bound.current = binding(mode)
        self.reclaimer = Reclaimer(self.host, per_second=10)
        self.fail_over = FailOver(scope(self.host, binding=bound, virtual=self.nodes, reach=self.reach), self.reclaimer)
        self.reach.on_flip(self.fail_over.hold)
        self._tasks = [
            asyncio.get_running_loop().create_task(part) for part in (self.reach.watch(), self.fail_over.run(), self.nodes.run())
        ]

    async def asked(self, outcome: Outcome, seconds: float) -> None:
        """An attempt begins every ten seconds and takes five."""
        for _ in range(int(seconds / 10)):
            began = self.reach.now()
            await self.clock.advance(5)
            self.reach.record(began, outcome, "x")
            await self.clock.advance(5)

    @property
    def ready(self) -> tuple[str, str]:
        """Status and reason as the node is published now."""
        found = next(each for each in self.host.nodes[NODE.name].conditions if each["type"] == "Ready")
        return found["status"], found["reason"]

    @property
    def given_up(self) -> bool:
        return bool(self.reclaimer.ordered())

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()


@pytest.fixture
async def stand() -> AsyncIterator[Callable[..., Stand]]:
    made: list[Stand] = []

    def make(**more: JsonView) -> Stand:
        made.append(Stand(**more))
        return made[-1]

    yield make
    for each in made:
        each.stop()


HELD, UNKNOWN = ("True", "WorkerUnreachableHold"), ("Unknown", "WorkerUnreachable")


async def test_nodes_stay_held_until_the_time_of_the_binding_and_only_then_become_unknown(stand: Callable[..., Stand]) -> None:
    scene = stand()
    await scene.asked(SILENT, 60)
    assert scene.ready == HELD and not scene.given_up
    await scene.asked(SILENT, 10)
    assert scene.ready == UNKNOWN and scene.given_up


async def test_pods_are_deleted_and_not_evicted_after_the_clock_was_set_back(stand: Callable[..., Stand]) -> None:
    scene = stand()
    await scene.asked(SILENT, 70)
    scene.clock.set(-3600)
    await scene.asked(SILENT, 10)
    assert scene.given_up and all(until <= scene.clock.now() for until in scene.reclaimer.ordered().values())


async def test_a_node_is_never_unknown_before_five_minutes_if_the_binding_asks_for_ten(stand: Callable[..., Stand]) -> None:
    """The hub's taint eviction deletes pods 300 s after their node became Unknown."""
    scene = stand(mode={"onUnreachable": {"mode": "FailOver", "afterSeconds": 600}})
    await scene.asked(SILENT, 600)
    assert scene.ready == HELD and not scene.given_up
    await scene.asked(SILENT, 10)
    assert scene.ready == UNKNOWN and scene.given_up


async def test_a_binding_that_asks_for_holding_gives_nothing_up(stand: Callable[..., Stand]) -> None:
    scene = stand(mode={"onUnreachable": {"mode": "Hold"}})
    await scene.asked(SILENT, 1000)
    assert scene.ready == HELD and not scene.given_up


@pytest.mark.parametrize("outcome", [SERVED, UNSERVED])
async def test_any_answer_takes_the_order_back(stand: Callable[..., Stand], outcome: Outcome) -> None:
    scene = stand()
    await scene.asked(SILENT, 100)
    assert scene.given_up
    await scene.asked(outcome, 10)
    assert not scene.given_up
    assert scene.ready == HELD if outcome is UNSERVED else scene.reach.lost is False


async def test_the_answer_of_a_worker_withdraws_the_orders_within_a_second(stand: Callable[..., Stand]) -> None:
    scene = stand()
    await scene.asked(SILENT, 100)
    scene.reach.record(scene.reach.now(), UNSERVED, "401")
    await scene.clock.advance(1)
    assert not scene.given_up


async def test_a_worker_that_answers_401_for_hours_is_held_and_not_given_up(stand: Callable[..., Stand]) -> None:
    scene = stand()
    await scene.asked(UNSERVED, 7200)
    assert scene.ready == HELD and not scene.given_up


async def test_a_process_that_stood_still_gives_nothing_up_when_it_goes_on(stand: Callable[..., Stand]) -> None:
    scene = stand()
    await scene.asked(SILENT, 60)
    began = scene.reach.now()
    await scene.clock.advance(1)
    scene.clock.stand_still(600)
    scene.reach.record(began, SILENT, "x")
    await scene.clock.advance(9)
    assert not scene.given_up
    await scene.asked(SILENT, 60)
    assert not scene.given_up
    await scene.asked(SILENT, 10)
    assert scene.given_up


async def test_a_worker_that_was_not_asked_is_not_given_up(stand: Callable[..., Stand]) -> None:
    scene = stand()
    await scene.clock.advance(600)
    assert scene.ready == HELD and not scene.given_up


async def test_a_process_that_starts_amid_an_outage_counts_from_its_own_start(stand: Callable[..., Stand]) -> None:
    earlier = stand()
    await earlier.asked(SILENT, 100)
    later = stand()
    later.nodes.retire(NODE.name)
    later.nodes.keep(as_written(earlier.host.nodes[NODE.name]))
    await later.asked(SILENT, 60)
    assert earlier.given_up and not later.given_up
    assert later.ready == HELD, "what an earlier process gave up is not taken for the last known state"
    await later.asked(SILENT, 10)
    assert later.given_up


def as_written(description: NodeDescription) -> Node:
    """The Node in the hub."""
    node = wanted(description, Endpoint("10.0.0.1", 15000), instance="demo", health=HEALTHY)
    status = {**node.status, "conditions": list(node.conditions)}
    return Node.decode(encode_json({**new_node(node), "status": status}))


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
        self.reach = Reach(self.host.clock, "worker cluster", lost_after=40, ask_every=10)
        self.reclaimer = Reclaimer(self.host, per_second=10)
        self.fail_over = FailOver(scope(self.host, binding=served, virtual=virtual, reach=self.reach), self.reclaimer)

    async def last(self, seconds: float) -> None:
        """The worker stays silent for so long."""
        for _ in range(int(seconds / 4)):
            began = self.reach.now()
            await self.host.manual_clock.advance(4)
            self.reach.record(began, SILENT, "no route")
        self.reach.lost = True


async def test_other_tasks_run_between_the_nodes_that_fail_over() -> None:
    outage = Outage(100)
    await outage.last(120)
    with stall_meter() as stall:
        await outage.fail_over.check()
    assert len(outage.reclaimer.ordered()) == 100 * PODS
    assert stall.turns >= 4, "20 nodes a turn, without the turn that began outside"
    with stall_meter() as stall:
        outage.reach.record(outage.reach.now(), SERVED)
        await outage.fail_over.check()
    assert not outage.reclaimer.ordered()
    assert stall.turns >= 4, "20 nodes a turn, without the turn that began outside"


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
    reach.record(reach.now(), SERVED)
