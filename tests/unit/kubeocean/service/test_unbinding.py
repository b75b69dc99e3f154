"""When a worker is given up, and what is said of it then."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.kinds import ExtraKind
from kubeocean.nodes.reclaim import Reclaimer
from kubeocean.service.lifecycle import Remaining
from kubeocean.service.unbinding import Unbinding
from kubeocean.settings import KubeoceanSettings
from kubeocean.worker.cluster import Mount
from tests.support.memory_api import MemoryApi
from tests.unit.kubeocean.builders import OWNER, binding, scope
from vkubelet.api.objects import Json
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.client.transport import Call
from vkubelet.clock import rfc3339
from vkubelet.errors import Unreachable
from vkubelet.testing.host import RecordingHost


@pytest.fixture
def host() -> RecordingHost:
    return RecordingHost(client=Client(Connection("https://hub.invalid")))


@pytest.fixture
def unbinding(host: RecordingHost) -> Unbinding:
    return Unbinding(scope(host), reclaimer=Reclaimer(host, per_second=10))


def deleted(host: RecordingHost, spec: Json | None = None, **metadata: object) -> ClusterBinding:
    """Two minutes ago."""
    asked = rfc3339(host.clock.now() - timedelta(minutes=2))
    return binding(spec, uid="uid", deletionTimestamp=asked, **metadata)


@pytest.mark.parametrize(
    ("spec", "annotations", "forced"),
    [
        ({}, {}, False),
        ({"forceUnbindAfter": 121}, {}, False),
        ({"forceUnbindAfter": 120}, {}, True),
        ({"forceUnbindAfter": 0}, {}, True),
        ({"forceUnbindAfter": "soon"}, {}, False),
        ({}, {keys.FORCE_UNBIND: "true"}, True),
        ({}, {keys.FORCE_UNBIND: "no"}, False),
    ],
)
async def test_a_worker_is_given_up_on_demand_and_never_by_itself(
    unbinding: Unbinding, host: RecordingHost, spec: Json, annotations: dict[str, str], forced: bool
) -> None:
    assert unbinding.forced(deleted(host, spec, annotations=annotations)) is forced


PODS_3, PODS_2 = Remaining(objects=(("pods", 3),)), Remaining(objects=(("pods", 2),))


async def test_a_worker_that_answers_is_given_up_only_when_nothing_moves(unbinding: Unbinding, host: RecordingHost) -> None:
    one = deleted(host, {"forceUnbindAfter": 0})
    assert not unbinding.noted(one, PODS_3).stuck
    await host.clock.advance(29)
    assert not unbinding.noted(one, PODS_3).stuck
    assert not unbinding.noted(one, PODS_2).stuck
    await host.clock.advance(29)
    assert not unbinding.noted(one, PODS_2).stuck
    await host.clock.advance(1)
    assert unbinding.noted(one, PODS_2).stuck


async def test_a_worker_that_fails_each_time_in_another_way_is_stuck(unbinding: Unbinding, host: RecordingHost) -> None:
    one = deleted(host, {"forceUnbindAfter": 0})
    assert not unbinding.noted(one, PODS_3).stuck
    for attempt in range(15):
        await host.clock.advance(2)
        left = unbinding.noted(one, PODS_3.failed(ValueError(f"attempt {attempt}")) if attempt % 2 else PODS_3)
    assert left.stuck


class Silent(MemoryApi):
    async def fetch(self, call: Call, timeout: float) -> bytes:
        raise Unreachable(call.attempt, "connection reset")


async def test_nodes_that_end_count_as_progress_although_the_worker_fails_after_them() -> None:
    host = RecordingHost(client=MemoryApi().client())
    unbinding = Unbinding(scope(host), reclaimer=Reclaimer(host, per_second=10))
    one = deleted(host, {"forceUnbindAfter": 0})
    assert not unbinding.noted(one, Remaining(nodes=1, pods=1)).stuck
    await host.clock.advance(29)
    with pytest.raises(Unreachable) as failed:
        await unbinding._step(one, Silent().client(), Mount(OWNER, "mount"))
    await host.clock.advance(2)
    assert not unbinding.noted(one, unbinding._failed(one, failed.value)).stuck
    await host.clock.advance(29)
    assert unbinding.noted(one, unbinding._failed(one, failed.value)).stuck


async def test_a_binding_that_allows_more_time_gets_it(unbinding: Unbinding, host: RecordingHost) -> None:
    one = deleted(host, {"forceUnbindAfter": 100})
    assert not unbinding.noted(one, PODS_3).stuck
    await host.clock.advance(99)
    assert not unbinding.noted(one, PODS_3).stuck
    await host.clock.advance(1)
    assert unbinding.noted(one, PODS_3).stuck


def kind(group: str, version: str = "v1") -> ExtraKind:
    return ExtraKind(api_version=f"{group}.example.com/{version}", resource="notes", namespaced=False)


async def deletes_copies(worker: MemoryApi, *kinds: ExtraKind, noted: str) -> Remaining | None:
    """Deletes the copies of a binding whose setting has `kinds`, and which has mirrored those of `noted`."""
    one = scope(RecordingHost(client=MemoryApi().client()), settings=KubeoceanSettings(binding="demo", extra_kinds=kinds))
    one.binding.current = binding(annotations={keys.MIRRORED_KINDS: noted})
    return await Unbinding(one, reclaimer=Reclaimer(one.host, per_second=10))._delete_copies(worker.client(), Mount(OWNER, "mount"))


def mirror(uid: str, **more: str) -> Json:
    return {"metadata": {"name": uid, "uid": uid, "labels": dict(OWNER.labels), "annotations": dict(OWNER.annotations), **more}}


async def test_an_earlier_version_that_was_recorded_does_not_hide_that_of_the_setting() -> None:
    worker = MemoryApi()
    worker.put("/apis/a.example.com/v2/notes/x", mirror("x"))
    await deletes_copies(worker, kind("a", "v2"), noted=kind("a").note)
    assert worker.objects == {}


async def test_kinds_with_one_plural_are_counted_together_and_two_versions_once() -> None:
    worker = MemoryApi()
    for path in ("a.example.com/v1/notes/x", "a.example.com/v2/notes/x", "a.example.com/v1/notes/y", "b.example.com/v1/notes/z"):
        worker.put(f"/apis/{path}", mirror(path.rpartition("/")[2], deletionTimestamp="2026-01-01T00:00:00Z"))
    left = await deletes_copies(worker, kind("a"), kind("b"), noted=kind("a", "v2").note)
    assert left is not None and left.objects == (("notes", 3),)
