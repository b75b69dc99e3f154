"""Killed at each of its writes, and started again, the process brings every pod to where it has to be, and makes none twice.

Two processes are killed side by side: one at its 1st, 3rd, 5th … write, the other at the 2nd, 4th …; by turns right after the answer and
just before it arrives. Imports, which are most of a start, are made once for all of them. Judged by a client of the official package and by
the audit logs of both API servers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import chain, count
from typing import Any

import pytest
from attrs import define, field

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.support.audit import Audit
from tests.support.bound import Body, condition, items
from tests.support.gate import Gate
from tests.support.program import PATIENCE, eventually
from tests.support.stage import Stage, physical_name, uid_of, virtual_uid
from vkubelet.testing.cluster import ControlPlane

PODS = ("full", "plain", "two")
SHARED = ("configmaps/settings", "secrets/word", "configmaps/kube-root-ca.crt")
"""What the pods name, and what every pod with a token names."""
LANES = 2
FEWEST = 12
"""Writes it takes to make the pods, and to end them; fewer would mean that the kills came elsewhere."""
OURS = "kubeocean.io/managed-by=kubeocean"
SETTLED = 1.5
"""Seconds without a write after which there is none to come; copies are deleted half a second after their last user."""
QUIET = timedelta(seconds=10)
SETTINGS = {"provider": {"unused_copy_after": 0.4}, "log": {"level": "DEBUG"}}


@define(eq=False)
class Lane:
    """One process, killed again and again; `stages` are the namespaces in which it was."""

    scene: Scene
    gate: Gate
    first: int
    stages: list[Stage] = field(factory=list)
    uids: dict[str, str] = field(factory=dict)
    """Of the virtual pods, by NAMESPACE/NAME."""
    _ready: asyncio.Task[Stage] | None = None

    async def creations(self) -> int:
        """Kill it at every second write while it makes three pods, each time in another namespace; the last write it was killed at."""
        for number in count(self.first, LANES):
            self.stages.append(stage := await self._next_stage())
            if not await self._killed_at(number, lambda stage=stage: self._create(stage), lambda stage=stage: self._all_run(stage)):
                return number - LANES
        raise AssertionError

    async def deletions(self) -> int:
        """The same while they end."""
        for at, number in enumerate(count(self.first, LANES)):
            if at == len(self.stages):
                await self._one_more()
            stage = self.stages[at]
            if not await self._killed_at(number, lambda stage=stage: self._delete(stage), lambda stage=stage: self._nothing_left(stage)):
                return number - LANES
        raise AssertionError

    async def rest(self) -> None:
        """End what runs still."""
        if self._ready is not None:
            await self._ready
        for stage in self.stages:
            await self._delete(stage)
        for stage in self.stages:
            await self._eventually(lambda stage=stage: self._nothing_left(stage), "nothing is left")

    async def _one_more(self) -> None:
        self.stages.append(stage := await self._next_stage())
        await self._create(stage)
        await self._eventually(lambda: self._all_run(stage), "pods run")

    async def _killed_at(
        self, number: int, begin: Callable[[], Coroutine[Any, Any, None]], reached: Callable[[], Coroutine[Any, Any, bool]]
    ) -> bool:
        """False when the wanted state was reached with fewer writes. Reached it is in any case."""
        program = self.scene.program
        self.gate.arm(number, program, withheld=number // LANES % 2 == 1)
        await begin()

        await self._eventually(lambda: self._dead_or_done(reached), f"write {number}, or the wanted state")
        if not self.gate.disarm():
            return False
        program.kill()
        program.start()
        await self._eventually(reached, f"the wanted state after a kill at write {number}")
        return True

    async def _dead_or_done(self, reached: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """Done is what is as it should be and stays so without a write."""
        before = self.gate.writes
        if self.gate.fired or not await reached():
            return self.gate.fired
        await asyncio.sleep(SETTLED)
        return self.gate.fired or self.gate.writes == before

    async def _eventually(self, check: Callable[[], Coroutine[Any, Any, bool]], what: str) -> None:
        try:
            await eventually(check, what, seconds=120, every=0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.scene.program.tail()}") from None

    async def _next_stage(self) -> Stage:
        """Made while the process was at another one."""
        ready, self._ready = self._ready or asyncio.create_task(self._stage()), asyncio.create_task(self._stage())
        return await ready

    async def _stage(self) -> Stage:
        stage = await Stage.of(self.scene.bound, self.scene.nodes)
        metadata = {"namespace": stage.namespace}
        await stage.home.create("configmaps", {"metadata": {"name": "settings", **metadata}, "data": {"colour": "blue"}})
        await stage.home.create("secrets", {"metadata": {"name": "word", **metadata}, "data": {"word": "cGFzcw=="}})
        return stage

    async def _create(self, stage: Stage) -> None:
        bodies = [_full(stage), stage.body("plain", automountServiceAccountToken=False), _two(stage)]
        for body in await asyncio.gather(*(stage.home.create("pods", body) for body in bodies)):
            self.uids[f"{stage.namespace}/{body['metadata']['name']}"] = uid_of(body)

    async def _delete(self, stage: Stage) -> None:
        await asyncio.gather(*(stage.home.delete("pods", name, stage.namespace) for name in PODS))

    async def _all_run(self, stage: Stage) -> bool:
        pods = await stage.home.list("pods", stage.namespace)
        return len(pods) == len(PODS) and all(condition(pod, "Ready") == "True" for pod in pods)

    async def _nothing_left(self, stage: Stage) -> bool:
        """Of the pods and of what was made for them, in either cluster."""
        if await stage.home.list("pods", stage.namespace):
            return False
        for kind in ("pods", "secrets", "configmaps"):
            if any(_is_of(stage, body) for body in await stage.there.list(kind, stage.bound.mount)):
                return False
        for each in SHARED:
            kind, name = each.split("/")
            original = await stage.home.get(kind, name, stage.namespace)
            assert original is not None
            if original["metadata"].get("finalizers") or "kubeocean.io" in str(original["metadata"].get("labels")):
                return False
        return True

    async def nothing_left_at_all(self) -> bool:
        """Of ours in the mount namespace, whatever it was for."""
        found = await items(self.scene.bound.worker, "pods,secrets,configmaps", "-n", self.scene.bound.mount, "-l", OURS)
        return [body["metadata"]["name"] for body in found] == []

    async def assert_one_physical_pod_each(self) -> None:
        """None was made twice, and those there now are the pods' own."""
        found = await self.stages[0].there.list("pods", self.scene.bound.mount)
        assert Counter(map(virtual_uid, found)) == Counter(self.uids.values())

    def assert_none_made_twice(self, scheduler: Audit) -> None:
        """By the bindings of the scheduler: a create whose sender was killed is logged with 504, whether or not it took effect."""
        bound = [call for call in scheduler.writes() if (call.what, call.code) == ("pods/binding", 201)]
        made = Counter(call.name for call in bound if call.namespace == self.scene.bound.mount)
        names = (key.split("/") for key in self.uids)
        assert made == Counter({physical_name(namespace, name): 1 for namespace, name in names})


def _full(stage: Stage) -> Body:
    volumes = [{"name": "c", "configMap": {"name": "settings"}}, {"name": "s", "secret": {"secretName": "word"}}]
    return stage.body("full", volumes=volumes)


def _two(stage: Stage) -> Body:
    """Two containers, two tokens, and a reference that another pod has as well."""
    body = stage.body("two")
    first = body["spec"]["containers"][0]
    env = [{"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}}]
    body["spec"]["containers"] = [first, {**first, "name": "second", "env": env}]
    token = {"serviceAccountToken": {"audience": "somebody", "path": "token", "expirationSeconds": 3600}}
    body["spec"]["volumes"] = [{"name": "t", "projected": {"sources": [token]}}]
    return body


def _is_of(stage: Stage, body: Body) -> bool:
    notes = body["metadata"].get("annotations") or {}
    return stage.namespace in (notes.get("kubeocean.io/virtual-pod-namespace"), notes.get("kubeocean.io/virtual-namespace"))


async def _quiet(audits: Sequence[Audit]) -> None:
    """Wait until nothing but leases was written for so long; pods that are where they should be want nothing more."""

    begin = datetime.now(UTC)

    def last() -> datetime:
        writes = (call for audit in audits for call in audit.writes())
        return max((call.at for call in writes if call.what != "leases"), default=begin)

    await eventually(
        lambda: datetime.now(UTC) - last() > QUIET, "nothing is written any more", seconds=QUIET.total_seconds() + PATIENCE, every=0.5
    )


@pytest.fixture
def gates() -> Iterator[tuple[Gate, Gate]]:
    with Gate() as one, Gate() as other:
        yield one, other


async def test_killed_at_every_write_and_started_again_it_reaches_the_wanted_state_once(
    gates: tuple[Gate, Gate], scene: MakeScene, hub: ControlPlane
) -> None:
    settings = {**SETTINGS, "server": {"node_address": hub.host_address, "main_port": 0, "certificate": "self-signed"}}
    scenes = [await scene(start=False, way=gate.way, settings=settings) for gate in gates]
    lanes = [Lane(made, gate, first) for first, (made, gate) in enumerate(zip(scenes, gates, strict=True), 1)]
    with ExitStack() as stack:
        for made in scenes:
            stack.enter_context(made.program)
        await asyncio.gather(*(lane.scene.ready() for lane in lanes))
        await _killed_everywhere(lanes)


async def _killed_everywhere(lanes: list[Lane]) -> None:
    hub, worker = lanes[0].scene.bound.hub, lanes[0].scene.bound.worker
    audits = {lane: (Audit(hub, lane.scene.bound.user), Audit(worker, lane.scene.bound.user)) for lane in lanes}
    scheduler = Audit(worker, "system:kube-scheduler")
    made = await asyncio.gather(*(lane.creations() for lane in lanes))
    await _quiet(list(chain(*audits.values())))
    await asyncio.gather(*(lane.assert_one_physical_pod_each() for lane in lanes))
    ended = await asyncio.gather(*(lane.deletions() for lane in lanes))
    print(f"killed at {made} writes of creations, at {ended} of deletions")
    await asyncio.gather(*(lane.rest() for lane in lanes))
    await _quiet(list(chain(*audits.values())))
    assert min(*made, *ended) >= FEWEST
    for lane in lanes:
        lane.assert_none_made_twice(scheduler)
        assert await lane.nothing_left_at_all()
