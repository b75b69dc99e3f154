"""A process that meets the troubles of API servers brings every pod to where it should be, and creates none twice.

One scene meets all troubles one after another; in each, pods are created, changed and deleted on both sides.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from attrs import frozen

from tests.faults.cut.choice import Choice
from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.outages import SHORT, is_released
from tests.integration.kubeocean.test_restarts import ready
from tests.support.audit import Audit
from tests.support.bound import condition
from tests.support.gate import Gate
from tests.support.program import eventually
from tests.support.stage import Stage, uid_of, virtual_uid
from tests.support.troubles import Asked, Trouble, bookmarks_only, delayed, dropped, expired, repeated
from tests.support.witness import Record, watching

LASTS = 6.0
EXPIRES = 1.0
RECOVERS_WITHIN = 90.0
"""Seconds: a sweep of every minute finds what no event reported."""
DEFAULT = 3
"""Troubles of the default run."""
GRACE = 2
EACH = 2


@frozen
class Kind:
    """A trouble by name; `version` makes it one of reads as of the moment at which it begins."""

    name: str
    trouble: Callable[[str], Trouble]
    reset: bool = False
    """Watches that are open meet it too."""
    expires: bool = False
    """Watches expire at its end, as they do in an API server that has lost events: everything is listed again."""


def _watch(asked: Asked) -> bool:
    return asked.is_watch


def _read(asked: Asked) -> bool:
    return asked.method == "GET"


def _cached(asked: Asked) -> bool:
    """Reads of one object come from storage in every API server, never from a cache that lags."""
    return asked.is_watch or asked.is_list


def _write(asked: Asked) -> bool:
    return asked.is_write


def _on(way: str, when: Callable[[Asked], bool]) -> Callable[[Asked], bool]:
    return lambda asked: asked.way == way and when(asked)


def _half(way: str, when: Callable[[Asked], bool]) -> Callable[[Asked], bool]:
    """Every other request, so that work goes on in between."""
    seen = iter(range(1 << 30))
    return lambda asked: asked.way == way and when(asked) and next(seen) % 2 == 0


def _pods(event: dict[str, object]) -> bool:
    kind = event["object"]
    return isinstance(kind, dict) and kind.get("kind") == "Pod"


def _answered(when: Callable[[Asked], bool], status: int, version: str) -> Trouble:
    return Trouble(when=when, status=status, retry_after=1 if status in (429, 503) else 0)


def kinds(way: str) -> list[Kind]:
    """All troubles of one cluster."""
    simple = [
        Kind(f"{status} for {what}", partial(_answered, _half(way, when), status))
        for what, when, answers in (("reads", _read, (429, 500, 503)), ("writes", _write, (409, 429, 500, 503)))
        for status in answers
    ]
    return [
        *simple,
        Kind("lost answers", lambda _: Trouble(when=_half(way, _write), lost=True)),
        Kind("unsent writes", lambda _: Trouble(when=_half(way, _write), unsent=True)),
        Kind("hanging writes", lambda _: Trouble(when=_half(way, _write), hangs=True)),
        Kind("torn bodies", lambda _: Trouble(when=_half(way, _read), torn=True), reset=True),
        Kind("late answers", lambda _: Trouble(when=_on(way, lambda asked: not asked.is_watch), late=0.5)),
        Kind("slow bodies", lambda _: Trouble(when=_on(way, _read), rate=20_000), reset=True),
        Kind("expired watches", lambda _: Trouble(when=_on(way, _watch), status=410), reset=True),
        Kind("expired in a stream", lambda _: Trouble(when=_on(way, _watch), events=expired), reset=True),
        Kind("expired pages", lambda _: Trouble(when=_on(way, lambda asked: asked.is_page), status=410), reset=True),
        Kind("stale caches", lambda version: Trouble(when=_on(way, _cached), version=version), reset=True),
        Kind(
            "stale pods", lambda version: Trouble(when=_on(way, lambda a: _cached(a) and a.resource == "pods"), version=version), reset=True
        ),
        Kind("dropped events", lambda _: Trouble(when=_on(way, _watch), events=dropped(_pods)), reset=True, expires=True),
        Kind("repeated events", lambda _: Trouble(when=_on(way, _watch), events=repeated(3)), reset=True),
        Kind("delayed events", lambda _: Trouble(when=_on(way, _watch), events=delayed(0.2)), reset=True),
        Kind("bookmarks only", lambda _: Trouble(when=_on(way, _watch), events=bookmarks_only), reset=True, expires=True),
    ]


@frozen
class Met:
    """The scene, and pods of the trouble before, which are changed and deleted in this one."""

    scene: Scene
    stage: Stage
    gate: Gate
    uids: dict[str, str]

    async def meets(self, number: int, way: str, kind: Kind) -> float:
        """Seconds from its end until all is as it should be."""
        stage, last = self.stage, number - 1
        version = await self._version(way)
        with self.gate.trouble(kind.trouble(version), reset=kind.reset) as active:
            for at in range(EACH):
                name = f"p{number}-{at}"
                self.uids[name] = uid_of(await stage.create(name, terminationGracePeriodSeconds=GRACE))
                if number:
                    change = {"metadata": {"labels": {"number": str(number)}}}
                    await stage.home.patch("pods", f"p{last}-{at}", change, namespace=stage.namespace)
            if number:
                await stage.home.delete("pods", f"p{last}-0", stage.namespace)
                await stage.there.delete("pods", stage.physical_name(f"p{last}-1"), self.scene.bound.mount)
            await asyncio.sleep(LASTS)
            met = len(active.met)
        if kind.expires:
            with self.gate.trouble(Trouble(when=_on(way, _watch), status=410), reset=True):
                await asyncio.sleep(EXPIRES)
        began = datetime.now(UTC)
        try:
            await eventually(lambda: self._as_it_should_be(number), f"{way}: {kind.name}", seconds=RECOVERS_WITHIN, every=0.3)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self._state()}\n{self.scene.program.tail()}") from None
        took = (datetime.now(UTC) - began).total_seconds()
        print(f"{way}: {kind.name}: {met} requests, as it should be {took:.1f} s after its end")
        for name in (f"p{last}-1",) if number else ():
            await stage.home.delete("pods", name, stage.namespace)
        return took

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
        return not number or (f"p{number - 1}-0" not in home and last is not None and last["status"]["phase"] == "Failed")

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
    every = [(way.name, kind) for way in (bound.hub, bound.worker) for kind in kinds(way.name)]
    with (
        watching(bound.worker.kubeconfig, namespace=bound.mount) as below,
        watching(bound.hub.kubeconfig, "nodes", labels=f"kubeocean.io/cluster-binding={bound.name}") as nodes,
    ):
        for number, (way, kind) in enumerate(choice.part(every, DEFAULT)):
            await met.meets(number, way, kind)
            assert made.program.alive, made.program.tail()
    _judge(met, below, home)
    assert not nodes.where(lambda event: event.kind == "DELETED")


def _judge(met: Met, below: Record, home: Audit) -> None:
    made_for = Counter(virtual_uid(event.object) for event in below.where(lambda event: event.kind == "ADDED"))
    assert made_for == Counter(met.uids.values()), "one physical pod for each"
    assert not below.where(lambda event: event.restarts > 0)
    deleted = {call.name for call in home.writes() if (call.verb, call.what, call.code) == ("delete", "pods", 200)}
    assert all(name.startswith("p") for name in deleted)
