"""Tests of kubeocean.mirrors.extra_kinds: kinds that are not served or permitted, and those that are removed from the setting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from attrs import evolve

from kubeocean.mirrors.extra_kinds import ExtraKinds, discovered
from kubeocean.mirrors.namespaces import MirroredNamespaces
from kubeocean.model import keys
from kubeocean.model.kinds import ExtraKind
from kubeocean.service.connector import _left_in
from kubeocean.worker.cluster import Mount, WorkerCluster
from tests.support.memory_api import MemoryApi
from tests.unit.kubeocean.builders import OWNER, binding, worker_scope
from tests.unit.kubeocean.world import listed
from vkubelet.client.transport import Call
from vkubelet.errors import Forbidden, NotFound, ServerError
from vkubelet.testing.host import RecordingHost

LOGS = ExtraKind(api_version="logs.example.com/v1", resource="logs", namespaced=False)
SERVED = {"resources": [{"name": "logs", "namespaced": False, "kind": "Log"}, {"name": "logs/status", "namespaced": False, "kind": "Log"}]}


class Scene:
    """A hub and a worker; `serves` are those that serve the kind."""

    def __init__(self, *kinds: ExtraKind, noted: str = "", worker: MemoryApi | None = None) -> None:
        self.hub, self.worker = MemoryApi(), worker or MemoryApi()
        self.host = RecordingHost(client=self.hub.client())
        self.cluster = WorkerCluster(self.worker.client(), Mount(OWNER, "mnt"), clock=self.host.clock, probe_interval=10)
        scope = worker_scope(self.host, self.cluster)
        self.scope = evolve(scope, settings=evolve(scope.settings, extra_kinds=kinds))
        self.scope.virtual.complete()
        self.scope.binding.current = binding(annotations={keys.MIRRORED_KINDS: noted} if noted else {})
        listed(self.cluster.pods)
        self.hub.put("/apis/cloud.tencent.com/v1beta1/clusterbindings/demo", {"metadata": {"name": "demo", "uid": "binding-uid"}})

        async def prepare(namespace: str) -> None:
            pass

        self.kinds = ExtraKinds(self.scope, namespaces=MirroredNamespaces(self.scope), prepare=prepare)

    def serve(self, *sides: MemoryApi) -> None:
        for side in sides:
            side.put(LOGS.path, SERVED)

    @property
    def state(self) -> Any:
        return self.scope.binding._health.kinds

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.kinds.run())
        try:
            yield
        finally:
            task.cancel()

    async def until(self, check: Callable[[], Any]) -> Any:
        for _ in range(100):
            if found := check():
                return found
            await self.host.clock.advance(1.0)
        raise AssertionError(f"not seen; the state is {self.state}")


async def test_a_kind_that_a_cluster_does_not_serve_is_named_and_looked_for_again() -> None:
    scene = Scene(LOGS)
    scene.serve(scene.hub)
    async with scene.running():
        state = await scene.until(lambda: scene.state)
        assert (state.holds, state.reason) == (False, "NotServed")
        assert state.message == (
            "the worker cluster does not serve logs.logs.example.com in version v1; install its CustomResourceDefinition there, or remove "
            "the kind from provider.extra_kinds"
        )
        scene.serve(scene.worker)
        state = await scene.until(lambda: scene.state if scene.state.holds else None)
        assert state.message == "logs.logs.example.com of the hub have mirrors in the worker"


async def test_a_kind_that_is_missing_in_one_cluster_stops_no_other() -> None:
    other = ExtraKind(api_version="other.example.com/v1", resource="others")
    scene = Scene(other, LOGS)
    scene.serve(scene.hub, scene.worker)
    scene.hub.put("/apis/logs.example.com/v1/logs/web", {"metadata": {"name": "web", "uid": "u"}, "spec": {"a": 1}})
    async with scene.running():
        await scene.until(lambda: [path for path in scene.worker.objects if path.startswith("/apis/logs.example.com/v1/logs/")])
        state = await scene.until(lambda: scene.state)
        assert state.reason == "NotServed" and state.message.startswith("the hub does not serve others.other.example.com in version v1")


async def test_a_refused_list_names_the_kind_the_right_and_the_remedy() -> None:
    scene = Scene(LOGS)
    scene.serve(scene.hub, scene.worker)
    async with scene.running():
        mirror = await scene.until(lambda: scene.kinds._running.get(LOGS.title))
        mirror.mirrors.last_error = Forbidden("list logs.logs.example.com", 'cannot list resource "logs"', status=403)
        state = await scene.until(lambda: scene.state if scene.state and not scene.state.holds else None)
        assert state.reason == "RightsMissing"
        cause = 'list logs.logs.example.com: cannot list resource "logs" (in the worker cluster)'
        assert state.message.startswith(f"logs.logs.example.com are not mirrored: {cause}; ")
        assert "kubeocean bind --extra-kinds FILE" in state.message


async def test_rights_that_were_removed_stop_changes_and_leave_the_mirrors() -> None:
    scene = Scene(LOGS, noted=LOGS.note)
    scene.serve(scene.hub, scene.worker)
    async with scene.running():
        mirror = await scene.until(lambda: scene.kinds._running.get(LOGS.title))
        mirror._originals.last_error = Forbidden("list logs.logs.example.com", "forbidden", status=403)
        state = await scene.until(lambda: scene.state if scene.state and not scene.state.holds else None)
        text = "changes of logs.logs.example.com are not mirrored, and existing mirrors stay as they are: "
        assert state.message.startswith(f"{text}list logs.logs.example.com: forbidden (in the hub); ")


class Broken(MemoryApi):
    """An API server whose etcd does not have the objects of one kind."""

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.path == f"{LOGS.path}/logs":
            raise ServerError(call.attempt, "etcd is down", status=500)
        return await super().fetch(call, timeout)

    def open(self, call: Call, timeout: object) -> Any:
        if call.path == f"{LOGS.path}/logs":
            raise ServerError(call.attempt, "etcd is down", status=500)
        return super().open(call, timeout)


async def test_a_list_that_fails_from_the_start_is_named_beside_the_other_kinds() -> None:
    other = ExtraKind(api_version="other.example.com/v1", resource="others")
    worker = Broken()
    scene = Scene(other, LOGS, worker=worker)
    scene.serve(scene.hub, worker)
    for side in (scene.hub, worker):
        side.put(other.path, {"resources": [{"name": "others", "namespaced": True, "kind": "Other"}]})
    async with scene.running():
        state = await scene.until(lambda: scene.state)
        assert (state.holds, state.reason) == (False, "NotListed")
        assert state.message.startswith("logs.logs.example.com are not mirrored: ")
        assert "etcd is down (in the worker cluster); " in state.message and "check the API server" in state.message
        worker.lend_to(scene.cluster.client)
        worker.__class__ = MemoryApi
        assert await scene.until(lambda: scene.state if scene.state.holds else None)


async def test_a_wrong_scope_names_the_setting() -> None:
    scene = Scene()
    scene.serve(scene.hub)
    text = await discovered(scene.host.client, evolve(LOGS, namespaced=True), where="hub")
    assert text == "logs.logs.example.com has no namespaces in the hub; correct `namespaced` of the kind in provider.extra_kinds"
    found = await discovered(scene.host.client, LOGS, where="hub")
    assert not isinstance(found, str) and found.kind == "Log"


class Garbled(MemoryApi):
    """A proxy before the API server answers with a page at first."""

    page = b"<html>please log in</html>"

    async def fetch(self, call: Call, timeout: float) -> bytes:
        return self.page if self.page and call.path == LOGS.path else await super().fetch(call, timeout)


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (b"<html>please log in</html>", "not valid JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"resources": 1}', "`resources` is not a list of objects"),
        (b'{"resources": {"name": "logs"}}', "`resources` is not a list of objects"),
        (b'{"resources": ["logs"]}', "`resources` is not a list of objects"),
        (b'{"resources": [{"name": "logs", "kind": {}}]}', "`kind` or `namespaced` of logs cannot be read"),
        (b'{"resources": [{"name": "logs", "kind": "Log", "namespaced": "false"}]}', "`kind` or `namespaced` of logs cannot be read"),
    ],
)
async def test_a_response_that_cannot_be_read_is_named_and_asked_for_again(page: bytes, why: str) -> None:
    worker = Garbled()
    worker.page = page
    scene = Scene(LOGS, worker=worker)
    scene.serve(scene.hub, worker)
    async with scene.running():
        state = await scene.until(lambda: scene.state)
        assert (state.holds, state.reason) == (False, "NotServed")
        assert state.message == f"cannot find logs.logs.example.com in the worker cluster: GET {LOGS.path}: {why}"
        worker.page = b""
        assert await scene.until(lambda: scene.state if scene.state.holds else None)


async def test_mirrors_of_a_removed_kind_are_deleted_before_its_record() -> None:
    scene = Scene(noted=LOGS.note)
    ours = {"name": "a", "uid": "a", "labels": dict(OWNER.labels), "annotations": dict(OWNER.annotations)}
    for body in (ours, {"name": "b", "uid": "b", "labels": {keys.MANAGED_BY: "kubeocean", keys.OWNER: "other"}}):
        scene.worker.put(f"/apis/logs.example.com/v1/logs/{body['name']}", {"metadata": body})
    async with scene.running():
        await scene.until(lambda: scene.hub.writes)
    assert [(each.method, each.path) for each in scene.worker.writes] == [("DELETE", "/apis/logs.example.com/v1/logs/a")]
    assert scene.hub.writes[0].body["metadata"]["annotations"] == {keys.MIRRORED_KINDS: None}


class DeletedBefore(MemoryApi):
    """Another client deletes the object at `path` just before a deletion arrives."""

    path = ""

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.method == "DELETE" and call.path == self.path:
            self.delete(self.path)
        return await super().fetch(call, timeout)


async def test_a_mirror_that_is_deleted_already_keeps_no_other_mirror_of_a_removed_kind() -> None:
    worker = DeletedBefore()
    scene = Scene(noted=LOGS.note, worker=worker)
    for name in ("a", "b"):
        metadata = {"name": name, "uid": name, "labels": dict(OWNER.labels), "annotations": dict(OWNER.annotations)}
        worker.put(f"{LOGS.path}/logs/{name}", {"metadata": metadata})
    worker.path = f"{LOGS.path}/logs/a"
    async with scene.running():
        await scene.until(lambda: scene.hub.writes)
    assert worker.objects == {} and [each.path for each in worker.writes] == [f"{LOGS.path}/logs/a", f"{LOGS.path}/logs/b"]


@pytest.mark.parametrize("noted", ["", LOGS.note])
async def test_a_kind_is_recorded_once(noted: str) -> None:
    scene = Scene(LOGS, noted=noted)
    await scene.scope.binding.record_kind(LOGS)
    assert [each.body["metadata"]["annotations"] for each in scene.hub.writes] == ([] if noted else [{keys.MIRRORED_KINDS: LOGS.note}])


SPREAD = ExtraKind(api_version="logs.example.com/v1", resource="logs")
"""Only mirrors in namespaces prevent another mapping of namespaces."""
NAMESPACED = {"resources": [{"name": "logs", "namespaced": True, "kind": "Log"}]}


async def test_a_kind_that_the_worker_does_not_serve_has_no_mirrors_there() -> None:
    scene = Scene(SPREAD, noted=SPREAD.note)
    scene.hub.put(LOGS.path, NAMESPACED)
    async with scene.running():
        assert scene.kinds.left() == SPREAD.title, "it is not known before the worker is asked"
        await scene.until(lambda: scene.state)
        assert scene.kinds.left() == {}
        scene.worker.put(LOGS.path, NAMESPACED)
        mirror = await scene.until(lambda: scene.kinds._running.get(SPREAD.title))
        assert await scene.until(lambda: scene.kinds.left() == {SPREAD.title: 0})
        mirror.mirrors._failed(NotFound("list logs", "the server could not find the requested resource", status=404))
        assert scene.kinds.left() == {}, "its definition was deleted, and all objects with it"


async def test_a_kind_that_only_the_hub_does_not_serve_is_named_instead_of_counted() -> None:
    scene = Scene(SPREAD, noted=SPREAD.note)
    scene.worker.put(LOGS.path, NAMESPACED)
    async with scene.running():
        await scene.until(lambda: scene.state)
        left = scene.kinds.left()
        assert left == SPREAD.title
        for informer in (scene.cluster.configmaps, scene.cluster.secrets, scene.cluster.claims):
            listed(informer)
        for informer in (scene.cluster.services, scene.cluster.endpointslices):
            listed(informer)
        assert _left_in(scene.cluster, left) == (
            "objects of logs.logs.example.com that have not been listed (the condition ExtraKindsMirrored states why)"
        )
        assert _left_in(scene.cluster, {}) == ""
