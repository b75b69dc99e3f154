"""Tests of fleet.agent.namespaces: a worker in memory, with the record of its cluster on a hub."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from fleet.agent.agent_settings import AgentSettings
from fleet.agent.namespaces import ManagedNamespaces, hub_label
from fleet.agent.situation import Situation
from fleet.api.resources import MANAGEDCLUSTERS
from tests.support.memory_api import MergingApi
from tests.unit.fleet.builders import Body, condition
from vkubelet.client.rest import Selection
from vkubelet.client.transport import Call
from vkubelet.control.informer import Informer
from vkubelet.control.recorder import Recorder
from vkubelet.errors import ApiError, Conflict, Forbidden, NotFound, ServerError
from vkubelet.metrics import Metrics
from vkubelet.testing.clock import ManualClock

RECORD = "/apis/cluster.open-cluster-management.io/v1/managedclusters/w1"
SPACES = "/api/v1/namespaces"
LABEL = hub_label("https://hub.example")


class HubApi(MergingApi):
    """A hub that refuses as many writes as there are `refusals`."""

    refusals: Sequence[Exception] = ()

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.method == "PATCH" and self.refusals:
            first, *self.refusals = self.refusals
            raise first
        return await super().fetch(call, timeout)


class WorkerApi(MergingApi):
    """Namespaces, of which a patch creates none."""

    forbidden = False

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if self.forbidden and call.path.startswith(SPACES):
            raise Forbidden(call.attempt, "namespaces is forbidden")
        if call.method == "PATCH" and call.path not in self.objects:
            raise NotFound(call.attempt, "not found")
        if call.method == "GET" and call.path == SPACES:
            items = [each for each in self.objects.values() if LABEL in each["metadata"].get("labels", {})]
            return json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()
        return await super().fetch(call, timeout)

    def labelled(self) -> list[str]:
        return sorted(each["metadata"]["name"] for each in self.objects.values() if LABEL in each["metadata"].get("labels", {}))


class Scene:
    """One accepted cluster."""

    def __init__(self, **settings: Any) -> None:
        self.clock, self.hub, self.worker = ManualClock(), HubApi(), WorkerApi()
        self.settings = AgentSettings(cluster="w1", **settings)
        self.prescribe()

    def prescribe(self, *names: str) -> None:
        """What the hub writes: known entries keep their conditions."""
        live = {each["name"]: each for each in self.entries} if RECORD in self.hub.objects else {}
        status = {
            "conditions": [condition("HubAcceptedManagedCluster", "True")],
            "managedNamespaces": [live.get(name, {"clusterSet": "s", "name": name}) for name in names],
        }
        self.hub.put(RECORD, {"metadata": {"name": "w1", "uid": "u"}, "spec": {"hubAcceptsClient": True}, "status": status})

    @property
    def entries(self) -> Sequence[Body]:
        return cast("Sequence[Body]", self.hub.objects[RECORD]["status"]["managedNamespaces"])

    def reported(self) -> dict[str, str]:
        return {each["name"]: each["conditions"][0]["reason"] for each in self.entries if each.get("conditions")}


@asynccontextmanager
async def running(scene: Scene) -> AsyncIterator[None]:
    hub, client, metrics = scene.hub.client(), scene.worker.client(), Metrics()
    record = Informer(hub, MANAGEDCLUSTERS, where=Selection(fields="metadata.name=w1"), clock=scene.clock, metrics=metrics)
    situation = Situation(Recorder(client, "tests", clock=scene.clock))
    managed = ManagedNamespaces(
        settings=scene.settings, situation=situation, clock=scene.clock, worker=client, hub=hub, record=record, label=LABEL
    )

    async def serve() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(record.run())
            group.create_task(managed.run())

    async with asyncio.TaskGroup() as group:
        task = group.create_task(serve())
        await scene.clock.settle()
        yield
        task.cancel()


def test_f_153_the_label_names_the_hub_within_the_limit_of_kubernetes() -> None:
    prefix, _, name = LABEL.partition("/")
    assert prefix == "clusterset.open-cluster-management.io" and len(name) == 63
    assert hub_label("https://other.example") != LABEL


async def test_f_153_namespaces_are_created_or_labelled_and_reported_once() -> None:
    scene = Scene()
    scene.worker.put(f"{SPACES}/b", {"metadata": {"name": "b", "uid": "b", "labels": {"a": "b"}}})
    async with running(scene):
        scene.prescribe("a", "b")
        await scene.clock.advance(120)
        assert scene.worker.labelled() == ["a", "b"] and scene.reported() == dict.fromkeys("ab", "NamespaceApplied")
        assert scene.worker.objects[f"{SPACES}/b"]["metadata"]["labels"]["a"] == "b"
        before = (len(scene.worker.writes), len(scene.hub.writes))
        await scene.clock.advance(600)
        assert (len(scene.worker.writes), len(scene.hub.writes)) == before


async def test_f_153_f_51_one_that_is_not_prescribed_any_more_loses_its_label_alone() -> None:
    scene = Scene()
    async with running(scene):
        scene.prescribe("a", "b")
        await scene.clock.advance(120)
        scene.prescribe("a")
        await scene.clock.advance(120)
        assert scene.worker.labelled() == ["a"] and f"{SPACES}/b" in scene.worker.objects
        assert not [each for each in scene.worker.writes if each.method == "DELETE"]


async def test_f_153_a_label_of_an_earlier_process_is_removed() -> None:
    scene = Scene()
    scene.worker.put(f"{SPACES}/old", {"metadata": {"name": "old", "uid": "o", "labels": {LABEL: "true"}}})
    async with running(scene):
        await scene.clock.advance(120)
        assert scene.worker.labelled() == []


@pytest.mark.parametrize("error", [Conflict, ServerError])
async def test_f_153_a_report_that_is_refused_is_repeated_soon(error: type[ApiError]) -> None:
    scene = Scene()
    scene.hub.refusals = [error("patch managedclusters/status w1", "refused")] * 2
    async with running(scene):
        scene.prescribe("a")
        await scene.clock.advance(10)
        assert not scene.hub.refusals and scene.reported() == {"a": "NamespaceApplied"}


async def test_f_153_a_deleted_namespace_comes_back() -> None:
    scene = Scene()
    async with running(scene):
        scene.prescribe("a")
        await scene.clock.advance(120)
        scene.worker.delete(f"{SPACES}/a")
        await scene.clock.advance(120)
        assert scene.worker.labelled() == ["a"]


async def test_f_153_a_missing_right_is_reported_with_the_rule() -> None:
    scene = Scene()
    scene.worker.forbidden = True
    async with running(scene):
        scene.prescribe("a")
        await scene.clock.advance(120)
        assert scene.reported() == {"a": "NamespaceApplyFailed"}
        assert "verbs: [list, create, patch]" in scene.entries[0]["conditions"][0]["message"]


async def test_f_153_a_worker_whose_owner_does_not_allow_it_says_so() -> None:
    scene = Scene(managed_namespaces=False)
    async with running(scene):
        scene.prescribe("a")
        await scene.clock.advance(120)
        assert scene.reported() == {"a": "NamespaceApplyFailed"} and scene.worker.writes == []
        assert "agent.managed_namespaces" in scene.entries[0]["conditions"][0]["message"]
