"""Tests of kubeocean.pods.placement."""

from __future__ import annotations

import pytest

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.nodes.virtual_nodes import VirtualNodes
from kubeocean.pods.hub_access import HomeAccess
from kubeocean.pods.placement import Placement, PlacementParts
from kubeocean.pods.service_links import ServiceLinks
from kubeocean.worker.cluster import Mount, WorkerCluster
from tests.unit.kubeocean.builders import OWNER, binding, pod
from vkubelet.api.shapes import Json
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.errors import Unavailable
from vkubelet.provider import NodeDescription
from vkubelet.testing.host import RecordingHost

SETTLED: Json = {"apiServerAccess": {"host": "10.0.0.1"}, "dns": {"servers": ["10.0.0.2"]}}
"""Nothing is asked of the hub."""


def placement() -> Placement:
    client = Client(Connection("https://192.0.2.1"))
    host = RecordingHost(client=client)
    virtual = VirtualNodes(host)
    virtual.declare(NodeDescription("vnode-demo-node-1", {"cpu": "4"}), physical_name="node-1", physical_uid="u")
    worker = WorkerCluster(client, Mount(OWNER, "mnt"), clock=host.clock, probe_interval=10)
    access = HomeAccess(host, BindingReconciler(host, "demo"), domain="cluster.local")
    services = ServiceLinks(host)
    services.informer.ever_synced = True
    return Placement(PlacementParts(host=host, worker=worker, virtual=virtual, access=access, services=services))


async def test_a_pod_goes_to_the_physical_node_of_its_virtual_one_with_what_the_binding_says() -> None:
    target = await placement().target(pod(), binding({**SETTLED, "extraImagePullSecrets": ["mirror"]}))
    assert (target.node, target.namespace, target.overrides.pull_secrets) == ("node-1", "mnt", ("mirror",))


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"podPatch": {"spec": {"nodeName": "other"}}}, "spec.podPatch.spec.nodeName"),
        ({"podPatch": {"metadata": {"uid": "x"}}}, "spec.podPatch.metadata.uid"),
        ({"imageRewrites": "docker.io/"}, "spec.imageRewrites"),
    ],
)
async def test_no_pod_is_made_while_the_binding_asks_for_what_must_not_be(spec: Json, path: str) -> None:
    """An older definition lets it in; half of what is asked for would be worse than waiting."""
    with pytest.raises(Unavailable, match=f"ClusterBinding demo is not valid: {path}") as refused:
        await placement().target(pod(), binding({**SETTLED, **spec}))
    assert refused.value.retry_after == 10.0


async def test_a_pod_of_a_node_that_is_not_declared_waits() -> None:
    with pytest.raises(Unavailable, match="node vnode-demo-other is not declared"):
        await placement().target(pod({"nodeName": "vnode-demo-other"}), binding(SETTLED))
