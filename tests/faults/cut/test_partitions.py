"""The worker or the hub is cut off while pods meet their fates on both sides; soon after the return both clusters are in step.

The worker for a minute: tests/integration/kubeocean/test_cut.py. Hold and FailOver of a Deployment: tests/integration/kubeocean/safety.
The hub of `vkubelet run`: tests/integration/runtime/test_outages.py. One node of several: test_lost_node.py.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import pytest
from attrs import define, field, frozen

from tests.faults.cut.choice import WHOLE, Choice
from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene
from tests.integration.kubeocean.outages import SHORT, is_released
from tests.support.audit import Audit
from tests.support.bound import Body, condition
from tests.support.cable import Cable
from tests.support.program import eventually
from tests.support.simulated import all_ready, names, simulated_nodes
from tests.support.stage import Stage, physical_name, uid_of, virtual_uid
from tests.support.witness import Record, watching
from vkubelet.testing.cluster import ControlPlane

IN_STEP_WITHIN = 30.0
EACH = 2
"""Pods of each fate."""
AT_ONCE = 2
"""Cases side by side, each with processes of its own."""
RUN_FOR = 9
FATES = ("stays", "finishes", "fails", "deleted", "lost", "late", "again", "squatted", "evictable")
MADE_BEFORE = tuple(fate for fate in FATES if fate != "late")
REPLACED_BY_OTHERS = ("lost", "squatted")
SIDES = ("worker", "hub")
CUTS: dict[str, Callable[[Cable], None]] = {"cut": Cable.cut, "silent": Cable.silence, "unanswered": Cable.deafen}


FAIL_OVER_AFTER = 40.0
"""Seconds; less is refused by the definition."""
EVICTED_AFTER = 340.0
"""Seconds of silence after which the hub's own controllers delete the pods of a node."""


@frozen
class Case:
    side: str
    kind: str
    seconds: float
    mode: str = "Hold"

    @property
    def gives_up(self) -> bool:
        """Whether pods are deleted that do not tolerate it: by the binding, or by the hub, whose nodes are silent."""
        return self.seconds > EVICTED_AFTER if self.side == "hub" else self.mode == "FailOver" and self.seconds > FAIL_OVER_AFTER

    @property
    def spec(self) -> Body:
        return {"onUnreachable": {"mode": self.mode, **({"afterSeconds": int(FAIL_OVER_AFTER)} if self.mode == "FailOver" else {})}}

    def __str__(self) -> str:
        return f"{self.side} {self.kind} for {self.seconds:g} s, {self.mode}"


CASES = [
    *(Case(side, kind, seconds) for side, kind, seconds in product(SIDES, CUTS, (10.0, 60.0))),
    *(Case("worker", kind, seconds, "FailOver") for kind, seconds in (("silent", 10.0), ("cut", 60.0), ("silent", 60.0))),
]
LONG = [Case("worker", "cut", 600.0), Case("worker", "silent", 600.0, "FailOver"), Case("hub", "cut", 600.0)]
"""Side by side."""
BYSTANDERS = 8
"""Healthy nodes of the hub: where more than 55 % of a few nodes are unhealthy, its controllers evict nothing."""
BEARABLE = [
    {"key": "kubeocean.io/vnode", "operator": "Exists"},
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
]
"""The hub's own controllers delete the pods of nodes that are silent for longer than five minutes, unless they tolerate it."""


@define(eq=False)
class Fates:
    """What becomes of pods while a side is cut off. `uids`: those of the virtual pods, by name; `replaced`: those before."""

    case: Case
    scene: Scene
    stage: Stage
    uids: dict[str, str] = field(factory=dict)
    replaced: dict[str, str] = field(factory=dict)
    strangers: dict[str, str] = field(factory=dict)
    """UIDs of pods of others in the worker, by name."""

    async def lay(self) -> None:
        for name in _names(*MADE_BEFORE):
            await self._create(name)
        for name in _names(*MADE_BEFORE):
            await self.stage.until(name, lambda body: body["status"]["phase"] != "Pending", "runs, or has run")

    async def befall(self) -> None:
        """What other clients do meanwhile, on both sides."""
        stage, mount = self.stage, self.scene.bound.mount
        for name in _names("deleted"):
            await stage.home.delete("pods", name, stage.namespace)
        for name in _names(*REPLACED_BY_OTHERS):
            await stage.there.delete("pods", stage.physical_name(name), mount, grace=0)
        for name in _names("squatted"):
            twin = stage.twin(name, "", labels={"app": "local"}, annotations={})
            twin["metadata"].pop("annotations")
            self.strangers[name] = uid_of(await stage.there.create("pods", twin))
        for name in _names("again"):
            self.replaced[name] = self.uids[name]
            await stage.home.delete("pods", name, stage.namespace, grace=0)
            await stage.absent(name)
            await self._create(name)
        for name in _names("late"):
            await self._create(name)

    async def _create(self, name: str) -> None:
        scripts = {"finishes": {"run-for": str(RUN_FOR)}, "fails": {"run-for": str(RUN_FOR), "exit-code": "3"}}
        body = self.stage.body(name, script=scripts.get(_fate(name), {}), restartPolicy="Never", tolerations=self._tolerations(name))
        body["spec"]["terminationGracePeriodSeconds"] = 2
        body["spec"]["nodeName"] = self.scene.vnodes[int(name[-1]) % len(self.scene.vnodes)]
        self.uids[name] = uid_of(await self.stage.home.create("pods", body))

    def _tolerations(self, name: str) -> list[Body]:
        return BEARABLE if _fate(name) != "evictable" else BEARABLE[:1]

    @property
    def ended(self) -> list[str]:
        """Pods that are deleted in the hub, and by the process in the worker."""
        return _names("deleted", *(["evictable"] if self.case.gives_up else []))

    async def in_step(self) -> bool:
        """Every pod is where its fate leads, on both sides, and every node is Ready and open."""
        nodes = [await self.stage.home.get("nodes", name) for name in self.scene.vnodes]
        return all(node is not None and is_released(node) for node in nodes) and not await self.out_of_step()

    async def out_of_step(self) -> dict[str, object]:
        wanted: dict[str, object] = {}
        for name in _names(*FATES):
            wanted[name] = WANTED[_fate(name)] if name not in self.ended else None
        found = {body["metadata"]["name"]: body for body in await self.stage.home.list("pods", self.stage.namespace)}
        now: dict[str, object] = {name: _state(found.get(name)) for name in wanted}
        out: dict[str, object] = {name: state for name, state in now.items() if state != wanted[name]}
        below = {body["metadata"]["name"]: body for body in await self.stage.there.list("pods", self.scene.bound.mount)}
        for name in [*self.ended, *_names(*REPLACED_BY_OTHERS)]:
            body = below.get(self.stage.physical_name(name))
            if body is not None and uid_of(body) != self.strangers.get(name):
                out[f"physical pod of {name}"] = "exists"
        for name in [each for each in _names("stays", "late", "again", "evictable") if each not in self.ended]:
            body = below.get(self.stage.physical_name(name))
            if body is None or virtual_uid(body) != self.uids[name]:
                out[f"physical pod of {name}"] = "missing"
        return out


WANTED: dict[str, tuple[str, str, str]] = {
    **dict.fromkeys(("stays", "late", "again", "evictable"), ("Running", "True", "")),
    "finishes": ("Succeeded", "False", ""),
    "fails": ("Failed", "False", ""),
    **dict.fromkeys(REPLACED_BY_OTHERS, ("Failed", "False", "PhysicalPodLost")),
}
"""Phase, Ready and reason."""


def _state(body: Body | None) -> tuple[str, str, str] | None:
    if body is None:
        return None
    reason = "Terminating" if "deletionTimestamp" in body["metadata"] else body["status"].get("reason", "")
    return body["status"]["phase"], condition(body, "Ready"), reason


def _names(*fates: str) -> list[str]:
    return [f"{fate}-{number}" for fate in fates for number in range(EACH)]


def _fate(name: str) -> str:
    return name.rpartition("-")[0]


async def test_both_clusters_are_in_step_soon_after_a_side_returns(
    hub: ControlPlane, worker: ControlPlane, scene: MakeScene, choice: Choice, tmp_path: Path
) -> None:
    short = [case for case in CASES if case.seconds == 10.0]
    of_a_side = [choice.random.choice([case for case in short if case.side == side]) for side in SIDES]
    pairs = [CASES[at : at + AT_ONCE] for at in range(0, len(CASES), AT_ONCE)]
    for cases in pairs if choice.whole else [of_a_side]:
        await _side_by_side(cases, hub=hub, worker=worker, scene=scene, directory=tmp_path)


@pytest.mark.skipif(WHOLE not in os.environ, reason="takes ten minutes: python -m tests.faults.cut -k ten_minutes")
async def test_both_clusters_are_in_step_soon_after_ten_minutes(
    hub: ControlPlane, worker: ControlPlane, scene: MakeScene, tmp_path: Path
) -> None:
    bystanders = names("bystander", BYSTANDERS)
    with simulated_nodes(hub, "bystander", nodes=BYSTANDERS, directory=tmp_path):
        await all_ready(hub, bystanders, seconds=STARTS_WITHIN)
        await _side_by_side(LONG, hub=hub, worker=worker, scene=scene, directory=tmp_path)
    await hub.kubectl("delete", "node", *bystanders, "--wait=false")


async def _side_by_side(cases: Sequence[Case], *, hub: ControlPlane, worker: ControlPlane, scene: MakeScene, directory: Path) -> None:
    async with asyncio.TaskGroup() as group:
        for case in cases:
            group.create_task(_returns(case, hub=hub, worker=worker, scene=scene, directory=directory))


async def _returns(case: Case, *, hub: ControlPlane, worker: ControlPlane, scene: MakeScene, directory: Path) -> None:
    with Cable(hub.port) as hub_cable, Cable(worker.port) as cable:

        def way(plane: ControlPlane, user: str) -> Path:
            line, direct = (hub_cable if plane is hub else cable), plane.client_config(user)
            path = directory / f"{plane.name}-{user}.kubeconfig"
            path.write_text(direct.read_text().replace(f":{plane.port}", f":{line.port}"))
            return path

        made = await scene(nodes=2, way=way, spec=case.spec, settings=SHORT if case.mode == "FailOver" else {})
        try:
            await _cut_off(case, made, line=hub_cable if case.side == "hub" else cable)
        finally:
            await asyncio.to_thread(made.program.terminate)
            await asyncio.to_thread(made.kubelet.terminate)


async def _cut_off(case: Case, made: Scene, *, line: Cable) -> None:
    bound = made.bound
    fates = Fates(case, made, await Stage.of(bound, made.nodes))
    home, there = Audit(bound.hub, bound.user), Audit(bound.worker, bound.user)
    with watching(bound.worker.kubeconfig, namespace=bound.mount) as below:
        await fates.lay()
        pid = made.program.process.pid
        CUTS[case.kind](line)
        began = time.monotonic()
        await fates.befall()
        await asyncio.sleep(max(0.0, began + case.seconds - time.monotonic()))
        line.mend()
        back = time.monotonic()
        try:
            await eventually(fates.in_step, "both clusters are in step", seconds=3 * IN_STEP_WITHIN, every=0.3)
        except AssertionError as error:
            nodes = [(name, (await fates.stage.home.get("nodes", name) or {}).get("spec")) for name in made.vnodes]
            raise AssertionError(f"{case}: {error}\n{await fates.out_of_step()}\n{nodes}\n{made.program.tail()}") from None
        took = time.monotonic() - back
        print(f"{case}: in step {took:.1f} s after the return")
    assert made.program.alive and made.program.process.pid == pid
    _judge(fates, below, home=home, there=there)
    assert took < IN_STEP_WITHIN, f"{case}: in step after {took:.1f} s"


def _judge(fates: Fates, below: Record, *, home: Audit, there: Audit) -> None:
    stage = fates.stage
    made_for = Counter(virtual_uid(event.object) for event in below.where(lambda event: event.kind == "ADDED"))
    made_for.pop("", None)
    # Those that were replaced before their first physical pod was seen have none.
    assert set(made_for.values()) == {1} and set(made_for) <= {*fates.uids.values(), *fates.replaced.values()}, made_for
    assert not below.where(lambda event: event.restarts > 0)
    kept = {stage.physical_name(name) for name in _names("stays", "finishes", "fails", "late", "evictable") if name not in fates.ended}
    touched = below.where(lambda event: event.object["metadata"]["name"] in kept and (event.deleting or event.kind == "DELETED"))
    assert not touched, [event.key for event in touched]
    strangers = set(fates.strangers.values())
    assert not below.where(lambda event: event.uid in strangers and (event.deleting or event.kind == "DELETED"))
    ended = {call.name for call in home.writes() if (call.verb, call.what) == ("delete", "pods")}
    assert ended <= {*fates.ended, *_names("again")}, ended
    deleted = {call.name for call in there.writes() if (call.verb, call.what, call.code) == ("delete", "pods", 200)}
    assert deleted <= {physical_name(stage.namespace, name) for name in [*fates.ended, *_names("again")]}, deleted
