"""The process of a binding between a hub in memory and a worker over HTTP that a test may make malicious.

Invariant: provider, service and clients are the product's; what they publish for the hub is recorded.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import define

from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS
from kubeocean.provider import KubeoceanProvider
from kubeocean.settings import KubeoceanSettings
from tests.faults.attack.worker import Cluster, Worker, node, working
from tests.support.program import eventually
from tests.unit.kubeocean.world import node_of
from vkubelet.api.objects import Pod
from vkubelet.clock import SystemClock
from vkubelet.errors import VKubeletError
from vkubelet.testing.host import RecordingHost, make_pod

HUB_UID, MOUNT, VNODE = "hub-uid-1", "mnt", "vnode-demo-node-1"
TOKEN = "the-token-for-this-worker-alone"
OWNER = keys.Owner(HUB_UID, "demo")
BINDING_PATH = f"/apis/{CLUSTERBINDINGS.group}/{CLUSTERBINDINGS.version}/clusterbindings/demo"


@define
class Scene:
    """A binding that is served; `serving` is the task of its provider."""

    hub: Cluster
    worker: Worker
    host: RecordingHost
    provider: KubeoceanProvider
    serving: asyncio.Task[None]

    async def connected(self) -> None:
        """Waits for the virtual node."""
        await eventually(lambda: self.alive() and VNODE in self.host.nodes, "the node of the worker is declared")

    def alive(self) -> bool:
        """Whether the provider runs. Raises what ended it."""
        if self.serving.done():
            self.serving.result()
            raise AssertionError("the provider returned")
        return True

    async def start(self, name: str) -> Pod:
        """Puts a pod on the virtual node and waits for the physical one."""
        pod = make_pod(name, node=VNODE)
        self.host.pods.put(pod)
        meta = node_of(self.host.nodes[VNODE], "1")
        labels, annotations = dict(meta.metadata.labels), dict(meta.metadata.annotations)
        body = {"metadata": {"name": VNODE, "uid": "vnode-uid", "labels": labels, "annotations": annotations}}
        self.hub.put(f"/api/v1/nodes/{VNODE}", {**body, "spec": meta.spec, "status": meta.status})

        async def synced() -> bool:
            """Repeats the sync as the runtime does."""
            self.alive()
            try:
                await self.provider.sync_pod(pod)
            except VKubeletError:
                return False
            return True

        await eventually(synced, f"pod {name} is synced")
        path = physical_path(name)
        await eventually(lambda: self.alive() and path in self.worker.cluster.objects, f"pod {name} is created in the worker")
        return pod


def physical_path(name: str) -> str:
    return f"/api/v1/namespaces/{MOUNT}/pods/{keys.physical_name('default', name)}"


def kubeconfig(url: str) -> str:
    """A kubeconfig with TOKEN."""
    cluster, user = {"server": url}, {"token": TOKEN}
    context = {"cluster": "w", "user": "w"}
    named = {
        "clusters": [{"name": "w", "cluster": cluster}],
        "users": [{"name": "w", "user": user}],
        "contexts": [{"name": "w", "context": context}],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "w", **named})


def hub_for(url: str) -> Cluster:
    """A hub with the binding and its Secret."""
    hub = Cluster()
    hub.put("/api/v1/namespaces/kube-system", {"metadata": {"name": "kube-system", "uid": HUB_UID}})
    spec = {
        "clusterID": "demo",
        "secretRef": {"name": "kubeconfig", "namespace": "kubeocean-system"},
        "mountNamespace": MOUNT,
        "allowInsecureWorker": True,
    }
    hub.put(BINDING_PATH, {"metadata": {"name": "demo", "uid": "binding-uid", "generation": 1}, "spec": spec})
    data = {"kubeconfig": base64.b64encode(kubeconfig(url).encode()).decode()}
    meta = {"name": "kubeconfig", "namespace": "kubeocean-system", "uid": "secret-uid"}
    hub.put("/api/v1/namespaces/kubeocean-system/secrets/kubeconfig", {"metadata": meta, "data": data})
    return hub


def furnish(cluster: Cluster) -> None:
    """The objects of an honest worker: a node, the mount namespace, and a policy that leases everything."""
    cluster.put(f"/api/v1/namespaces/{MOUNT}", {"metadata": {"name": MOUNT, "uid": "mount-uid"}})
    cluster.put("/api/v1/nodes/node-1", node())
    policy = {"metadata": {"name": "all", "uid": "policy-uid", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}}
    path = f"/apis/{CLUSTERBINDINGS.group}/{CLUSTERBINDINGS.version}/resourceleasingpolicies/all"
    cluster.put(path, {**policy, "spec": {"cluster": "demo"}})


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    """A served binding whose worker is honest so far."""
    async with working() as worker:
        furnish(worker.cluster)
        hub = hub_for(worker.url)
        host = RecordingHost(clock=SystemClock(), client=hub.client())
        provider = KubeoceanProvider(KubeoceanSettings(binding="demo", probe_interval=0.2, reconnect_interval=0.2))
        serving = asyncio.create_task(provider.run(host))
        try:
            yield Scene(hub, worker, host, provider, serving)
        finally:
            host.stop()
            await asyncio.wait({serving}, timeout=10.0)
            serving.cancel()
            await asyncio.wait({serving})
