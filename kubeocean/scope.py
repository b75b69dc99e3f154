"""What the classes that serve one ClusterBinding share: the host, the caches and the settings; with a connection, also the worker.

Invariant: a Scope outlives every connection to the worker; a WorkerScope belongs to exactly one.
"""

from __future__ import annotations

from attrs import fields, frozen

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.binding.virtual_nodes import VirtualNodes
from kubeocean.metrics import SyncerMetrics
from kubeocean.model import keys
from kubeocean.settings import KubeoceanSettings
from kubeocean.worker.cluster import WorkerCluster
from vkubelet.api.objects import Node
from vkubelet.control.guard import MassGuard
from vkubelet.control.informer import Informer
from vkubelet.control.reach import Reach
from vkubelet.control.shards import ONLY, Shard
from vkubelet.provider import Host


@frozen(kw_only=True)
class Scope:
    """The parts of one binding that exist whether or not a worker is connected."""

    host: Host
    settings: KubeoceanSettings
    """As they were when the scope was made: a class that follows changes has a method for each."""
    process_zone: str
    """Time zone of the windows of bindings and policies that name none."""
    binding: BindingReconciler
    virtual: VirtualNodes
    hub_nodes: Informer[Node]
    """The observed Nodes of this binding in the hub."""
    reach: Reach
    metrics: SyncerMetrics
    guard: MassGuard
    """Limits the share of the nodes that is retired at once."""
    shard: Shard = ONLY
    """The part of the nodes that this process serves; the first one also has what exists once for the binding."""

    def owns(self, virtual: str) -> bool:
        """Checks whether this process serves a virtual node."""
        return self.shard.owns(virtual)

    def with_worker(self, worker: WorkerCluster) -> WorkerScope:
        """Returns the scope of one connection to the worker."""
        return WorkerScope(worker=worker, **{each.name: getattr(self, each.name) for each in fields(Scope)})


@frozen(kw_only=True)
class WorkerScope(Scope):
    """The parts of one binding while a worker is connected."""

    worker: WorkerCluster

    def owns_physical(self, name: str) -> bool:
        """Checks whether this process serves the virtual node of a physical one."""
        return self.shard.is_only or self.owns(keys.vnode_name(self.worker.mount.owner.cluster_id, name))
