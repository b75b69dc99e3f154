"""The reconcilers of one connection to a worker cluster.

Invariant: they start and stop together; state that has to outlive a connection (declared nodes, the binding, the guard) is passed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from attrs import evolve, frozen

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.copies.dependents import DependentParts, Dependents
from kubeocean.copies.legacy_tokens import InheritedTokens
from kubeocean.metrics import SyncerMetrics
from kubeocean.model.crds import FromWorker
from kubeocean.nodes.csinodes import CSINodeParts, CSINodeReconciler
from kubeocean.nodes.hostports import HostPortParts, HostPortReconciler
from kubeocean.nodes.reclaim import Reclaimer
from kubeocean.nodes.reconciler import NodeParts, PhysicalNodeReconciler
from kubeocean.nodes.virtual_nodes import VirtualNodes
from kubeocean.nodes.withdrawal import Withdrawal
from kubeocean.pods.admission import AdmissionParts, LeaseAdmission
from kubeocean.pods.events import EventMirror, EventParts
from kubeocean.pods.hub_access import HomeAccess
from kubeocean.pods.physical import PhysicalPodParts, PhysicalPodReconciler
from kubeocean.pods.placement import Placement, PlacementParts
from kubeocean.pods.service_links import ServiceLinks
from kubeocean.pods.virtual import VirtualPodParts, VirtualPodReconciler
from kubeocean.policies.reconciler import ResourceLeasingPolicyReconciler
from kubeocean.service.legacy_takeover import TakeOver, TakeOverParts
from kubeocean.service.metrics_snapshot import Live, Sources
from kubeocean.settings import KubeoceanSettings
from kubeocean.worker.cluster import WorkerCluster
from kubeocean.worker.reach import Reach
from kubeocean.worker.stats import NodeStats
from kubeocean.worker.streams import Backing
from vkubelet.api.objects import Node, PodRef
from vkubelet.control.guard import MassGuard
from vkubelet.control.informer import Change, Informer
from vkubelet.errors import NoSuchPod
from vkubelet.provider import Host

_LISTS_CHECKED_EVERY = 1.0


@frozen(kw_only=True)
class Lasting:
    """State that outlives a connection."""

    host: Host
    settings: KubeoceanSettings
    process_zone: str
    binding: BindingReconciler
    virtual: VirtualNodes
    hub_nodes: Informer[Node]
    reach: Reach
    metrics: SyncerMetrics
    guard: MassGuard


class Session:
    """The reconcilers of one binding, connected to one worker."""

    def __init__(self, worker: WorkerCluster, lasting: Lasting) -> None:
        self.worker = worker
        self._lasting = lasting
        host, settings = lasting.host, lasting.settings
        zone = lasting.process_zone
        self._reclaimer = Reclaimer(host, per_second=settings.evictions_per_second)
        self._policies = ResourceLeasingPolicyReconciler(host, worker, binding=lasting.binding, process_zone=zone)
        self._withdrawal = Withdrawal(worker, binding=lasting.binding, guard=lasting.guard, process_zone=zone)
        self.nodes = PhysicalNodeReconciler(self._node_parts())
        self._dependents = Dependents(
            DependentParts(
                host=host,
                worker=worker,
                binding=lambda: lasting.binding.current,
                settled=lambda: lasting.virtual.is_complete,
                unused_after=settings.unused_copy_after,
            )
        )
        self.physical = PhysicalPodReconciler(
            PhysicalPodParts(
                host=host,
                worker=worker,
                released=self._released,
                from_worker=lambda: lasting.binding.current.from_worker if lasting.binding.current is not None else FromWorker(),
                workers=settings.pod_workers,
                unscheduled_after=settings.unscheduled_after,
            )
        )
        self._inherited = InheritedTokens(host, worker, self._dependents.tokens)
        self.take_over = TakeOver(
            TakeOverParts(host=host, worker=worker, binding=lasting.binding, virtual=lasting.virtual, hub_nodes=lasting.hub_nodes)
        )
        self._access = HomeAccess(host, lasting.binding, domain=settings.cluster_domain)
        self._services = ServiceLinks(host)
        self._admission = LeaseAdmission(self._admission_parts())
        self.pods = VirtualPodReconciler(self._pod_parts())
        self.events = EventMirror(EventParts(host=host, worker=worker, binding=lasting.binding, metrics=lasting.metrics))
        self.stats = NodeStats(host, worker)
        self._csinodes = CSINodeReconciler(CSINodeParts(host=host, worker=worker, binding=lasting.binding, hub_nodes=lasting.hub_nodes))
        self._host_ports = HostPortReconciler(
            HostPortParts(host=host, worker=worker, binding=lasting.binding, virtual=lasting.virtual, hub_nodes=lasting.hub_nodes)
        )

    def _node_parts(self) -> NodeParts:
        lasting = self._lasting
        return NodeParts(
            host=lasting.host,
            worker=self.worker,
            binding=lasting.binding,
            virtual=lasting.virtual,
            hub_nodes=lasting.hub_nodes,
            policies=self._policies,
            withdrawal=self._withdrawal,
            reclaimer=self._reclaimer,
            process_zone=lasting.process_zone,
        )

    def _admission_parts(self) -> AdmissionParts:
        lasting = self._lasting
        return AdmissionParts(
            host=lasting.host,
            worker=self.worker,
            virtual=lasting.virtual,
            hub_nodes=lasting.hub_nodes.store,
            binding=lambda: lasting.binding.current,
            policy=self._policies.get,
        )

    def _pod_parts(self) -> VirtualPodParts:
        lasting = self._lasting
        placement = PlacementParts(
            host=lasting.host, worker=self.worker, virtual=lasting.virtual, access=self._access, services=self._services
        )
        return VirtualPodParts(
            host=lasting.host,
            worker=self.worker,
            binding=lasting.binding,
            virtual=lasting.virtual,
            dependents=self._dependents,
            placement=Placement(placement),
            admission=self._admission,
            physical=self.physical,
            metrics=lasting.metrics,
        )

    async def run(self) -> None:
        """Runs all reconcilers until cancelled."""
        parts: list[Callable[[], Awaitable[None]]] = [
            lambda: self.worker.run(self._lasting.reach),
            self.nodes.run,
            self._dependents.run,
            self._inherited.controller.run,
            self.take_over.run,
            self._reclaimer.controller.run,
            self._policies.controller.run,
            self._access.run,
            self._services.informer.run,
            self.physical.controller.run,
            self.events.run,
            self._csinodes.informer.run,
            self._csinodes.run,
            self._host_ports.informer.run,
            self._host_ports.run,
            self._watch_lists,
        ]
        self.pods.binding_changed()
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(_run(part))

    def hub_node_changed(self, change: Change[Node]) -> None:
        """Forwards a change of a Node of the binding in the hub."""
        self.nodes.hub_node_changed(change)
        self._csinodes.hub_node_changed(change)
        self._host_ports.hub_node_changed(change)

    def take_settings(self, settings: KubeoceanSettings) -> None:
        """Applies changed intervals and rates."""
        self.worker.probe_interval = settings.probe_interval
        self._reclaimer.pace(settings.evictions_per_second)

    def sources(self, lasting: Sources) -> Sources:
        """Returns the sources of the metrics during this session."""
        live = Live(worker=self.worker, usage=self.nodes.usage)
        return evolve(lasting, live=live, reclaimers=(*lasting.reclaimers, self._reclaimer))

    def _released(self, ref: PodRef) -> None:
        self._dependents.release(ref)
        self._admission.forget(ref.uid)
        self._inherited.released(ref)

    def binding_changed(self) -> None:
        """Rechecks policies, nodes, copies and pods of DaemonSets after a change of the binding."""
        self._policies.recheck()
        self.nodes.recheck()
        self._dependents.binding_changed()
        self.pods.binding_changed()

    def worker_returned(self) -> None:
        """Publishes nodes and pods with their observed state after the worker has become reachable again."""
        self.nodes.recheck()
        self.physical.recheck()

    def backing(self, ref: PodRef) -> Backing:
        """Returns the pods that a stream connects, from the caches alone. Raises NoSuchPod when the worker has no physical pod of it."""
        virtual, physical = self._lasting.host.pods.get(ref), self.pods.backing(ref)
        if virtual is None or physical is None:
            raise NoSuchPod(f"pod {ref.name} has not been started in the worker cluster")
        return Backing(self.worker.client, virtual, physical.key)

    async def _watch_lists(self) -> None:
        """Reports on the binding which lists a reachable worker refuses."""
        before = ""
        while True:
            await self._lasting.host.clock.sleep(_LISTS_CHECKED_EVERY)
            now = self.worker.unreadable() if not self._lasting.reach.problem else ""
            # A watch that has just been interrupted is not worth a report.
            self._lasting.binding.set_unreadable(now if before else "")
            before = now


async def _run(part: Callable[[], Awaitable[None]]) -> None:
    await part()
