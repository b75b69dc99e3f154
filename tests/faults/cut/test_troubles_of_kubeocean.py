"""A process that meets the troubles of API servers brings every pod to where it should be, and creates none twice.

One scene meets all troubles one after another; in each, pods are created, changed and deleted on both sides.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from functools import partial

from attrs import evolve, frozen

from tests.faults.cut.choice import Choice
from tests.faults.cut.kinds import Kind, Result, kinds, passes, summary
from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.outages import SHORT, is_released
from tests.integration.kubeocean.test_restarts import ready
from tests.support.audit import Audit
from tests.support.bound import condition
from tests.support.gate import Gate
from tests.support.program import eventually
from tests.support.stage import Stage, uid_of, virtual_uid
from tests.support.witness import Record, watching

RECOVERS_WITHIN = 90.0
"""Seconds: a sweep of every minute finds what no event reported."""
DEFAULT = 3
"""Troubles of the default run."""
GRACE = 2
EACH = 2


@frozen
class Met:
    """The scene, and pods of the trouble before, which are changed and deleted in this one."""

    scene: Scene
    stage: Stage
    gate: Gate
    uids: dict[str, str]

    async def meets(self, number: int, kind: Kind) -> Result:
        """Returns how often it was met, and the seconds from its end until all is as it should be."""
        version = await self._version(kind.way)
        result = await passes(self.gate, kind, version, partial(self._change, number), self.scene.program)
        result = evolve(result, took=await self._recovery(number, str(kind)))
        print(result)
        await self.stage.home.delete("pods", f"p{number - 1}-1", self.stage.namespace)
        return result

    async def create(self, number: int) -> None:
        """The pods of a trouble."""
        for at in range(EACH):
            name = f"p{number}-{at}"
            self.uids[name] = uid_of(await self.stage.create(name, terminationGracePeriodSeconds=GRACE))

    async def _change(self, number: int) -> None:
        """Pods are created; those of the trouble before are changed, and deleted on either side."""
        stage, last = self.stage, number - 1
        await self.create(number)
        for at in range(EACH):
            change = {"metadata": {"labels": {"number": str(number)}}}
            await stage.home.patch("pods", f"p{last}-{at}", change, namespace=stage.namespace)
        await stage.home.delete("pods", f"p{last}-0", stage.namespace)
        await stage.there.delete("pods", stage.physical_name(f"p{last}-1"), self.scene.bound.mount)

    async def _recovery(self, number: int, what: str) -> float:
        """Seconds until all is as it should be."""
        began = datetime.now(UTC)
        try:
            await eventually(lambda: self._as_it_should_be(number), what, seconds=RECOVERS_WITHIN, every=0.3)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self._state()}\n{self.scene.program.tail()}") from None
        return (datetime.now(UTC) - began).total_seconds()

    async def _version(self, way: str) -> str:
        plane = self.scene.bound.hub if way == self.scene.bound.hub.name else self.scene.bound.worker
        return str((await plane.kubectl("get", "--raw", "/api/v1/pods?limit=1")).split('"resourceVersion":"')[1].split('"')[0])

    async def _as_it_should_be(self, number: int) -> bool:
        """New pods run; of the last ones the deleted is gone, that whose physical pod was deleted has failed."""
        home = {body["metadata"]["name"]: body for body in await self.stage.home.list("pods", self.stage.namespace)}
        there = await self.stage.there.list("pods", self.scene.bound.mount)
        current = [home.get(f"p{number}-{at}") for at in range(EACH)]
        node = await self.stage.home.get("nodes", self.stage.vnode)
        if not all(body is not None and ready(body) for body in current) or node is None or not is_released(node):
            return False
        if {virtual_uid(body) for body in there} != {self.uids[f"p{number}-{at}"] for at in range(EACH)}:
            return False
        last = home.get(f"p{number - 1}-1")
        return f"p{number - 1}-0" not in home and last is not None and last["status"]["phase"] == "Failed"

    async def _state(self) -> list[str]:
        pods = await self.stage.home.list("pods", self.stage.namespace)
        there = await self.stage.there.list("pods", self.scene.bound.mount)
        above = [f"{body['metadata']['name']} {body['status']['phase']} ready={condition(body, 'Ready')}" for body in pods]
        return above + [f"below: {body['metadata']['name']} of {virtual_uid(body)}" for body in there]


async def test_pods_are_where_they_should_be_after_each_trouble(gate: Gate, scene: MakeScene, choice: Choice) -> None:
    made = await scene(nodes=1, way=gate.way, settings=SHORT)
    bound = made.bound
    met = Met(made, await Stage.of(bound, made.nodes), gate, {})
    home = Audit(bound.hub, bound.user)
    every = [kind for way in (bound.hub, bound.worker) for kind in kinds(way.name, "/api/v1/pods", "Pod")]
    with (
        watching(bound.worker.kubeconfig, namespace=bound.mount) as below,
        watching(bound.hub.kubeconfig, "nodes", labels=f"kubeocean.io/cluster-binding={bound.name}") as nodes,
    ):
        results = []
        await met.create(0)
        for at in range(EACH):
            await met.stage.until(f"p0-{at}", ready, "Ready")
        for number, kind in enumerate(choice.part(every, DEFAULT), 1):
            results.append(await met.meets(number, kind))
            assert made.program.alive, made.program.tail()
    print(summary(results))
    _judge(met, below, home)
    assert not nodes.where(lambda event: event.kind == "DELETED")


def _judge(met: Met, below: Record, home: Audit) -> None:
    made_for = Counter(virtual_uid(event.object) for event in below.where(lambda event: event.kind == "ADDED"))
    assert made_for == Counter(met.uids.values()), "one physical pod for each"
    assert not below.where(lambda event: event.restarts > 0)
    deleted = {call.name for call in home.writes() if (call.verb, call.what, call.code) == ("delete", "pods", 200)}
    assert all(name.startswith("p") for name in deleted)
