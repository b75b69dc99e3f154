"""Tests of kubeocean.pods.physical."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kubeocean.model import keys
from kubeocean.pods.physical import LOST, PhysicalPodReconciler, not_ready, terminated_by_itself
from kubeocean.pods.translate import physical_pod
from kubeocean.worker.cluster import WorkerCluster
from tests.support.memory_api import MemoryApi
from tests.unit.kubeocean.builders import OWNER, TARGET, physical, pod, worker_scope
from vkubelet.api.objects import Json, Pod, get_condition
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.client.transport import Call
from vkubelet.control.informer import Change
from vkubelet.errors import NotFound
from vkubelet.provider import PodFailure
from vkubelet.testing.host import RecordingHost


def stand() -> tuple[RecordingHost, WorkerCluster, PhysicalPodReconciler, Pod]:
    """With one virtual pod."""
    host = RecordingHost(client=Client(Connection("https://192.0.2.1")))
    scope = worker_scope(host)
    virtual = pod()
    host.pods.put(virtual)
    return host, scope.worker, PhysicalPodReconciler(scope=scope, released=lambda ref: None), virtual


def body_of(virtual: Pod, **spec: str) -> Json:
    body = physical_pod(virtual, TARGET)
    return {**body, "spec": {**body["spec"], **spec}}


STRANGER = keys.Owner("hub-uid-2", "demo")
SPOKE = {"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"}
NO_PLACE = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
PLACED = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}


@pytest.mark.parametrize("word", [SPOKE, NO_PLACE])
async def test_new_pod_is_reported_with_its_kubelets_first_status_or_as_unschedulable(word: Json) -> None:
    host, worker, reconciler, virtual = stand()
    body = body_of(virtual, nodeName="w")
    worker.pods.adopt(physical(body, resourceVersion="5", status=PLACED))
    assert await reconciler.reconcile(virtual.ref) == 5.0
    await host.manual_clock.advance(4)
    assert await reconciler.reconcile(virtual.ref) == 1.0
    assert not host.statuses
    worker.pods.adopt(physical(body, status=word, resourceVersion="6"))
    assert await reconciler.reconcile(virtual.ref) is None
    assert host.statuses


async def test_a_new_pod_is_told_of_after_five_seconds_whether_its_kubelet_speaks_or_not() -> None:
    host, worker, reconciler, virtual = stand()
    worker.pods.adopt(physical(body_of(virtual, nodeName="w"), resourceVersion="5"))
    assert await reconciler.reconcile(virtual.ref) == 5.0
    await host.manual_clock.advance(5)
    assert await reconciler.reconcile(virtual.ref) is None
    assert host.statuses


async def test_new_pod_is_not_lost_when_the_clocks_of_the_clusters_differ() -> None:
    host, worker, reconciler, virtual = stand()
    worker.pods.adopt(physical(physical_pod(virtual, TARGET), resourceVersion="5", creationTimestamp="2001-01-01T00:00:00Z"))
    assert await reconciler.reconcile(virtual.ref) == 5.0
    await host.manual_clock.advance(5)
    assert await reconciler.reconcile(virtual.ref) == 295.0
    await host.manual_clock.advance(95)
    assert await reconciler.reconcile(virtual.ref) == 200.0


async def test_physical_pod_without_virtual_pod_is_handed_to_the_runtime() -> None:
    """Only the runtime knows whether the virtual pod was deleted, or was not listed yet."""
    host, worker, reconciler, virtual = stand()
    host.pods.remove(virtual)
    body = body_of(virtual, nodeName="w")
    worker.pods.adopt(physical(body, resourceVersion="5"))
    await reconciler.reconcile(virtual.ref)
    assert host.resynced == [virtual.ref] and not host.statuses
    worker.pods.adopt(physical(body, resourceVersion="6", deletionTimestamp="2026-01-01T00:00:00Z"))
    await reconciler.reconcile(virtual.ref)
    assert host.resynced == [virtual.ref]


async def test_pod_of_a_restored_worker_is_synced_again() -> None:
    """Labels, images and ephemeral containers that it got since the backup are lost."""
    host, worker, reconciler, virtual = stand()
    found = physical(body_of(virtual, nodeName="w"), resourceVersion="5")
    worker.pods.adopt(found)
    assert not host.resynced
    for restored in (False, True):
        reconciler._on_change(Change(found.key, found, found, restored=restored))
    assert host.resynced == [virtual.ref]


def test_pod_that_the_worker_lost_is_failed_once_with_an_event() -> None:
    host, _, reconciler, virtual = stand()
    reconciler.report_lost(virtual)
    event = host.events.events[0]
    assert host.failed == [(virtual.ref, PodFailure(LOST, event.message))]
    assert (event.reason, event.warning) == ("PhysicalPodLost", True)


@pytest.mark.parametrize(
    ("labels", "annotations", "queued"),
    [
        (OWNER.labels, OWNER.annotations, True),
        ({keys.MANAGED_BY: keys.MANAGED}, {}, True),
        ({}, {}, True),
        (STRANGER.labels, STRANGER.annotations, False),
        (STRANGER.labels, {}, False),
    ],
)
async def test_pod_that_names_another_owner_in_any_mark_is_never_reconciled(labels: Json, annotations: Json, queued: bool) -> None:
    _, worker, reconciler, virtual = stand()
    body = body_of(virtual)
    names = {key: value for key, value in body["metadata"]["annotations"].items() if key not in OWNER.annotations}
    worker.pods.adopt(physical(body, resourceVersion="5", labels=labels, annotations={**names, **annotations}))
    assert (virtual.ref in reconciler.controller.queue) is queued


@pytest.mark.parametrize(
    ("labels", "uid", "disputed"),
    [(STRANGER.labels, "recorded", True), (OWNER.labels, "recorded", False), ({}, "recorded", False), (STRANGER.labels, "another", False)],
)
def test_recorded_pod_with_the_marks_of_another_owner_is_disputed_and_not_lost(labels: Json, uid: str, disputed: bool) -> None:
    _, _, reconciler, _ = stand()
    record = {
        keys.PHYSICAL_POD_NAMESPACE: "mnt",
        keys.PHYSICAL_POD_NAME: keys.physical_name("default", "web"),
        keys.PHYSICAL_POD_UID: "recorded",
    }
    recorded = pod(annotations=record)
    found = physical({"metadata": {"name": "x"}, "spec": {}}, uid=uid, labels=labels, annotations={})
    assert reconciler.is_disputed(found, recorded) is disputed
    assert not reconciler.is_disputed(found, None)


DELETED: dict[str, Any] = {"deletionTimestamp": "2026-01-05T09:00:30Z", "deletionGracePeriodSeconds": 30}
"""Asked for at nine o'clock."""


class Meanwhile(MemoryApi):
    """A worker without the pod; `then` happens while it is asked."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self.then = then

    async def fetch(self, call: Call, timeout: float) -> bytes:
        self.then()
        raise NotFound(call.attempt, "not found")


async def test_pod_that_is_deleted_while_the_worker_is_read_is_gone_and_not_lost() -> None:
    host, worker, reconciler, virtual = stand()
    Meanwhile(lambda: host.pods.put(pod(**DELETED))).lend_to(worker.client)
    await reconciler._missing(virtual.ref)
    assert not host.failed and host.gone == [virtual.ref]


@pytest.mark.parametrize(
    ("metadata", "seen", "asks"),
    [
        (DELETED | {"annotations": {keys.PHYSICAL_POD_UID: "u"}}, "u", False),
        (DELETED | {"annotations": {keys.PHYSICAL_POD_UID: "u"}}, "another", True),
        (DELETED, "u", True),
        ({"annotations": {keys.PHYSICAL_POD_UID: "u"}}, "u", True),
    ],
    ids=["deleted", "another was deleted", "not recorded", "not to be deleted"],
)
async def test_a_deletion_that_the_watch_has_reported_is_not_asked_about(metadata: Json, seen: str, asks: bool) -> None:
    host, worker, reconciler, _ = stand()
    virtual, asked = pod(**metadata), list[bool]()
    host.pods.put(virtual)
    Meanwhile(lambda: asked.append(True)).lend_to(worker.client)
    worker.pods._remove(physical(body_of(virtual), uid=seen))
    await reconciler._missing(virtual.ref)
    assert bool(asked) is asks
    assert (virtual.ref in host.gone) is virtual.terminating


def finished(at: str, **metadata: Any) -> Pod:
    state = {"terminated": {"exitCode": 0, "finishedAt": at}}
    spec = {"terminationGracePeriodSeconds": 30}
    return pod(spec, status={"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": state}]}, **metadata)


def test_a_pod_that_nobody_deleted_terminated_by_itself() -> None:
    assert terminated_by_itself(finished("2026-01-05T08:00:00Z"))


def test_a_pod_that_ended_before_it_was_deleted_terminated_by_itself() -> None:
    assert terminated_by_itself(finished("2026-01-05T08:59:59Z", **DELETED))


def test_a_pod_that_ended_after_it_was_deleted_was_killed() -> None:
    assert not terminated_by_itself(finished("2026-01-05T09:00:02Z", **DELETED))


def test_a_pod_that_ended_in_the_second_of_its_deletion_counts_as_killed() -> None:
    assert not terminated_by_itself(finished("2026-01-05T09:00:00Z", **DELETED))


def test_pod_still_counts_as_killed_after_the_kubelets_last_call_with_grace_zero() -> None:
    assert not terminated_by_itself(finished("2026-01-05T09:00:02Z", **DELETED | {"deletionGracePeriodSeconds": 0}))


def test_while_the_worker_is_lost_a_pod_is_not_ready_and_otherwise_as_last_seen() -> None:
    conditions = [{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "True"}, {"type": "UsersOwn", "status": "True"}]
    status = not_ready(pod(status={"phase": "Running", "podIP": "10.0.0.9", "conditions": conditions}), "no answer")
    assert (status["phase"], status["podIP"]) == ("Running", "10.0.0.9")
    ready = get_condition(status["conditions"], "Ready")
    assert ready is not None and (ready["status"], ready["reason"]) == ("False", "WorkerUnreachable")
    assert get_condition(status["conditions"], "UsersOwn") is None, "it would count as ours and be removed with it"
