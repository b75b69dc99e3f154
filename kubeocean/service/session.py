"""The reconcilers of one connection to a worker cluster.

Invariant: they start and stop together; state that has to outlive a connection (declared nodes, the binding, the guard) is passed in.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from attrs import evolve

from kubeocean.copies.dependents import Dependents
from kubeocean.copies.legacy_tokens import LegacyTokens
from kubeocean.ledger.keeper import LedgerKeeper
from kubeocean.mirrors.extra_kinds import ExtraKinds
from kubeocean.mirrors.namespaces import MirroredNamespaces
from kubeocean.networkpolicies.mirror import NetworkPolicyMirror
from kubeocean.nodes.csinodes import CSINodeReconciler
from kubeocean.nodes.hostports import HostPortReconciler
from kubeocean.nodes.reclaim import Reclaimer
from kubeocean.nodes.reconciler import PhysicalNodeReconciler
from kubeocean.nodes.withdrawal import Withdrawal
from kubeocean.pods.admission import LeaseAdmission
from kubeocean.pods.events import EventMirror
from kubeocean.pods.physical import PhysicalPodReconciler
from kubeocean.pods.placement import Placement
from kubeocean.pods.virtual import VirtualPodReconciler
from kubeocean.policies.reconciler import ResourceLeasingPolicyReconciler
from kubeocean.scope import WorkerScope
from kubeocean.service.legacy_takeover import LegacyAdoption
from kubeocean.service.metrics_snapshot import Connected, Sources
from kubeocean.services.routes import RouteProbe
from kubeocean.services.service_mirror import ServiceMirror
from kubeocean.settings import KubeoceanSettings
from kubeocean.worker.pod_streams import Backing
from kubeocean.worker.stats import NodeStats
from vkubelet.api.objects import Node, PodRef
from vkubelet.clock import steps
from vkubelet.control.informer import Change
from vkubelet.errors import NoSuchPod
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

_LISTS_CHECKED_EVERY = 1.0


class Session:
    """The reconcilers of one binding, connected to one worker."""

    def __init__(self, scope: WorkerScope) -> None:
        self._scope = scope
        self.worker = worker = scope.worker
        host, settings = scope.host, scope.settings
        self._reclaimer = Reclaimer(host, per_second=settings.evictions_per_second)
        self._policies = ResourceLeasingPolicyReconciler(scope)
        self._ledger = LedgerKeeper(scope, self._policies)
        self._policies.set_ledger(self._ledger)
        self._withdrawal = Withdrawal(scope)
        self.nodes = PhysicalNodeReconciler(scope, policies=self._policies, withdrawal=self._withdrawal, reclaimer=self._reclaimer)
        self._dependents = Dependents(scope)
        self.physical = PhysicalPodReconciler(scope=scope, released=self._released)
        self._legacy_tokens = LegacyTokens(host, worker, self._dependents.tokens)
        self.adoption = LegacyAdoption(scope)
        self._placement = Placement(scope=scope)
        self._mirrored = MirroredNamespaces(scope)
        prepare = self._dependents.tenants.ensure
        self._services = ServiceMirror(
            scope,
            self._placement.services.informer,
            namespaces=self._mirrored,
            prepare=prepare,
            has_dns=self._placement.uses_hub_dns,
        )
        self._network_policies = NetworkPolicyMirror(scope)
        self._dependents.entering = self._network_policies.entering
        self.kinds = ExtraKinds(scope, namespaces=self._mirrored, prepare=prepare)
        self._placement.services.entering = self._services.entering
        self._admission = LeaseAdmission(scope=scope, policy=self._policies.get)
        self.pods = VirtualPodReconciler(
            scope=scope,
            dependents=self._dependents,
            placement=self._placement,
            admission=self._admission,
            physical=self.physical,
        )
        self.events = EventMirror(scope=scope)
        self.stats = NodeStats(host, worker)
        self._csinodes = CSINodeReconciler(scope)
        self._host_ports = HostPortReconciler(scope)

    async def run(self) -> None:
        """Runs all reconcilers until cancelled."""
        parts: list[Callable[[], Awaitable[None]]] = [
            lambda: self.worker.run(self._scope.reach),
            self.nodes.run,
            self._dependents.run,
            self._legacy_tokens.controller.run,
            self._reclaimer.controller.run,
            self._placement.run,
            self._services.run,
            self._network_policies.run,
            self.physical.controller.run,
            self.events.run,
            self._csinodes.informer.run,
            self._csinodes.run,
            self._host_ports.informer.run,
            self._host_ports.run,
            self._watch_lists,
            self._watch_clock,
            *(self._once_for_the_binding() if self._scope.shard.is_first else ()),
        ]
        self.pods.binding_changed()
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(_run(part))

    def _once_for_the_binding(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Returns the parts of which a binding has one, whatever the number of its shards."""
        return (self.adoption.run, self._policies.controller.run, self._ledger.run, self.kinds.run, RouteProbe(self._scope).run)

    def hub_node_changed(self, change: Change[Node]) -> None:
        """Forwards a change of a Node of the binding in the hub."""
        self.nodes.hub_node_changed(change)
        self._csinodes.hub_node_changed(change)
        self._host_ports.hub_node_changed(change)
        self._admission.hub_node_changed(change)

    def take_settings(self, settings: KubeoceanSettings) -> None:
        """Applies changed intervals and rates."""
        self.worker.probe_interval = settings.probe_interval
        self._reclaimer.pace(settings.evictions_per_second)

    def sources(self, lasting: Sources) -> Sources:
        """Returns the sources of the metrics during this session."""
        connected = Connected(worker=self.worker, usage=self.nodes.usage, ledger=self._ledger)
        return evolve(lasting, connected=connected, reclaimers=(*lasting.reclaimers, self._reclaimer))

    def _released(self, ref: PodRef) -> None:
        self._dependents.release(ref)
        self._admission.remove(ref.uid)
        self._legacy_tokens.released(ref)
        self._mirrored.released(ref)

    def binding_changed(self) -> None:
        """Rechecks policies, nodes, copies and pods of DaemonSets after a change of the binding."""
        self._policies.recheck()
        self.nodes.recheck()
        self._dependents.binding_changed()
        self._recheck_mirrors()
        self._network_policies.binding_changed()
        self.pods.binding_changed()

    def withdraw_mirrors(self, *, withdrawn: bool) -> None:
        """Deletes the mirrors of namespaces that no pod needs, as another mapping waits for that; or creates them again."""
        if self._mirrored.withdraw(withdrawn=withdrawn):
            self._recheck_mirrors()
        self._network_policies.withdraw(withdrawn=withdrawn)

    def _recheck_mirrors(self) -> None:
        self._services.binding_changed()
        self.kinds.binding_changed()

    def worker_returned(self) -> None:
        """Publishes nodes and pods with their observed state after the worker has become reachable again."""
        self.nodes.recheck()
        self.physical.recheck()

    def backing(self, ref: PodRef) -> Backing:
        """Returns the pods that a stream connects, from the caches alone. Raises NoSuchPod when the worker has no physical pod of it."""
        virtual, physical = self._scope.host.pods.get(ref), self.pods.backing(ref)
        if virtual is None or physical is None:
            raise NoSuchPod(f"pod {ref.key} has not been started in the worker cluster yet; see the events of the pod")
        return Backing(self.worker.client, virtual, physical.key)

    async def _watch_clock(self) -> None:
        """Rechecks time windows and tokens after the wall clock was set: a wait until a moment does not notice that."""
        async for by in steps(self._scope.host.clock):
            with bind(seconds=round(by)):
                log.info("the wall clock was set")
            self._policies.recheck()
            self.nodes.recheck()
            self._dependents.tokens.recheck()
            self._legacy_tokens.recheck()

    async def _watch_lists(self) -> None:
        """Reports on the binding which lists a reachable worker refuses."""
        before, reported = "", None
        while True:
            await self._scope.host.clock.sleep(_LISTS_CHECKED_EVERY)
            now = self.worker.unreadable() if not self._scope.reach.problem else ""
            # A watch that has just been interrupted is not worth a report.
            wanted = now if before else ""
            if wanted != reported:
                self._scope.binding.set_unreadable(wanted)
            before, reported = now, wanted


async def _run(part: Callable[[], Awaitable[None]]) -> None:
    await part()
