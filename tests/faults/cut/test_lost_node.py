"""The kubelet of one worker node of several is silent for minutes while the worker's API server answers.

Only pods of that node are affected: what is deleted in the hub ends with the return of the node, or with a forced deletion once the node
has been NotReady for a minute; no pod runs twice.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter

from attrs import define, field

from tests.faults.cut.choice import Choice
from tests.faults.cut.test_partitions import BEARABLE, IN_STEP_WITHIN
from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.outages import is_released
from tests.support.audit import Audit
from tests.support.bound import Body, condition
from tests.support.program import eventually
from tests.support.stage import Stage, physical_name, uid_of, virtual_uid
from tests.support.witness import Record, watching

LOST_FOR, LOST_BRIEFLY = 360.0, 20.0
"""Seconds in the whole run, and in others; after 40 s the worker marks the node, after five minutes more it evicts pods."""
NOT_READY_WITHIN = 90.0
SILENT = 60.0
"""Seconds that a node is NotReady before a forced deletion removes physical pods without their kubelet."""
EACH = 2
RUN_FOR = 15
LOST, HEALTHY = 0, 1
"""Numbers of nodes."""
FATES = ("stays", "evictable", "finishes", "deleted", "forced", "again")


@define(eq=False)
class Fates:
    """Pods of the lost node, and pods `other` of the healthy one. `uids`: those of the virtual pods, `replaced`: those before."""

    scene: Scene
    stage: Stage
    seconds: float
    uids: dict[str, str] = field(factory=dict)
    replaced: dict[str, str] = field(factory=dict)

    @property
    def is_long(self) -> bool:
        """Whether the worker evicts pods of the node, and forced deletions are carried out without its kubelet."""
        return self.seconds == LOST_FOR

    @property
    def ended(self) -> list[str]:
        return _names("deleted", "forced", *(["evictable"] if self.is_long else []))

    async def lay(self) -> None:
        for name in _names(*FATES, "other"):
            await self._create(name, HEALTHY if _fate(name) == "other" else LOST)
        for name in _names(*FATES, "other"):
            await self.stage.running(name)

    async def befall(self) -> None:
        for name in _names("deleted"):
            await self.stage.home.delete("pods", name, self.stage.namespace)
        for name in _names("forced", "again"):
            await self.stage.home.delete("pods", name, self.stage.namespace, grace=0)
            await self.stage.absent(name)
        for name in _names("again"):
            self.replaced[name] = self.uids[name]
            # As a StatefulSet would: under its name, on another node.
            await self._create(name, HEALTHY)

    async def _create(self, name: str, node: int) -> None:
        script = {"run-for": str(RUN_FOR)} if _fate(name) == "finishes" else {}
        tolerations = BEARABLE if _fate(name) != "evictable" else BEARABLE[:1]
        body = self.stage.body(name, script=script, restartPolicy="Never", tolerations=tolerations)
        body["spec"] |= {"terminationGracePeriodSeconds": 2, "nodeName": self.scene.vnodes[node]}
        self.uids[name] = uid_of(await self.stage.home.create("pods", body))

    async def forced_ones_are_gone(self) -> bool:
        """Without the kubelet; those that were created again run on the healthy node."""
        below = {virtual_uid(body) for body in await self.stage.there.list("pods", self.scene.bound.mount)}
        if below & {*self.replaced.values(), *(self.uids[name] for name in _names("forced"))}:
            return False
        return all([await self._is_ready(name) for name in _names("again")])

    async def node_is_marked(self) -> bool:
        """In the hub, as the worker reports it; the other node and its pods are not affected."""
        node = await self.stage.home.get("nodes", self.scene.vnodes[LOST])
        return node is not None and condition(node, "Ready") != "True"

    async def evicted(self) -> bool:
        found = [await self.stage.physical(name) for name in _names("evictable")]
        return all(body is not None and body["metadata"].get("deletionTimestamp") for body in found)

    async def _is_ready(self, name: str) -> bool:
        body = await self.stage.virtual(name)
        return body is not None and uid_of(body) == self.uids[name] and condition(body, "Ready") == "True"

    async def out_of_step(self) -> dict[str, object]:
        out: dict[str, object] = {}
        above = {body["metadata"]["name"]: body for body in await self.stage.home.list("pods", self.stage.namespace)}
        below = {virtual_uid(body) for body in await self.stage.there.list("pods", self.scene.bound.mount)}
        for name in _names(*FATES, "other"):
            body, uid = above.get(name), self.uids[name]
            if name in self.ended:
                if body is not None or uid in below:
                    out[name] = "exists"
            elif body is None or uid_of(body) != uid or uid not in below:
                out[name] = "missing"
            elif _state(body) != (("Succeeded", "False") if _fate(name) == "finishes" else ("Running", "True")):
                out[name] = _state(body)
        if below & set(self.replaced.values()):
            out["replaced"] = "exist in the worker"
        nodes = [await self.stage.home.get("nodes", name) for name in self.scene.vnodes]
        return out if all(node is not None and is_released(node) for node in nodes) else {**out, "nodes": "not Ready and open"}

    async def in_step(self) -> bool:
        return not await self.out_of_step()


def _state(body: Body) -> tuple[str, str]:
    return body["status"]["phase"], condition(body, "Ready")


def _names(*fates: str) -> list[str]:
    return [f"{fate}-{number}" for fate in fates for number in range(EACH)]


def _fate(name: str) -> str:
    return name.rpartition("-")[0]


async def test_node_whose_kubelet_is_silent_for_minutes_affects_its_pods_only(scene: MakeScene, choice: Choice) -> None:
    made = await scene(nodes=2, apart=True)
    bound, seconds = made.bound, LOST_FOR if choice.whole else LOST_BRIEFLY
    fates = Fates(made, await Stage.of(bound, made.nodes), seconds)
    home, there = Audit(bound.hub, bound.user), Audit(bound.worker, bound.user)
    await fates.lay()
    kubelet, pid = made.kubelets[LOST].process, made.program.process.pid
    with (
        watching(bound.worker.kubeconfig, namespace=bound.mount) as below,
        watching(bound.hub.kubeconfig, "nodes", labels=f"kubeocean.io/cluster-binding={bound.name}") as nodes,
    ):
        kubelet.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        try:
            await fates.befall()
            if fates.is_long:
                await eventually(fates.node_is_marked, "the virtual node is not Ready", seconds=NOT_READY_WITHIN)
                print(f"virtual node not Ready after {time.monotonic() - began:.0f} s")
                await eventually(fates.forced_ones_are_gone, "forced deletions are carried out", seconds=2 * SILENT)
                print(f"forced deletions carried out after {time.monotonic() - began:.0f} s")
                await eventually(fates.evicted, "the worker evicts", seconds=LOST_FOR + NOT_READY_WITHIN)
                print(f"evicted by the worker after {time.monotonic() - began:.0f} s")
            await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
        finally:
            kubelet.send_signal(signal.SIGCONT)
        back = time.monotonic()
        try:
            await eventually(fates.in_step, "both clusters are in step", seconds=3 * IN_STEP_WITHIN, every=0.3)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await fates.out_of_step()}\n{made.program.tail()}") from None
        took = time.monotonic() - back
    print(f"one node of two silent for {seconds:.0f} s: in step {took:.1f} s after the return")
    assert made.program.alive and made.program.process.pid == pid
    _judge(fates, below, nodes)
    ended = {call.name for call in home.writes() if (call.verb, call.what) == ("delete", "pods")}
    assert ended <= set(fates.ended), ended
    allowed = {physical_name(fates.stage.namespace, name) for name in [*fates.ended, *_names("again")]}
    deleted = {call.name for call in there.writes() if (call.verb, call.what, call.code) == ("delete", "pods", 200)}
    assert deleted <= allowed, deleted
    assert took < IN_STEP_WITHIN, f"in step after {took:.1f} s"


def _judge(fates: Fates, below: Record, nodes: Record) -> None:
    made_for = Counter(virtual_uid(event.object) for event in below.where(lambda event: event.kind == "ADDED"))
    assert set(made_for.values()) == {1} and set(made_for) <= {*fates.uids.values(), *fates.replaced.values()}, made_for
    assert not below.where(lambda event: event.restarts > 0)
    kept = {fates.uids[name] for name in _names(*FATES, "other") if name not in fates.ended}
    touched = below.where(lambda event: virtual_uid(event.object) in kept and (event.deleting or event.kind == "DELETED"))
    assert not touched, [event.key for event in touched]
    others = {fates.uids[name] for name in _names("other")}
    unready = below.where(lambda event: virtual_uid(event.object) in others and event.condition("Ready") != "True")
    assert not unready, [event.key for event in unready]
    healthy = fates.scene.vnodes[HEALTHY]
    assert not nodes.where(lambda event: event.kind == "DELETED")
    assert not nodes.where(lambda event: event.object["metadata"]["name"] == healthy and event.condition("Ready") != "True")
