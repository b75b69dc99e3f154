"""A process that meets the troubles of API servers brings every pod to where it should be, and creates none twice.

One scene meets all troubles one after another; in each, pods are created, changed and deleted on both sides.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
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
"""Seconds, from when a request or an event has met the trouble."""
EXPIRES = 1.0
MEETS_WITHIN = 120.0
"""Seconds: a watch whose connections were reset often waits up to 30 until it is repeated."""
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
    """Watches that are open meet it too; pods are changed as soon as one has."""
    watch: str = "/pods?"
    """Part of the request that a reset causes."""
    beside: Callable[[], Sequence[Trouble]] = tuple
    """Troubles that cause requests for it."""
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


def _lists_in_pages(way: str) -> list[Trouble]:
    """Each watch expires once; then objects are listed in pages of one, because the watch cache cannot stream them."""
    expired_once: set[str] = set()

    def first_of_each(asked: Asked) -> bool:
        first = asked.way == way and asked.is_watch and asked.path not in expired_once
        expired_once.update({asked.path} if first else ())
        return first

    return [
        Trouble(when=_on(way, lambda asked: asked.is_list), page=1),
        Trouble(when=_on(way, lambda asked: asked.streams_list), status=504),
        Trouble(when=first_of_each, status=410),
    ]


def kinds(way: str) -> list[Kind]:
    """All troubles of one cluster."""
    reads = [Kind(f"{status} for reads", partial(_answered, _half(way, _read), status), reset=True, watch="") for status in (429, 500, 503)]
    writes = [Kind(f"{status} for writes", partial(_answered, _half(way, _write), status)) for status in (409, 429, 500, 503)]
    return [
        *reads,
        *writes,
        Kind("lost answers", lambda _: Trouble(when=_half(way, _write), lost=True)),
        Kind("unsent writes", lambda _: Trouble(when=_half(way, _write), unsent=True)),
        Kind("hanging writes", lambda _: Trouble(when=_half(way, _write), hangs=True)),
        Kind("torn bodies", lambda _: Trouble(when=_half(way, _read), torn=True), reset=True),
        Kind("late answers", lambda _: Trouble(when=_on(way, lambda asked: not asked.is_watch), late=0.5)),
        Kind("slow bodies", lambda _: Trouble(when=_on(way, _read), rate=20_000), reset=True),
        Kind("expired watches", lambda _: Trouble(when=_on(way, _watch), status=410), reset=True),
        Kind("expired in a stream", lambda _: Trouble(when=_on(way, _watch), events=expired), reset=True),
        Kind(
            "expired pages",
            lambda _: Trouble(when=_on(way, lambda asked: asked.is_page), status=410),
            reset=True,
            beside=partial(_lists_in_pages, way),
        ),
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
class Result:
    """Of one trouble: requests that met it, events of watches that it changed, seconds from its end until all is as it should be."""

    name: str
    requests: int
    events: int
    took: float

    def __str__(self) -> str:
        return f"{self.name}: {self.requests} requests, {self.events} events, as it should be {self.took:.1f} s after its end"


@frozen
class Met:
    """The scene, and pods of the trouble before, which are changed and deleted in this one."""

    scene: Scene
    stage: Stage
    gate: Gate
    uids: dict[str, str]

    async def meets(self, number: int, way: str, kind: Kind) -> Result:
        """Returns how often it was met, and the seconds from its end until all is as it should be."""
        trouble = kind.trouble(await self._version(way))
        with ExitStack() as beside:
            for each in kind.beside():
                beside.enter_context(self.gate.trouble(each))
            with self.gate.trouble(trouble, reset=kind.reset) as active:
                if kind.reset:
                    await self._met(way, kind, lambda: any(kind.watch in request for request in active.met))
                await self._change(number)
                await self._met(way, kind, lambda: active.met and (active.changed or trouble.events is None))
                await asyncio.sleep(LASTS)
        if kind.expires:
            with self.gate.trouble(Trouble(when=_on(way, _watch), status=410), reset=True) as expiry:
                await self._met(way, kind, lambda: any(kind.watch in request for request in expiry.met))
                await asyncio.sleep(EXPIRES)
        result = Result(f"{way}: {kind.name}", len(active.met), active.changed, await self._recovery(number, f"{way}: {kind.name}"))
        print(result)
        await self.stage.home.delete("pods", f"p{number - 1}-1", self.stage.namespace)
        return result

    async def create(self, number: int) -> None:
        """The pods of a trouble."""
        for at in range(EACH):
            name = f"p{number}-{at}"
            self.uids[name] = uid_of(await self.stage.create(name, terminationGracePeriodSeconds=GRACE))

    async def _met(self, way: str, kind: Kind, check: Callable[[], object]) -> None:
        await eventually(check, f"{way}: {kind.name} meets something", seconds=MEETS_WITHIN, by=[self.scene.program])

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
    every = [(way.name, kind) for way in (bound.hub, bound.worker) for kind in kinds(way.name)]
    with (
        watching(bound.worker.kubeconfig, namespace=bound.mount) as below,
        watching(bound.hub.kubeconfig, "nodes", labels=f"kubeocean.io/cluster-binding={bound.name}") as nodes,
    ):
        results = []
        await met.create(0)
        for at in range(EACH):
            await met.stage.until(f"p0-{at}", ready, "Ready")
        for number, (way, kind) in enumerate(choice.part(every, DEFAULT), 1):
            results.append(await met.meets(number, way, kind))
            assert made.program.alive, made.program.tail()
    slowest = max(results, key=lambda result: result.took)
    print(f"{len(results)} troubles, each met by {min(result.requests for result in results)} requests or more; slowest: {slowest}")
    _judge(met, below, home)
    assert not nodes.where(lambda event: event.kind == "DELETED")


def _judge(met: Met, below: Record, home: Audit) -> None:
    made_for = Counter(virtual_uid(event.object) for event in below.where(lambda event: event.kind == "ADDED"))
    assert made_for == Counter(met.uids.values()), "one physical pod for each"
    assert not below.where(lambda event: event.restarts > 0)
    deleted = {call.name for call in home.writes() if (call.verb, call.what, call.code) == ("delete", "pods", 200)}
    assert all(name.startswith("p") for name in deleted)
