"""Tests of kubeocean.pods.physical."""

from __future__ import annotations

import pytest

from kubeocean.model.crds import FromWorker
from kubeocean.pods.physical import PhysicalPodParts, PhysicalPodReconciler
from kubeocean.pods.translate import physical_pod
from kubeocean.worker.cluster import Mount, WorkerCluster
from tests.unit.kubeocean.builders import OWNER, TARGET, physical, pod
from vkubelet.api.objects import Pod
from vkubelet.api.shapes import Json
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.testing.host import RecordingHost


def stand() -> tuple[RecordingHost, WorkerCluster, PhysicalPodReconciler, Pod]:
    """With one virtual pod."""
    host = RecordingHost()
    worker = WorkerCluster(Client(Connection("https://192.0.2.1")), Mount(OWNER, "mnt"), clock=host.clock, probe_interval=10)
    parts = PhysicalPodParts(
        host=host, worker=worker, released=lambda ref: None, from_worker=FromWorker, workers=1, unscheduled_after=300.0
    )
    virtual = pod()
    host.pods.put(virtual)
    return host, worker, PhysicalPodReconciler(parts), virtual


def body_of(virtual: Pod, **spec: str) -> Json:
    body = physical_pod(virtual, TARGET)
    return {**body, "spec": {**body["spec"], **spec}}


SPOKE = {"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"}
NO_PLACE = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
PLACED = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}


@pytest.mark.parametrize("word", [SPOKE, NO_PLACE])
async def test_a_new_pod_is_told_of_with_the_first_word_of_its_kubelet_or_that_it_has_no_place(word: Json) -> None:
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


async def test_a_pod_is_not_given_up_at_its_birth_because_the_clocks_of_the_clusters_differ() -> None:
    host, worker, reconciler, virtual = stand()
    worker.pods.adopt(physical(physical_pod(virtual, TARGET), resourceVersion="5", creationTimestamp="2001-01-01T00:00:00Z"))
    assert await reconciler.reconcile(virtual.ref) == 5.0
    await host.manual_clock.advance(5)
    assert await reconciler.reconcile(virtual.ref) == 295.0
    await host.manual_clock.advance(95)
    assert await reconciler.reconcile(virtual.ref) == 200.0
