"""Tests of kubeocean.copies.dependents: what a connection to the worker knows of the one before."""

from __future__ import annotations

import pytest

from kubeocean.copies.dependents import DependentParts, Dependents
from kubeocean.model.references import Kind
from kubeocean.worker.cluster import Mount, WorkerCluster
from tests.unit.kubeocean.builders import OWNER, binding, pod, unknown
from vkubelet.api.objects import Key
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost

RUNNING = pod(
    {"volumes": [{"name": "c", "configMap": {"name": "late", "optional": True}}, {"name": "s", "secret": {"secretName": "late"}}]}
)
KINDS = [("ConfigMap", Kind.CONFIGMAP), ("Secret", Kind.SECRET)]


def connected(host: RecordingHost, client: Client) -> Dependents:
    """As after a start, a change of the leader, or another kubeconfig."""
    worker = WorkerCluster(client, Mount(OWNER, "mnt"), clock=host.clock, probe_interval=10)
    return Dependents(DependentParts(host=host, worker=worker, binding=binding, settled=lambda: True, unused_after=300.0))


@pytest.mark.parametrize(("object_kind", "kind"), KINDS)
async def test_object_that_appears_reaches_the_pods_an_earlier_connection_synced(object_kind: str, kind: Kind) -> None:
    clock = ManualClock()
    client = Client(Connection("https://192.0.2.1"), clock=clock)
    host = RecordingHost(clock=clock, client=client)
    host.pods.put(RUNNING)
    connected(host, client).note(RUNNING)
    second = connected(host, client)
    await second.seed()
    head = {"name": "late", "namespace": "default", "uid": "u", "resourceVersion": "5"}
    second.originals[object_kind].adopt(unknown({"metadata": head}))
    assert Key("default", "late") in second.copies[kind].controller.queue
