"""An Event of the worker becomes one at home: its parts, its name, and the words of home."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kubeocean.metrics import SyncerMetrics
from kubeocean.model import keys
from kubeocean.pods.events import PENDING_LIMIT, EventMirror, WorkerEvent, mirrored
from kubeocean.pods.virtual_status import in_hub_names
from kubeocean.worker.cluster import Mount, WorkerCluster
from tests.support.memory_api import MemoryApi
from tests.unit.kubeocean.builders import OWNER, at, physical, pod, unknown, worker_scope
from vkubelet.api.objects import Json, Key, Pod, Unknown
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.client.transport import Call
from vkubelet.errors import Forbidden
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost

THERE = keys.physical_name("default", "web")
COPY = keys.physical_name("default", "settings")


def virtual() -> Pod:
    return pod({"volumes": [{"name": "c", "configMap": {"name": "settings"}}]})


def backing() -> Pod:
    return physical({"metadata": {"name": THERE, "namespace": "mnt"}, "spec": {"nodeName": "node-1"}})


def event(**more: object) -> Json:
    body = {
        "metadata": {"name": "e", "namespace": "mnt", "uid": "event-uid", "creationTimestamp": "2026-01-05T09:00:00Z"},
        "involvedObject": {"kind": "Pod", "name": THERE, "namespace": "mnt", "uid": "physical-uid"},
        "reason": "Started",
        "message": "started",
        "type": "Normal",
        "source": {"component": "kubelet", "host": "node-1"},
        "firstTimestamp": "2026-01-05T09:00:00Z",
        "lastTimestamp": "2026-01-05T09:10:00Z",
        "count": 4,
    }
    return {**body, **more}


def parsed(**more: object) -> WorkerEvent:
    found = WorkerEvent.of(unknown(event(**more)))
    assert found is not None
    return found


def test_both_forms_of_events_are_read() -> None:
    old = parsed()
    assert (old.count, old.first, old.last) == (4, "2026-01-05T09:00:00Z", "2026-01-05T09:10:00Z")
    assert (old.component, old.pod, old.pod_uid) == ("kubelet", Key("mnt", THERE), "physical-uid")
    series = {"count": 9, "lastObservedTime": "2026-01-05T09:20:00.123456Z"}
    cleared: Json = {"firstTimestamp": None, "lastTimestamp": None, "count": None, "source": {}}
    new = parsed(**cleared, eventTime="2026-01-05T09:05:00.5Z", series=series, reportingComponent="default-scheduler")
    assert (new.count, new.first, new.last) == (9, "2026-01-05T09:05:00.5Z", "2026-01-05T09:20:00.123456Z")
    assert new.component == "default-scheduler"
    bare = parsed(**cleared)
    assert (bare.count, bare.first, bare.last) == (1, "2026-01-05T09:00:00Z", "2026-01-05T09:00:00Z")
    assert new.age(at("2026-01-05 09:21")) == pytest.approx(59.9, abs=0.1)


def test_only_failures_of_the_workers_scheduler_are_reported_in_the_hub() -> None:
    assert parsed(reason="Scheduled").is_known_in_hub
    assert not parsed(reason="FailedScheduling", type="Warning").is_known_in_hub and not parsed().is_known_in_hub


@pytest.mark.parametrize("about", [{"kind": "Node", "name": "n", "uid": "u"}, {"kind": "Pod", "name": "p"}, {}])
def test_what_is_not_about_one_pod_is_none_of_ours(about: Json) -> None:
    assert WorkerEvent.of(unknown(event(involvedObject=about))) is None


def test_mirrored_event_is_about_the_virtual_pod_and_says_who_said_it() -> None:
    about = {**event()["involvedObject"], "fieldPath": "spec.containers{main}"}
    body = mirrored(parsed(involvedObject=about), virtual(), backing(), binding="demo")
    assert body["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "web",
        "namespace": "default",
        "uid": "uid-1",
        "fieldPath": "spec.containers{main}",
    }
    assert body["source"] == {"component": "kubelet", "host": "vnode-demo-node-1"}
    assert (body["reportingComponent"], body["reportingInstance"]) == ("kubeocean", "demo")
    assert (body["count"], body["lastTimestamp"]) == (4, "2026-01-05T09:10:00Z")


def test_name_follows_from_the_event_alone_so_a_second_process_finds_it_again() -> None:
    one, two = (mirrored(parsed(count=count), virtual(), backing(), binding="demo")["metadata"] for count in (1, 2))
    assert one == two
    other = mirrored(parsed(metadata={**event()["metadata"], "uid": "other"}), virtual(), backing(), binding="demo")["metadata"]
    assert one["name"] != other["name"] and one["namespace"] == "default"


@pytest.mark.parametrize(
    ("there", "home"),
    [
        (f"Successfully assigned mnt/{THERE} to node-1", "Successfully assigned default/web to vnode-demo-node-1"),
        (f"restarting failed container in pod {THERE}_mnt(physical-uid)", "restarting failed container in pod web_default(uid-1)"),
        (f'configmap "{COPY}" not found', 'configmap "settings" not found'),
        (f'object "mnt"/"{COPY}" not registered', 'object "default"/"settings" not registered'),
        (f'forbidden in the namespace "mnt": {THERE}.', 'forbidden in the namespace "default": web.'),
        ("on node-1.", "on vnode-demo-node-1."),
        # Another node, another pod, and a word that happens to be the name of the namespace.
        (f"node-10, node-1.example, my-node-1, {THERE}-2, mnt failed", f"node-10, node-1.example, my-node-1, {THERE}-2, mnt failed"),
    ],
)
def test_names_of_the_worker_are_replaced_where_they_stand_for_themselves(there: str, home: str) -> None:
    assert in_hub_names(there, virtual(), backing()) == home


@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00", "soon"])
def test_a_time_that_is_none_here_is_long_ago(time: str) -> None:
    assert parsed(lastTimestamp=time).age(at("2026-01-05 09:21")) == math.inf


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def mirror(registry: CollectorRegistry) -> EventMirror:
    """One whose clusters nobody asks; its clock stands at ten past nine."""
    clock = ManualClock(at("2026-01-05 09:10"))
    client = Client(Connection("https://192.0.2.1"), clock=clock)
    host = RecordingHost(clock=clock, client=client)
    return EventMirror(scope=worker_scope(host, metrics=SyncerMetrics(registry, binding="demo")))


def numbered(number: int, **more: object) -> Unknown:
    return unknown(event(metadata={**event()["metadata"], "uid": f"event-{number}"}, **more))


async def test_what_waits_is_bounded_and_the_oldest_is_dropped_and_counted(mirror: EventMirror, registry: CollectorRegistry) -> None:
    for number in range(PENDING_LIMIT + 7):
        mirror.on_event(numbered(number))
    assert len(mirror.controller.queue) == PENDING_LIMIT
    assert "event-6" not in mirror.controller.queue and "event-7" in mirror.controller.queue
    assert registry.get_sample_value("kubeocean_mirrored_events_total", {"result": "dropped"}) == 7


async def test_what_is_repeated_meanwhile_waits_once_and_what_is_old_is_left_alone(mirror: EventMirror) -> None:
    for count in range(5):
        mirror.on_event(numbered(1, count=count + 1))
    assert len(mirror.controller.queue) == 1
    mirror.on_event(numbered(2, lastTimestamp="2026-01-05T09:04:59Z"))
    assert "event-2" not in mirror.controller.queue
    mirror.on_event(numbered(3, lastTimestamp="2026-01-05T09:05:01Z"))
    assert "event-3" in mirror.controller.queue


class Breaking(MemoryApi):
    """A worker whose first stream breaks after a bookmark; `since` are the resourceVersions from which it is watched."""

    def __init__(self, versions: tuple[int, int]) -> None:
        """Its resourceVersion before and after that."""
        super().__init__()
        self._version, self._after = versions
        self.since: list[str] = []

    @asynccontextmanager
    async def open(self, call: Call, timeout: object) -> AsyncIterator[Any]:
        self.since.append(dict(call.params).get("resourceVersion", ""))
        async with super().open(call, timeout) as stream:
            try:
                yield _Cut(stream) if len(self.since) == 1 else stream
            finally:
                self._version = self._after


class _Cut:
    """A stream that is cut after its first line."""

    def __init__(self, stream: Any) -> None:
        self.content, self._stream, self._read = self, stream, False

    async def readany(self) -> bytes:
        if self._read:
            raise OSError("connection reset")
        self._read = True
        return bytes(await self._stream.readany())


@pytest.mark.parametrize(("versions", "since"), [((1000, 800), ["", ""]), ((1000, 1001), ["", "1000"])])
async def test_watch_of_events_starts_again_when_the_worker_was_restored(versions: tuple[int, int], since: list[str]) -> None:
    """A watch from a resourceVersion that the worker has not reached yet would be silent."""
    api, clock = Breaking(versions), ManualClock(at("2026-01-05 09:10"))
    host = RecordingHost(clock=clock, client=Client(Connection("https://192.0.2.1"), clock=clock))
    watched = EventMirror(scope=worker_scope(host, WorkerCluster(api.client(), Mount(OWNER, "mnt"), clock=clock, probe_interval=10)))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(watched.run())
        await clock.advance(30.0)
        running.cancel()
    assert api.since == since


class Refusing(MemoryApi):
    """A worker that refuses so many watches, as one does that has just started."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left, self.served = count, 0

    @asynccontextmanager
    async def open(self, call: Call, timeout: object) -> AsyncIterator[Any]:
        if self.left:
            self.left -= 1
            raise Forbidden("watch events", "not allowed")
        self.served += 1
        async with super().open(call, timeout) as stream:
            yield stream


@pytest.mark.parametrize(("refusals", "served", "warnings"), [(3, 1, []), (1000, 0, ["WARNING"])])
async def test_an_api_server_that_starts_is_no_missing_right(
    refusals: int, served: int, warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    api, clock = Refusing(refusals), ManualClock(at("2026-01-05 09:10"))
    host = RecordingHost(clock=clock, client=Client(Connection("https://192.0.2.1"), clock=clock))
    watched = EventMirror(scope=worker_scope(host, WorkerCluster(api.client(), Mount(OWNER, "mnt"), clock=clock, probe_interval=10)))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(watched.run())
        await clock.advance(15.0)
        running.cancel()
    assert api.served == served
    assert [record.levelname for record in caplog.records if record.levelname == "WARNING"] == warnings


async def test_a_missing_right_is_said_once_however_often_it_is_asked_for(mirror: EventMirror, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        mirror.on_forbidden(Forbidden("watch events", "not allowed"), "mnt")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_missing_right_to_write_events_is_logged_once(mirror: EventMirror, caplog: pytest.LogCaptureFixture) -> None:
    message = 'events is forbidden: User "u" cannot patch resource "events" in API group "" in the namespace "default"'
    for _ in range(3):
        mirror.on_dropped(Forbidden("patch events default/e", message))
    mirror.on_dropped(Forbidden("create events default/e", "unable to create new content in namespace default"))
    assert [record.levelname for record in caplog.records if record.levelname == "WARNING"] == ["WARNING"]
