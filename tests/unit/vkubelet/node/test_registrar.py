"""A name that another kubelet serves is left alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.faults.model.server import ApiModel
from tests.support.memory_api import MemoryApi
from vkubelet.api.codec import encode_json
from vkubelet.api.names import INSTANCE, OWNED
from vkubelet.api.objects import Json, Lease, Node
from vkubelet.client.rest import Client
from vkubelet.clock import rfc3339_micro
from vkubelet.control.store import Store
from vkubelet.errors import VKubeletError
from vkubelet.metrics import Metrics
from vkubelet.node.declared import DeclaredNodes
from vkubelet.node.lease import LeaseKeeper, LeaseSettings
from vkubelet.node.registrar import Registrar, foreign_kubelet
from vkubelet.node.render import Endpoint
from vkubelet.provider import NodeDescription, Taint
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordedEvents

NODE, LEASE = "/api/v1/nodes/worker-1", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/worker-1"


class Dispatched:
    """The pods' side, which only notes what it is told."""

    def __init__(self) -> None:
        self.enabled: list[str] = []

    def enable(self, node: str) -> None:
        self.enabled.append(node)


class Scene:
    """A registrar that declares `worker-1` in a cluster that has a Node of that name."""

    def __init__(
        self,
        *,
        labels: Json | None = None,
        annotations: Json | None = None,
        version: str = "",
        renewed: bool = False,
        adopt_foreign: bool = False,
        server: Client | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.api, self.clock, self.dispatch = MemoryApi(), clock or ManualClock(), Dispatched()
        status = {"nodeInfo": {"kubeletVersion": version}, "capacity": {"cpu": "64"}}
        metadata = {"name": "worker-1", "uid": "u", "labels": labels or {}, "annotations": annotations or {}}
        self.api.put(NODE, {"metadata": metadata, "spec": {}, "status": status})
        if renewed:
            meta = {"name": "worker-1", "namespace": "kube-node-lease"}
            self.api.put(LEASE, {"metadata": meta, "spec": {"renewTime": rfc3339_micro(self.clock.now())}})
        client, nodes = server or self.api.client(), DeclaredNodes(self.clock)
        settings, metrics = LeaseSettings(), Metrics(CollectorRegistry())
        parts: dict[str, Any] = {
            "client": client,
            "node_client": lambda name: client,
            "nodes": nodes,
            "live": (live := Store[Node]()),
            "store_written": live.put,
            "leases": LeaseKeeper(lambda name: client, identity="me", clock=self.clock, settings=settings, metrics=metrics),
            "pods": self.dispatch,
            "recorder": RecordedEvents(),
            "clock": self.clock,
            "open_endpoint": self._endpoint,
            "close_endpoint": None,
        }
        self.registrar = Registrar(**parts, adopt_foreign=adopt_foreign)
        self.nodes = nodes
        nodes.declare(NodeDescription("worker-1", {"cpu": "4"}))

    async def _endpoint(self, node: str, port: int | None) -> Endpoint:
        return Endpoint("10.0.0.1", 15000)

    @property
    def changed(self) -> bool:
        return any(write.method != "POST" for write in self.api.writes)


@pytest.mark.parametrize(
    ("scene", "why"),
    [
        ({"version": "v1.34.4"}, "a kubelet of version v1.34.4"),
        ({"renewed": True}, "its kubelet is alive"),
        ({"labels": {INSTANCE: "other"}}, "vkubelet instance 'other'"),
        # Whose label was removed, which that instance is about to restore.
        ({"annotations": {OWNED: '{"instance":"other"}'}, "renewed": True}, "vkubelet instance 'other'"),
    ],
)
async def test_node_of_another_kubelet_is_not_touched_and_its_pods_are_not_dispatched(scene: Json, why: str) -> None:
    made = Scene(**scene)
    with pytest.raises(VKubeletError, match=why) as caught:
        await made.registrar.reconcile("worker-1")
    assert "cannot register Node worker-1: " in str(caught.value)
    assert not made.changed
    assert not made.dispatch.enabled


@pytest.mark.parametrize(
    "scene",
    [
        {},
        {"version": "v1.34.4", "renewed": True, "adopt_foreign": True},
        {"labels": {INSTANCE: "default"}},
        {"annotations": {OWNED: '{"instance":"default"}'}, "renewed": True},
        {"annotations": {OWNED: "{}"}, "renewed": True},
        {"annotations": {OWNED: "[]"}},
    ],
)
async def test_node_without_a_kubelet_is_adopted_and_any_other_on_demand(scene: Json) -> None:
    made = Scene(**scene)
    await made.registrar.reconcile("worker-1")
    assert made.changed
    assert made.dispatch.enabled == ["worker-1"]


async def test_name_is_free_when_the_other_kubelet_has_stopped_renewing_its_lease() -> None:
    made = Scene(renewed=True)
    with pytest.raises(VKubeletError):
        await made.registrar.reconcile("worker-1")
    await made.clock.advance(40.0)
    await made.registrar.reconcile("worker-1")
    assert made.dispatch.enabled == ["worker-1"]


async def test_a_node_closes_at_once_after_its_heartbeat_and_a_second_after_a_change() -> None:
    clock = ManualClock()
    model = ApiModel(now=clock.now)
    made = Scene(server=model.client("us", clock=clock), clock=clock)

    def taints() -> list[str]:
        node = model.get("", "v1", "nodes", "", "worker-1") or {"spec": {}}
        return [taint["key"] for taint in node["spec"].get("taints") or ()]

    def closing(key: str) -> NodeDescription:
        return NodeDescription("worker-1", {"cpu": "4"}, taints=(Taint(key, "NoSchedule"),))

    await made.registrar.reconcile("worker-1")
    made.nodes.declare(closing("first"))
    assert await made.registrar.reconcile("worker-1") == 1.0 and "first" not in taints()
    await clock.advance(1.0)
    due = await made.registrar.reconcile("worker-1")
    assert due is not None and "first" in taints()

    await clock.advance(due)
    written = len(model.storage.history)
    await made.registrar.reconcile("worker-1")
    assert len(model.storage.history) == written + 1, "the heartbeat"
    made.nodes.declare(closing("second"))
    await made.registrar.reconcile("worker-1")
    assert "second" in taints()


NOW = ManualClock().now()
OURS = "v1.34.0-vkubelet"


def node(version: str | None, **metadata: Json) -> Node:
    info = {} if version is None else {"nodeInfo": {"kubeletVersion": version}}
    return Node.decode(encode_json({"metadata": {"name": "n", **metadata}, "status": info}))


def lease(age: float | str | None, **spec: Json) -> Lease | None:
    if age is None:
        return None
    renewed = age if isinstance(age, str) else rfc3339_micro(NOW - timedelta(seconds=age))
    return Lease.decode(encode_json({"metadata": {"name": "n"}, "spec": {"renewTime": renewed, **spec}}))


@pytest.mark.parametrize(
    ("version", "age", "evidence"),
    [
        ("v1.34.4", None, "v1.34.4"),
        ("v1.34.4", 9000, "v1.34.4"),
        (OURS, 39, "is alive"),
        ("", 5, "is alive"),
        (None, -30, "is alive"),
        (None, "0000-01-01T00:00:00.000000Z", "is alive"),
        (OURS, 41, ""),
        (OURS, None, ""),
        ("", "", ""),
        (None, None, ""),
    ],
)
def test_a_node_is_adopted_only_when_no_other_kubelet_is_seen(version: str | None, age: float | str | None, evidence: str) -> None:
    refusal = foreign_kubelet(node(version), lease(age), version=OURS, now=NOW)
    assert evidence in refusal
    assert bool(refusal) == bool(evidence)
    assert not refusal or "node.adopt_foreign" in refusal


def test_a_node_that_lost_our_label_is_ours() -> None:
    live = node(OURS, annotations={OWNED: "{}"})
    assert foreign_kubelet(live, lease(1), version=OURS, now=NOW) == ""


def test_a_lease_that_lasts_longer_than_ours_counts_for_its_own_time() -> None:
    assert "is alive" in foreign_kubelet(node(OURS), lease(199, leaseDurationSeconds=200), version=OURS, now=NOW)
    assert foreign_kubelet(node(OURS), lease(201, leaseDurationSeconds=200), version=OURS, now=NOW) == ""
