"""Tests of kubeocean.copies.dependents: what a connection to the worker knows of the one before."""

from __future__ import annotations

import pytest

from kubeocean.copies.bodies import marked_copy
from kubeocean.copies.dependents import Dependents
from kubeocean.worker.cluster import Mount, WorkerCluster
from tests.unit.kubeocean.builders import OWNER, binding, pod, unknown, worker_scope
from vkubelet.api.objects import Key
from vkubelet.api.podspec import Kind
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost

RUNNING = pod(
    {"volumes": [{"name": "c", "configMap": {"name": "late", "optional": True}}, {"name": "s", "secret": {"secretName": "late"}}]}
)


def connected(host: RecordingHost, client: Client) -> Dependents:
    """As after a start, a change of the leader, or another kubeconfig."""
    worker = WorkerCluster(client, Mount(OWNER, "mnt"), clock=host.clock, probe_interval=10)
    shared = worker_scope(host, worker)
    shared.binding.current = binding()
    shared.virtual.complete()
    return Dependents(shared)


@pytest.mark.parametrize("kind", [Kind.CONFIGMAP, Kind.SECRET])
async def test_object_that_appears_reaches_the_pods_an_earlier_connection_synced(kind: Kind) -> None:
    clock = ManualClock()
    client = Client(Connection("https://192.0.2.1"), clock=clock)
    host = RecordingHost(clock=clock, client=client)
    host.pods.put(RUNNING)
    connected(host, client).users.note(RUNNING)
    second = connected(host, client)
    await second.seed()
    head = {"name": "late", "namespace": "default", "uid": "u", "resourceVersion": "5"}
    second.copies[kind].originals.adopt(unknown({"metadata": head}))
    assert Key("default", "late") in second.copies[kind].controller.queue


@pytest.mark.parametrize("kind", [Kind.CONFIGMAP, Kind.SECRET])
async def test_copies_that_are_cached_before_the_reconciler_exists_are_checked(kind: Kind) -> None:
    clock = ManualClock()
    client = Client(Connection("https://192.0.2.1"), clock=clock)
    host = RecordingHost(clock=clock, client=client)
    worker = WorkerCluster(client, Mount(OWNER, "mnt"), clock=clock, probe_interval=10)
    original = unknown({"metadata": {"name": "old", "namespace": "default"}}).metadata
    body = marked_copy(kind.value, original, OWNER, namespace="mnt")
    cached = worker.configmaps if kind is Kind.CONFIGMAP else worker.secrets
    cached.adopt(unknown({**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": "5"}}))
    assert Key("default", "old") in Dependents(worker_scope(host, worker)).copies[kind].controller.queue
