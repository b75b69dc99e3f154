"""Compares the model with a real API server: the same random requests, the same answers and the same watch events.

Invariant: a difference is fixed in the model, or it is in the list below with its reason. Not compared, with the reason:

- The text of messages: the product decides by code, reason and the fields of causes; texts of Go types cannot be produced here.
- managedFields: the product never reads them, and every write of a real server adds to them.
- UIDs, times, generated names and the numbers of resourceVersions, which differ by nature. How a resourceVersion relates to the last one of
  the same object (same, later) is compared.
- A change of tolerations that admission reverts: whether a real server then stores the object depends on the seconds in managedFields, so
  the generator sends each toleration once.
- The order of items of a list, and rules in CEL of custom resources, which the generator does not violate.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from attrs import define, field, frozen

from tests.faults.model.judge import Modelled, Real, Side, tls_of
from tests.faults.model.request import Request
from tests.faults.model.sequences import Sequence
from tests.faults.model.server import ApiModel
from tests.faults.model.steps import Body, Step
from tests.faults.model.watching import Watch
from vkubelet.api.codec import decode_yaml
from vkubelet.testing.cluster import ControlPlane, Options, Site

ROOT = Path(__file__).parents[3]
STEPS, AT_ONCE = 110, 4
ALONE = Options(controllers=False, scheduler=False, aggregation=False)
"""etcd and kube-apiserver alone: controllers would write between two requests."""
_PATIENCE = 10.0


@frozen
class Difference:
    """One request, or watch, that the two servers answered differently."""

    where: str
    step: object
    real: object
    model: object

    def __str__(self) -> str:
        return f"{self.where}: {self.step}\n  real  {json.dumps(self.real)}\n  model {json.dumps(self.model)}"


def definitions() -> list[Body]:
    """Returns our CustomResourceDefinitions."""
    return [decode_yaml(file.read_text()) for file in sorted((ROOT / "kubeocean" / "manifests").glob("*.yaml"))]


def new_model() -> ApiModel:
    model = ApiModel(now=lambda: datetime.now(UTC), controllers=False)
    for definition in definitions():
        model.define(definition)
    return model


@define
class Watched:
    """One watch on both servers."""

    path: str
    params: Body
    modelled: Watch
    real: list[Body] = field(factory=list)

    async def difference(self, where: str, plain: Side) -> Difference | None:
        """Compares the events, once as many have arrived."""
        expected = [self._shown(json.loads(line), plain) for line in (await _pending(self.modelled)).splitlines()]
        expected = [each for each in expected if each is not None]
        try:
            async with asyncio.timeout(_PATIENCE):
                while len(self._received(plain)) < len(expected):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pass
        received = self._received(plain)
        if received == expected:
            return None
        first = next(
            (index for index, (one, other) in enumerate(zip(received, expected, strict=False)) if one != other),
            min(len(received), len(expected)),
        )
        return Difference(f"{where} watch, event {first}", (self.path, self.params), received[first:][:2], expected[first:][:2])

    def _received(self, plain: Side) -> list[object]:
        shown = [self._shown(event, plain) for event in self.real]
        return [each for each in shown if each is not None]

    def _shown(self, event: Body, plain: Side) -> object:
        if event["type"] == "BOOKMARK":
            ends = (event["object"]["metadata"].get("annotations") or {}).get("k8s.io/initial-events-end")
            return "initial events end" if ends else None
        return event["type"], plain.plain(event["object"])


async def _pending(watch: Watch) -> bytes:
    return await watch.readany() if watch.pending else b""


async def run_sequence(seed: int, number: int, *, real: Real) -> list[Difference]:
    """Sends one sequence to both servers; returns where they differ."""
    sequence, model = Sequence(f"s{seed}-{number}", seed * 1000 + number), new_model()
    one, other = Side(real), Side(Modelled(model))
    found: list[Difference] = []
    where = f"sequence {number}"
    begin = sequence.begin()
    for step in begin[:2]:
        await one.ask(step), await other.ask(step)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        watches = [await _open(group, real, model, path, params) for path, params in _watches(sequence)]
        stack.callback(lambda: [model.close_watch(each[0].modelled) for each in watches])
        steps = [*begin[2:], *(sequence.step() for _ in range(STEPS))]
        for index, step in enumerate(steps):
            expected, answer = await one.ask(step), await other.ask(step)
            if json.dumps(expected, sort_keys=True) != json.dumps(answer, sort_keys=True):
                found.append(Difference(f"{where} step {index}", step, expected, answer))
        for watched, task in watches:
            difference = await watched.difference(where, one)
            if difference is not None:
                found.append(difference)
            task.cancel()
    await _clean_up(sequence, real)
    return found


def _watches(sequence: Sequence) -> Iterator[tuple[str, Body]]:
    pods = f"{sequence.space}/pods"
    initial = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    yield pods, initial
    yield pods, {"labelSelector": "app=web"}
    yield pods, {"fieldSelector": "spec.nodeName!=", **initial}
    yield pods, {"fieldSelector": "status.phase=Running"}
    yield pods, {"fieldSelector": "metadata.name=a", **initial}
    yield f"{sequence.space}/configmaps", {}
    yield f"{sequence.space}/events", {"fieldSelector": "involvedObject.kind=Pod"}
    yield f"/apis/apps/v1/namespaces/{sequence.name}/deployments", {}
    yield f"{sequence.space}/persistentvolumeclaims", {}
    yield f"/apis/coordination.k8s.io/v1/namespaces/{sequence.name}/leases", initial
    yield "/api/v1/nodes", {"labelSelector": f"seq={sequence.name}"}
    yield "/apis/cloud.tencent.com/v1beta1/resourceleasingpolicies", {"labelSelector": f"seq={sequence.name}", **initial}


async def _open(group: asyncio.TaskGroup, real: Real, model: ApiModel, path: str, params: Body) -> tuple[Watched, asyncio.Task[None]]:
    modelled = model.open_watch(Request(method="GET", path=path, user="test", params=params))
    await _pending(modelled) if not params.get("sendInitialEvents") else b""
    watched, opened = Watched(path, params, modelled), asyncio.Event()
    if not params.get("sendInitialEvents"):
        params = {**params, "resourceVersion": (await real.send(Step("GET", path, {"limit": "1"}))).body["metadata"]["resourceVersion"]}
    task = group.create_task(real.watch(path, params, watched.real, opened))
    await opened.wait()
    return watched, task


async def _clean_up(sequence: Sequence, real: Real) -> None:
    """Removes what is cluster-scoped, as far as it can be."""
    group = "/apis/cloud.tencent.com/v1beta1/resourceleasingpolicies"
    names = [f"/api/v1/nodes/{sequence.name}-{end}" for end in "nm"] + [f"{group}/{sequence.name}-{end}" for end in "pq"]
    names += [f"/apis/cloud.tencent.com/v1beta1/clusterbindings/{sequence.name}"]
    names += [f"/api/v1/persistentvolumes/{sequence.name}-v", f"/apis/storage.k8s.io/v1/csinodes/{sequence.name}-n"]
    for path in names:
        await real.send(Step("PATCH", path, {}, {"metadata": {"finalizers": None}}, "application/merge-patch+json"))
        await real.send(Step("DELETE", path, {}, {}))


async def compare(plane: ControlPlane, seed: int, *, first: int = 0, sequences: int) -> list[Difference]:
    """Runs so many sequences, a few at once; returns where the servers differ."""
    url, context = tls_of(plane.kubeconfig)
    limit = asyncio.Semaphore(AT_ONCE)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=0)) as session:
        real = Real(session, url)
        for definition in definitions():
            await real.send(Step("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", {}, definition))
        async with asyncio.timeout(_PATIENCE):
            while (await real.send(Step("GET", "/apis/cloud.tencent.com/v1beta1/resourceleasingpolicies"))).code != 200:
                await asyncio.sleep(0.1)

        async def limited(number: int) -> list[Difference]:
            async with limit:
                return await run_sequence(seed, number, real=real)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(limited(number)) for number in range(first, first + sequences)]
    return [difference for task in tasks for difference in task.result()]


async def compare_with_new(seed: int, *, first: int = 0, sequences: int) -> list[Difference]:
    """Does the same with an API server that is started for it."""
    async with Site(say=print) as site, ControlPlane("alone", site, options=ALONE) as plane:
        return await compare(plane, seed, first=first, sequences=sequences)
