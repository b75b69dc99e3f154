"""Rule `at-most-one-copy`: whatever deletes a pod of a StatefulSet, its containers stop before those of its successor start."""

from __future__ import annotations

import json
import signal
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from attrs import define, field, frozen

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.outages import SHORT, all_nodes, is_held, is_released
from tests.support.bound import Body, apply
from tests.support.cable import Cable
from tests.support.program import eventually
from tests.support.stage import MOCK, Stage, uid_of, virtual_uid
from tests.support.witness import Record, Seen, watching

GRACE = 3
"""Seconds; short, so that it expires while a node or the worker is silent."""


@define
class Containers:
    """The containers that live by what the worker's watch shows; a Pod object that vanishes ends none."""

    live: dict[str, str] = field(factory=dict)
    """Node by the uid of the physical pod."""
    ended: set[str] = field(factory=set)
    most: int = 0

    def replay(self, record: Record) -> None:
        """All that was seen of the one ordinal."""
        for seen in list(record.events):
            self._note(seen)
        record.events.clear()

    def _note(self, seen: Seen) -> None:
        states = [status["state"] for status in seen.object["status"].get("containerStatuses") or ()]
        if seen.kind != "DELETED" and any("running" in state for state in states):
            self.live[seen.uid] = seen.object["spec"]["nodeName"]
        elif states and all("terminated" in state for state in states):
            self.live.pop(seen.uid, None)
            self.ended.add(virtual_uid(seen.object))
        self.most = max(self.most, len(self.live))

    def power_off(self, node: str) -> None:
        """The machine of a node is off, and its containers with it."""
        self.live = {uid: at for uid, at in self.live.items() if at != node}


@frozen
class Ordinal:
    """Pod web-0 of a StatefulSet that any node of the scene may run, and its witness in the worker."""

    scene: Scene
    stage: Stage
    below: Record
    containers: Containers = field(factory=Containers)

    async def running(self, *, other_than: str = "") -> Body:
        def is_it(pod: Body) -> Any:
            return uid_of(pod) != other_than and pod["status"]["phase"] == "Running" and pod["status"].get("podIP")

        return await self.stage.until("web-0", is_it, "Running")

    async def replaced(self, end: Callable[[Body], Awaitable[object]]) -> None:
        """End the pod, and wait until its successor runs."""
        old = await self.running()
        await end(old)
        await self.running(other_than=uid_of(old))
        self.judge()

    def judge(self) -> None:
        self.containers.replay(self.below)
        assert self.containers.most <= 1, f"two containers of one ordinal at once: {self.containers.live}"

    async def delete(self, pod: Body) -> None:
        await self.stage.home.delete("pods", "web-0", self.stage.namespace)


def stateful_set(stage: Stage) -> Body:
    template = stage.body("web", script={"stop-delay": "1"}, labels={"app": "web"}, terminationGracePeriodSeconds=GRACE)
    template["spec"].pop("nodeName")
    template["spec"]["nodeSelector"] = {"kubeocean.io/cluster-binding": stage.bound.name}
    metadata = {"labels": {"app": "web"}, "annotations": {f"{MOCK}stop-delay": "1"}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": metadata, "spec": template["spec"]}}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web", "namespace": stage.namespace}, "spec": spec}


async def test_no_ordinal_has_two_containers_whatever_ends_its_pod(cable: Cable, scene: MakeScene) -> None:
    made = await scene(nodes=2, through=cable.port, settings=SHORT)
    stage = await Stage.of(made.bound, made.nodes)
    with (
        watching(made.bound.hub.kubeconfig, namespace=stage.namespace) as above,
        watching(made.bound.worker.kubeconfig, namespace=made.bound.mount) as below,
    ):
        web = Ordinal(made, stage, below)
        await apply(made.bound.hub, stateful_set(stage))
        await web.replaced(web.delete)
        await web.replaced(lambda old: _evicted_by_a_taint(web, old))
        await web.replaced(lambda old: stage.home.delete("pods", "web-0", stage.namespace, grace=0))
        await web.replaced(lambda old: _deleted_while_partitioned(web, cable, old))
        await web.replaced(lambda old: _deleted_on_a_silent_node(web, old))
        gone = {event.uid for event in above.where(lambda event: event.kind == "DELETED")}
        assert len(gone) == 5 and gone <= web.containers.ended
        await _replaced_when_its_node_is_lost(web)


async def _evicted_by_a_taint(web: Ordinal, old: Body) -> None:
    hub, node = web.scene.bound.hub, old["spec"]["nodeName"]
    await hub.kubectl("taint", "node", node, "test.example/evict=x:NoExecute")
    await web.running(other_than=uid_of(old))
    await hub.kubectl("taint", "node", node, "test.example/evict-")


async def _deleted_while_partitioned(web: Ordinal, cable: Cable, old: Body) -> None:
    cable.silence()
    await web.delete(old)
    # The worker is lost after the grace has expired.
    await all_nodes(web.scene, is_held, what="held")
    await _still_terminating(web, old)
    cable.mend()
    await all_nodes(web.scene, is_released, what="released")


async def _deleted_on_a_silent_node(web: Ordinal, old: Body) -> None:
    """Its kubelet does not answer, and the node has been NotReady for longer than a force delete would need."""
    web.scene.kubelet.process.send_signal(signal.SIGSTOP)
    try:
        for node in web.scene.nodes:
            await _says_not_ready(web.stage, node)
        await web.delete(old)
        below = await web.stage.until_physical("web-0", lambda p: p["metadata"].get("deletionGracePeriodSeconds") == 1, "is asked again")
        assert virtual_uid(below) == uid_of(old)
        await _still_terminating(web, old)
    finally:
        web.scene.kubelet.process.send_signal(signal.SIGCONT)


async def _says_not_ready(stage: Stage, name: str) -> None:
    moment = (datetime.now(UTC) - timedelta(seconds=90)).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "made by a test", "lastTransitionTime": moment}
    await stage.bound.worker.kubectl(
        "patch", "node", name, "--subresource=status", "--type=strategic", "-p", json.dumps({"status": {"conditions": [ready]}})
    )


async def _still_terminating(web: Ordinal, old: Body) -> None:
    pod = await web.stage.virtual("web-0")
    assert pod is not None and uid_of(pod) == uid_of(old) and pod["metadata"]["deletionTimestamp"]
    web.judge()
    assert web.containers.live, "the container runs on"


async def _replaced_when_its_node_is_lost(web: Ordinal) -> None:
    """The machine is off and its Node is deleted: nothing runs there, and nothing has to be waited for."""
    old = await web.running()
    node = web.scene.nodes[web.scene.vnodes.index(old["spec"]["nodeName"])]
    web.judge()
    web.scene.kubelet.kill()
    web.containers.power_off(node)
    await web.scene.bound.worker.kubectl("delete", "node", node)

    async def another() -> bool:
        pod = await web.stage.virtual("web-0")
        return pod is not None and uid_of(pod) != uid_of(old)

    await eventually(another, "the StatefulSet has made the pod again")
    web.judge()
