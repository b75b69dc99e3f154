"""Which pods leave a node, and by when (rule 11)."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from attrs import define, evolve, field

from kubeocean.bottomup.pressure import Pressure
from kubeocean.bottomup.reclaim import Order
from kubeocean.crds import ResourceLeasingPolicy
from kubeocean.leasing.policy import Decision, NodeFacts, Terms, decide
from tests.unit.kubeocean.builders import binding, limit, policy
from vkubelet.api.quantity import Resources, parse_resources
from vkubelet.testing.host import RecordingHost, make_pod

NODE = "vnode-demo-node-1"
FACTS = NodeFacts("node-1", {}, parse_resources({"cpu": "4", "pods": "110"}))
TERMS = Terms.of(binding())


@define
class Table:
    """The policies as they are now."""

    current: Sequence[ResourceLeasingPolicy] = ()
    deleted: dict[str, datetime] = field(factory=dict)

    def deleted_at(self, name: str) -> datetime | None:
        return self.deleted.get(name)


class Scene:
    """A node with two pods of one CPU each; the second has the lower priority."""

    def __init__(self, *policies: ResourceLeasingPolicy) -> None:
        self.host = RecordingHost()
        self.table = Table(policies)
        self.pressure = Pressure(self.host, self.table)
        for name, priority in (("important", 10), ("cheap", 0)):
            container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}
            self.host.pods.put(make_pod(name, node=NODE, spec={"priority": priority, "containers": [container]}))

    def decision(self, used: Resources | None = None) -> Decision:
        return decide(FACTS, self.table.current, terms=TERMS, used=used or {}, instant=self.host.clock.now())

    def orders(self, used: Resources | None = None) -> Sequence[Order]:
        return self.pressure.of_declared(NODE, self.decision(used), facts=FACTS, terms=TERMS)


def lease(cpu: str, *, generation: int = 1, force: bool = True, grace: int = 60) -> ResourceLeasingPolicy:
    spec = {"resourceLimits": [limit("cpu", quantity=cpu)], "forceReclaim": force, "gracefulReclaimPeriodSeconds": grace}
    return policy(spec=spec, uid="policy-uid", generation=generation)


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


def test_growing_local_use_drives_no_leased_pod_out() -> None:
    half = policy(spec={"resourceLimits": [limit("cpu", percent=50)], "forceReclaim": True}, uid="u", generation=1)
    scene = Scene(half)
    assert scene.orders() == ()
    assert scene.orders(parse_resources({"cpu": "2"})) == ()


def test_a_closed_node_is_emptied_by_the_rules_of_its_policy() -> None:
    windowed = lease("2")
    scene = Scene(windowed)
    closed = evolve(scene.decision(), open=False, effect="NoSchedule", closed_since=scene.host.clock.now())
    orders = scene.pressure.of_declared(NODE, closed, facts=FACTS, terms=TERMS)
    assert names(orders) == ["cheap", "important"]


def test_a_pod_that_tolerates_closed_nodes_stays_on_one() -> None:
    scene = Scene(lease("2"))
    exempt = make_pod("exempt", node=NODE, spec={"tolerations": [{"key": "kubeocean.io/out-of-time-windows", "operator": "Exists"}]})
    scene.host.pods.put(exempt)
    closed = evolve(scene.decision(), open=False, closed_since=scene.host.clock.now())
    assert "exempt" not in names(scene.pressure.of_declared(NODE, closed, facts=FACTS, terms=TERMS))


def test_a_retired_node_loses_every_pod_after_the_grace_of_its_deleted_policy() -> None:
    scene = Scene(lease("2"))
    ended = scene.host.clock.now() - timedelta(seconds=20)
    scene.table.deleted["p"] = ended
    orders = scene.pressure.of_retired(NODE, lease("2"), at_once=False)
    assert sorted(names(orders)) == ["cheap", "important"]
    assert {order.until for order in orders} == {ended + timedelta(seconds=60)}


def test_pods_of_a_vanished_node_go_at_once() -> None:
    scene = Scene(lease("2"))
    orders = scene.pressure.of_retired(NODE, lease("2"), at_once=True)
    assert {order.until for order in orders} == {scene.host.clock.now()}
