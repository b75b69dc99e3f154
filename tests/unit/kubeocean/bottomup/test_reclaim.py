"""Which orders stand."""

from __future__ import annotations

from kubeocean.bottomup.reclaim import Order, Reclaimer
from tests.unit.kubeocean.builders import at, pod
from vkubelet.testing.host import RecordingHost


async def test_orders_of_a_node_replace_its_earlier_ones_and_leave_other_nodes_alone() -> None:
    reclaimer = Reclaimer(RecordingHost(), per_second=10)
    one, two = (Order(pod(name=name, uid=name).ref, at("2026-01-05 09:00"), "why") for name in ("one", "two"))
    other = Order(pod({"nodeName": "other"}, name="three", uid="three").ref, at("2026-01-05 09:00"), "why")
    reclaimer.order("vnode-demo-node-1", [one, two])
    reclaimer.order("other", [other])
    reclaimer.order("vnode-demo-node-1", [two])
    assert reclaimer.ordered() == {"two", "three"}
    reclaimer.order("other", ())
    reclaimer.order("vnode-demo-node-1", ())
    assert reclaimer.ordered() == set()
