"""Which pods leave a node, and by when (rule `reclaim-the-excess`)."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from attrs import define, evolve, field

from kubeocean.leasing.policy import Decision, NodeFacts, Terms, decide
from kubeocean.leasing.record import LeaseRecord
from kubeocean.model.crds import ResourceLeasingPolicy
from kubeocean.model.identity import leaves_home
from kubeocean.nodes.reclaim import Order
from kubeocean.nodes.reclaim_orders import ReclaimPlanner
from tests.unit.kubeocean.builders import at, binding, limit, policy
from vkubelet.api.quantity import Resources, parse_resources
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost, make_pod

NODE = "vnode-demo-node-1"
FACTS = NodeFacts("node-1", {}, parse_resources({"cpu": "4", "pods": "110"}))
TERMS = Terms.of(binding())
BUSY = parse_resources({"cpu": "2"})


@define
class Table:
    """The policies as they are now."""

    current: Sequence[ResourceLeasingPolicy] = ()
    deleted: dict[str, datetime] = field(factory=dict)

    def deleted_at(self, name: str) -> datetime | None:
        return self.deleted.get(name)


class Scene:
    """A node with two pods of one CPU each; the second has the lower priority."""

    def __init__(self, *policies: ResourceLeasingPolicy, now: str = "2026-01-05 09:00") -> None:
        self.host = RecordingHost(clock=ManualClock(at(now)))
        self.table = Table(policies)
        self.annotation = ""
        self.restart()
        for name, priority in (("important", 10), ("cheap", 0)):
            container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}
            self.host.pods.put(make_pod(name, node=NODE, spec={"priority": priority, "containers": [container]}))

    def restart(self) -> None:
        """Another process, or another session of this one: of all that was known the annotation of the Node is left."""
        self.planner = ReclaimPlanner(self.host, self.table, counts=lambda pod: leaves_home(pod.metadata))

    def decision(self, used: Resources | None = None) -> Decision:
        return decide(FACTS, self.table.current, terms=TERMS, used=used or {}, instant=self.host.clock.now())

    def orders(self, used: Resources | None = None, *, decision: Decision | None = None) -> Sequence[Order]:
        record = LeaseRecord.decode(self.annotation)
        decision = decision or self.decision(used)
        plan = self.planner.plan_for_declared(NODE, decision, facts=FACTS, terms=TERMS, record=record)
        assert plan is not None
        self.annotation = plan.record.encode()
        return plan.orders

    async def until(self, time: str) -> None:
        """Let it become so late."""
        await self.host.manual_clock.advance((at(time) - self.host.clock.now()).total_seconds())

    def closed(self) -> Decision:
        """Closed just now."""
        return evolve(self.decision(), open=False, effect="NoSchedule", closed_since=self.host.clock.now())


def lease(cpu: str, *, generation: int = 1, force: bool = True, grace: int = 60) -> ResourceLeasingPolicy:
    spec = {"resourceLimits": [limit("cpu", quantity=cpu)], "forceReclaim": force, "gracefulReclaimPeriodSeconds": grace}
    return policy(spec=spec, uid="policy-uid", generation=generation)


def hand_over(percent: int = 50) -> tuple[ResourceLeasingPolicy, ResourceLeasingPolicy]:
    """At 08:00 from a policy that forces to one that leases only a part."""
    night = policy(
        "night",
        spec={"timeWindows": [{"start": "20:00", "end": "07:59"}], "forceReclaim": True, "gracefulReclaimPeriodSeconds": 600},
        uid="n",
        generation=1,
    )
    limits = [limit("cpu", percent=percent)]
    day = policy("day", spec={"timeWindows": [{"start": "08:00", "end": "19:59"}], "resourceLimits": limits}, uid="d", generation=1)
    return night, day


def names(orders: Sequence[Order]) -> list[str]:
    return [order.pod.name for order in orders]


def test_pods_that_fit_stay() -> None:
    assert Scene(lease("2")).orders() == ()


def test_a_policy_that_shrinks_takes_the_cheapest_pod_with_its_grace() -> None:
    scene = Scene(lease("2"))
    scene.orders()
    scene.table.current = [lease("1", generation=2)]
    orders = scene.orders()
    assert names(orders) == ["cheap"]
    assert orders[0].until == scene.host.clock.now() + timedelta(seconds=60)


async def test_the_grace_does_not_begin_anew_with_every_look() -> None:
    scene = Scene(lease("2"))
    scene.orders()
    scene.table.current = [lease("1", generation=2)]
    first = scene.orders()
    await scene.host.manual_clock.advance(30)
    assert scene.orders() == first


async def test_a_policy_that_shrinks_again_before_everything_fitted_gives_its_grace_anew() -> None:
    scene = Scene(lease("2"))
    scene.orders()
    scene.table.current = [lease("1", generation=2)]
    first = scene.orders()
    await scene.host.manual_clock.advance(30)
    scene.table.current = [lease("1", generation=3)]
    again = scene.orders()
    assert [order.pod for order in again] == [order.pod for order in first]
    assert [(later.until - earlier.until).total_seconds() for later, earlier in zip(again, first, strict=True)] == [30.0] * len(first)
    await scene.host.manual_clock.advance(5)
    assert scene.orders() == again


def test_a_policy_that_does_not_force_takes_nothing_back() -> None:
    scene = Scene(lease("2", force=False))
    scene.orders()
    scene.table.current = [lease("1", generation=2, force=False)]
    assert scene.orders() == ()


def test_growing_local_use_drives_no_leased_pod_out_also_after_a_restart() -> None:
    half = policy(spec={"resourceLimits": [limit("cpu", percent=50)], "forceReclaim": True}, uid="u", generation=1)
    scene = Scene(half)
    assert scene.orders() == ()
    for _ in range(3):
        assert scene.orders(BUSY) == ()
        scene.restart()
        assert scene.orders(BUSY) == ()


async def test_usage_that_grew_after_a_hand_over_is_not_its_excess_after_a_restart() -> None:
    scene = Scene(*hand_over(), now="2026-01-05 07:30")
    scene.orders()
    await scene.until("2026-01-05 12:05")
    assert scene.orders() == ()
    scene.restart()
    assert scene.orders(BUSY) == ()
    assert scene.orders(BUSY) == ()


async def test_excess_of_a_hand_over_is_reclaimed_by_the_policy_that_ended_after_a_restart() -> None:
    scene = Scene(*hand_over(percent=25), now="2026-01-05 07:30")
    assert scene.orders() == ()
    await scene.until("2026-01-05 08:05")
    for _ in range(3):
        (order,) = scene.orders()
        assert (order.pod.name, order.until) == ("cheap", at("2026-01-05 08:10"))
        scene.restart()


def test_a_policy_that_is_deleted_while_another_decided_long_ago_gives_its_own_grace() -> None:
    """The hand-over from night to day at 08:00 has nothing to do with the end of the third policy at noon."""
    night, day = hand_over(percent=25)
    best = policy("best", spec={"priority": 5, "forceReclaim": True, "gracefulReclaimPeriodSeconds": 300}, uid="b", generation=1)
    scene = Scene(night, day, best, now="2026-01-05 12:00")
    assert scene.orders() == ()
    scene.table.current = [night, day]
    for _ in range(3):
        (order,) = scene.orders()
        assert order.until == at("2026-01-05 12:05")
        scene.restart()


async def test_the_grace_of_an_excess_does_not_begin_again_with_a_restart() -> None:
    scene = Scene(lease("2"))
    scene.orders()
    scene.table.current = [lease("1", generation=2)]
    first = scene.orders()
    assert names(first) == ["cheap"]
    await scene.host.manual_clock.advance(30)
    scene.restart()
    assert scene.orders() == first


def test_a_node_without_a_record_keeps_its_pods_until_a_policy_shrinks() -> None:
    scene = Scene(lease("1"))
    assert scene.orders() == ()
    assert scene.orders() == ()
    scene.table.current = [lease("500m", generation=2)]
    assert names(scene.orders()) == ["cheap", "important"]


def half(percent: int = 50, *, generation: int = 1, **spec: Any) -> ResourceLeasingPolicy:
    """Forces at once."""
    limits = [limit("cpu", percent=percent)]
    return policy(spec={"resourceLimits": limits, "forceReclaim": True, **spec}, uid="policy-uid", generation=generation)


EDITS = [half(60, generation=2), half(generation=2, priority=1), half(generation=2, gracefulReclaimPeriodSeconds=600)]


@pytest.mark.parametrize("edited", EDITS, ids=["more", "priority", "grace"])
def test_an_edit_that_leases_no_less_takes_no_pod_where_local_use_grew(edited: ResourceLeasingPolicy) -> None:
    scene = Scene(half())
    assert scene.orders() == scene.orders(BUSY) == ()
    scene.table.current = [edited]
    assert scene.orders(BUSY) == ()
    scene.restart()
    assert scene.orders(BUSY) == ()
    scene.table.current = [half(40, generation=3)]
    assert names(scene.orders(BUSY)) == ["cheap", "important"]


def test_an_edit_continues_a_reclaim_unless_it_leases_as_much_as_before() -> None:
    scene = Scene(half())
    scene.orders()
    scene.table.current = [half(25, generation=2)]
    assert names(scene.orders()) == ["cheap"]
    scene.table.current = [half(25, generation=3, priority=1)]
    assert names(scene.orders()) == ["cheap"]
    scene.table.current = [half(generation=4)]
    assert scene.orders() == ()


def test_a_policy_that_shrinks_while_it_is_closed_takes_pods_once_it_is_open() -> None:
    scene = Scene(half(allowOutOfWindowPods=True))
    scene.orders()
    scene.table.current = [half(25, generation=2)]
    scene.orders(decision=scene.closed())
    assert names(scene.orders()) == ["cheap"]


async def test_a_larger_policy_that_takes_over_by_the_clock_takes_no_pod() -> None:
    night, day = hand_over(75)
    night = evolve(night, limits=half().limits)
    scene = Scene(night, day, now="2026-01-05 07:00")
    assert scene.orders() == scene.orders(BUSY) == ()
    await scene.until("2026-01-05 08:01")
    assert scene.orders(BUSY) == ()


def test_with_a_record_of_an_earlier_version_each_edit_counts_as_less() -> None:
    scene = Scene(half())
    scene.annotation = '{"decidedBy":{"policy":"p","uid":"policy-uid","generation":1}}'
    scene.table.current = [half(60, generation=2)]
    assert names(scene.orders(BUSY)) == ["cheap"]


def test_a_retired_node_of_a_vanished_policy_has_the_grace_of_its_record() -> None:
    scene = Scene(lease("2", grace=120))
    scene.orders()
    scene.restart()
    orders = scene.planner.plan_for_retired(NODE, None, record=LeaseRecord.decode(scene.annotation), at_once=False)
    assert {order.until for order in orders} == {scene.host.clock.now() + timedelta(seconds=120)}


def test_a_closed_node_is_emptied_by_the_rules_of_its_policy() -> None:
    windowed = lease("2")
    scene = Scene(windowed)
    assert names(scene.orders(decision=scene.closed())) == ["cheap", "important"]


@pytest.mark.parametrize("allowed", [True, False])
def test_a_pod_that_tolerates_closed_nodes_stays_if_the_policy_allows_it(allowed: bool) -> None:
    scene = Scene(policy(spec={"forceReclaim": True, "allowOutOfWindowPods": allowed}, uid="u"))
    tolerations = [{"key": "kubeocean.io/out-of-time-windows", "operator": "Exists"}]
    scene.host.pods.put(make_pod("tolerates", node=NODE, spec={"tolerations": tolerations}))
    assert ("tolerates" not in names(scene.orders(decision=scene.closed()))) is allowed


def test_pods_that_never_leave_the_hub_are_neither_counted_nor_reclaimed() -> None:
    scene = Scene(lease("2"))
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    scene.host.pods.put(make_pod("kube-proxy", node=NODE, metadata={"namespace": "kube-system"}, spec={"containers": [container]}))
    scene.orders()
    scene.table.current = [lease("2", generation=2)]
    assert scene.orders() == ()
    assert names(scene.orders(decision=scene.closed())) == ["cheap", "important"]


def test_a_retired_node_loses_every_pod_after_the_grace_of_its_deleted_policy() -> None:
    scene = Scene(lease("2"))
    ended = scene.host.clock.now() - timedelta(seconds=20)
    scene.table.deleted["p"] = ended
    orders = scene.planner.plan_for_retired(NODE, lease("2"), record=None, at_once=False)
    assert sorted(names(orders)) == ["cheap", "important"]
    assert {order.until for order in orders} == {ended + timedelta(seconds=60)}


def test_pods_of_a_vanished_node_go_at_once() -> None:
    scene = Scene(lease("2"))
    orders = scene.planner.plan_for_retired(NODE, lease("2"), record=None, at_once=True)
    assert {order.until for order in orders} == {scene.host.clock.now()}


async def test_the_grace_of_a_policy_that_a_faster_clock_deletes_later_starts_now() -> None:
    scene = Scene(lease("2"))
    began = scene.host.clock.now()
    scene.table.deleted["p"] = began + timedelta(hours=1)
    for _ in range(2):
        orders = scene.planner.plan_for_retired(NODE, lease("2"), record=None, at_once=False)
        assert {order.until for order in orders} == {began + timedelta(seconds=60)}
        await scene.host.manual_clock.advance(30)


async def test_a_clock_that_is_set_back_does_not_prolong_a_grace_by_the_step() -> None:
    retired, shrunk = Scene(lease("2")), Scene(lease("2"))
    retired.planner.plan_for_retired(NODE, lease("2"), record=None, at_once=False)
    shrunk.orders()
    shrunk.table.current = [lease("1", generation=2)]
    shrunk.orders()
    for scene in (retired, shrunk):
        scene.host.manual_clock.set(-3600)
    until = retired.host.clock.now() + timedelta(seconds=60)
    for _ in range(2):
        orders = retired.planner.plan_for_retired(NODE, lease("2"), record=None, at_once=False)
        assert {order.until for order in (*orders, *shrunk.orders())} == {until}
        for scene in (retired, shrunk):
            await scene.host.manual_clock.advance(30)
