"""Which orders stand."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kubeocean.nodes.reclaim import Order, Reclaimer
from tests.unit.kubeocean.builders import at, pod
from tests.unit.kubeocean.crowd import PODS, CrowdedHost
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost


async def test_orders_of_a_node_replace_its_earlier_ones_and_leave_other_nodes_alone() -> None:
    reclaimer = Reclaimer(RecordingHost(), per_second=10)
    one, two = (Order(pod(name=name, uid=name).ref, at("2026-01-05 09:00"), "why") for name in ("one", "two"))
    other = Order(pod({"nodeName": "other"}, name="three", uid="three").ref, at("2026-01-05 09:00"), "why")
    reclaimer.order("vnode-demo-node-1", [one, two])
    reclaimer.order("other", [other])
    reclaimer.order("vnode-demo-node-1", [two])
    assert reclaimer.ordered().keys() == {"two", "three"}
    reclaimer.order("other", ())
    reclaimer.order("vnode-demo-node-1", ())
    assert not reclaimer.ordered()


async def test_overdue_is_the_oldest_deadline_of_a_pod_that_is_still_there() -> None:
    host = RecordingHost(clock=ManualClock(at("2026-01-05 10:00")))
    reclaimer, now = Reclaimer(host, per_second=10), at("2026-01-05 10:00")
    pods = {name: pod(name=name, uid=name) for name in ("one", "two", "spared")}
    for each in pods.values():
        host.pods.put(each)
    orders = {
        name: Order(pods[name].ref, at(f"2026-01-05 09:{minute}"), "why") for name, minute in (("one", 30), ("two", 50), ("spared", 10))
    }
    reclaimer.order("node", orders.values())
    assert reclaimer.overdue(now) == 3000
    reclaimer.order("node", [orders["one"], orders["two"]])
    assert reclaimer.overdue(now) == 1800, "one that may stay is not due"
    host.pods.put(pod(name="one", uid="one", deletionTimestamp="2026-01-05T09:31:00Z", deletionGracePeriodSeconds=30))
    reclaimer.order("node", [orders["two"]])
    assert reclaimer.overdue(now) == 1800, "one that is being deleted is still there"
    host.pods.put(pod(name="one", uid="one", status={"phase": "Failed"}))
    assert reclaimer.overdue(now) == 600, "one that has ended is not"
    host.pods.remove(pods["two"])
    assert reclaimer.overdue(now) == 0


@pytest.mark.parametrize("nodes", [20, 40])
async def test_ordering_for_one_node_costs_what_its_own_pods_cost(nodes: int) -> None:
    host = CrowdedHost(nodes)
    reclaimer = Reclaimer(host, per_second=10)
    for name in host.names:
        reclaimer.order(name, [Order(pod.ref, host.clock.now(), "closed") for pod in host.pods.on_node(name)])
    host.pods.lookups = 0
    reclaimer.order(host.names[0], [Order(pod.ref, host.clock.now(), "closed") for pod in host.pods.on_node(host.names[0])])
    reclaimer.order(host.names[0], ())
    assert host.pods.lookups <= PODS


async def test_overdue_looks_at_the_pods_of_one_node_when_none_has_ended() -> None:
    host = CrowdedHost(40)
    reclaimer = Reclaimer(host, per_second=10)
    for number, name in enumerate(host.names):
        until = host.clock.now() - timedelta(seconds=number)
        reclaimer.order(name, [Order(pod.ref, until, "closed") for pod in host.pods.on_node(name)])
    host.pods.lookups = 0
    assert reclaimer.overdue(host.clock.now()) == 39
    assert host.pods.lookups <= PODS
