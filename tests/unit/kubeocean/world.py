"""A hub and a worker in memory, and the real reconcilers of nodes and policies between them, which can be thrown away and built again.

Invariant: what a new process finds is what an API server would hold: the Nodes as they were last written, pods, policies, physical nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Literal, TypeVar

from attrs import define, field

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.binding.virtual_nodes import VirtualNodes
from kubeocean.ledger.keeper import LedgerKeeper
from kubeocean.model import keys
from kubeocean.nodes.reclaim import Reclaimer
from kubeocean.nodes.reconciler import PhysicalNodeReconciler
from kubeocean.nodes.withdrawal import Withdrawal
from kubeocean.policies.reconciler import ResourceLeasingPolicyReconciler
from kubeocean.worker.cluster import Mount, WorkerCluster
from tests.unit.kubeocean.builders import OWNER, binding, unknown, worker_scope
from tests.unit.kubeocean.crowd import CrowdedHost
from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.objects import NODES, Json, KubeObject, Node, Pod
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.control.informer import Informer
from vkubelet.control.shards import ONLY, Shard
from vkubelet.node.declared import HEALTHY
from vkubelet.node.render import Endpoint, wanted
from vkubelet.node.taints import taint_body
from vkubelet.provider import NodeDescription
from vkubelet.testing.clock import ManualClock

T = TypeVar("T", bound=KubeObject)

_FOREIGN: Json = {"metadata": {"name": "foreign", "uid": "foreign"}, "spec": {"cluster": "other"}}
"""A policy for another binding: physical nodes with its label are not labelled by ours, which would need an API server."""


@define
class World:
    """`nodes` physical nodes of `cpu` cores, and as many virtual ones with pods; `policies` and `local` pods as JSON, by name.

    `requests` is the CPU of each pod.
    """

    nodes: int = 1
    pods: int = 2
    cpu: str = "4"
    requests: str = "1"
    policies: dict[str, Json] = field(factory=dict)
    local: dict[str, Json] = field(factory=dict)
    host: CrowdedHost = field(init=False)
    hub_nodes: Informer[Node] = field(init=False)
    _version: int = 10

    def __attrs_post_init__(self) -> None:
        self.host = CrowdedHost(self.nodes, pods=self.pods, cpu=self.requests)
        self.hub_nodes = listed(Informer(self.host.client, NODES, clock=self.host.clock))

    @property
    def clock(self) -> ManualClock:
        return self.host.manual_clock

    def version(self) -> str:
        self._version += 1
        return str(self._version)

    def worker(self) -> WorkerCluster:
        """As it is listed by a process that starts now."""
        made = WorkerCluster(Client(Connection("https://worker.invalid")), Mount(OWNER, "mnt"), clock=self.clock, probe_interval=10)
        for number in range(self.nodes):
            meta = {"name": f"node-{number}", "uid": f"node-{number}", "resourceVersion": "5", "labels": {keys.POLICY_APPLIED: "foreign"}}
            status = {"allocatable": {"cpu": self.cpu, "memory": "64Gi", "pods": "110"}}
            made.nodes.adopt(decode_object(Node, encode_json({"metadata": meta, "status": status})))
        made.policies.adopt(unknown({**_FOREIGN, "metadata": {**_FOREIGN["metadata"], "resourceVersion": "5"}}))
        for body in self.policies.values():
            made.policies.adopt(unknown(body))
        for body in self.local.values():
            made.pods.adopt(decode_object(Pod, encode_json(body)))
        for informer in (made.nodes, made.pods, made.policies):
            listed(informer)
        return made

    def write_nodes(self) -> None:
        """The runtime writes to the hub what was declared."""
        for description in self.host.nodes.values():
            self.hub_nodes.adopt(node_of(description, self.version()))


def listed(informer: Informer[T]) -> Informer[T]:
    """As after a complete first list."""
    informer.ever_synced = True
    informer._synced.set()
    return informer


def node_of(description: NodeDescription, version: str) -> Node:
    """The Node as the runtime writes it."""
    made = wanted(description, Endpoint("192.0.2.9", 10250), instance="demo", health=HEALTHY)
    meta = {"name": made.name, "uid": made.name, "resourceVersion": version, "labels": made.labels, "annotations": made.annotations}
    return decode_object(
        Node, encode_json({"metadata": meta, "spec": {"taints": [taint_body(each) for each in made.taints]}, "status": made.status})
    )


class Process:
    """What one process, or one session of it, does with a world. Use `async with process(world)`."""

    def __init__(self, world: World, virtual: VirtualNodes | None, shard: Shard = ONLY) -> None:
        host = world.host
        self.world = world
        self.worker = world.worker()
        self.virtual = virtual or VirtualNodes(host)
        self.reclaimer = Reclaimer(host, per_second=10)
        served = BindingReconciler(host, "demo", shard=shard)
        served.current = binding()
        listed(served.informer)
        connected = worker_scope(host, self.worker, binding=served, virtual=self.virtual, hub_nodes=world.hub_nodes, shard=shard)
        self.policies = ResourceLeasingPolicyReconciler(connected)
        self.ledger = LedgerKeeper(connected, self.policies)
        self.nodes = PhysicalNodeReconciler(connected, policies=self.policies, withdrawal=Withdrawal(connected), reclaimer=self.reclaimer)

    def take(self, kind: Literal["policies", "local"], body: Json) -> None:
        """The worker's watch shows an object."""
        if kind == "policies":
            self.worker.policies.adopt(unknown(body))
        else:
            self.worker.pods.adopt(decode_object(Pod, encode_json(body)))

    def orders(self) -> Mapping[str, datetime]:
        """By name, until when each ordered pod is evicted before it is deleted."""
        by_uid = self.reclaimer.ordered()
        return {pod.metadata.name: by_uid[pod.metadata.uid] for pod in self.world.host.store if pod.metadata.uid in by_uid}


@asynccontextmanager
async def process(world: World, *, virtual: VirtualNodes | None = None, shard: Shard = ONLY) -> AsyncIterator[Process]:
    """With `virtual`, the table of an earlier session, as after another kubeconfig; else as after a restart or a change of leader."""
    async with asyncio.TaskGroup() as group:
        made = Process(world, virtual, shard)
        running = group.create_task(made.nodes.run())
        await world.clock.settle()
        try:
            yield made
        finally:
            running.cancel()


def policy_body(name: str, generation: int = 1, **spec: object) -> Json:
    meta = {"name": name, "uid": name, "generation": generation, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": {**meta, "resourceVersion": str(generation + 5)}, "spec": {"cluster": "demo", **spec}}


def local_pod(cpu: str, *, number: int = 0) -> Json:
    """A pod of the worker's own."""
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    meta = {"name": f"local-{number}", "namespace": "elsewhere", "uid": f"local-{number}", "resourceVersion": "7"}
    return {"metadata": meta, "spec": {"nodeName": f"node-{number}", "containers": [container]}, "status": {"phase": "Running"}}
