"""Accepts and denies clusters: carries out the decisions of `fleet.ocm.acceptance`, and restores what others change of its objects.

Invariant: the finalizers stand before any object of a cluster is created, and a denial takes rights away before it is reported.
"""

import logging
from collections.abc import Sequence

from fleet.api import keys
from fleet.api.clusters import AVAILABLE, HUB_ACCEPTED, ManagedCluster, condition_of
from fleet.api.resources import MANAGEDCLUSTERS
from fleet.clusters.hub import Hub, synced
from fleet.clusters.kept import KeptObjects
from fleet.clusters.records import condition, has_condition
from fleet.clusters.registry import Registry
from fleet.core.taints import with_health_taint
from fleet.core.view import Door
from fleet.ocm import acceptance
from fleet.ocm.removal import RECHECK, Removal
from vkubelet.api.objects import CLUSTERROLEBINDINGS, CLUSTERROLES, NAMESPACES, ROLEBINDINGS, Json, Unknown
from vkubelet.client.rest import Selection
from vkubelet.control.informer import Informer
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

FINALIZERS = (keys.RBAC_CLEANUP, keys.RESOURCE_CLEANUP)
_OURS = Selection(labels=keys.CLUSTER_NAME)


class Acceptor:
    """Controller of the rights of clusters; `namespace` is that of the gateway."""

    def __init__(self, hub: Hub, registry: Registry, namespaces: Informer[Unknown], *, namespace: str) -> None:
        self._hub = hub
        self._registry = registry
        self._namespace = namespace
        self._namespaces = namespaces
        self.informers = [hub.informer(resource, _OURS) for resource in (CLUSTERROLES, CLUSTERROLEBINDINGS, ROLEBINDINGS)]
        """The watches that are this controller's own."""
        self._kept = KeptObjects(hub.client, [*self.informers, namespaces, registry.leases])
        self._removal = Removal(hub, registry, self._kept, namespace=namespace)
        self.controller = hub.controller("acceptance", self.reconcile)
        registry.on_change(self.controller.add, status=False)
        self._kept.on_change(self._kept_changed)

    async def run(self) -> None:
        """Runs until cancelled."""
        await synced([*self.informers, self._namespaces, *self._registry.cluster_informers])
        await self.controller.run()

    async def reconcile(self, name: str) -> float | None:
        """Reconciles the rights of one cluster; returns the seconds until it is rechecked. Raises ApiError."""
        obj, cluster = self._registry.managed.get(name), self._registry.managed_cluster(name)
        if obj is None or cluster is None:
            return None
        namespace = self._kept.get(NAMESPACES, name)
        decision = acceptance.decide(cluster, namespace.metadata if namespace is not None else None)
        if decision.step is acceptance.Step.NOTHING:
            return await self._removal.reconcile(obj, cluster)
        if decision.step is acceptance.Step.REFUSE:
            await self._report(obj, decision)
            return None
        obj = await self._prepare(obj, cluster, accepted=decision.step is acceptance.Step.ACCEPT)
        if decision.step is acceptance.Step.WAIT:
            await self._report(obj, decision)
            return None
        return await (self._accept if decision.step is acceptance.Step.ACCEPT else self._deny)(obj, cluster, decision)

    async def _prepare(self, obj: Unknown, cluster: ManagedCluster, *, accepted: bool) -> Unknown:
        """Adds in one write the finalizers, the label of the default set to a cluster that is in none, and the taint of one that is
        accepted now and whose agent has not reported its health. Raises ApiError."""
        in_a_set = keys.CLUSTER_SET in obj.metadata.labels
        label = {} if in_a_set else {"labels": {keys.CLUSTER_SET: keys.DEFAULT_SET}}
        spec: Json = {}
        if accepted and _is_new(cluster):
            taints = obj.body["spec"].get("taints") or []
            tainted = with_health_taint(taints, "", now=self._hub.client.server_now())
            spec = {"taints": tainted} if tainted != taints else {}
        return await self._registry.managed.hold(obj, FINALIZERS, metadata=label, spec=spec)

    async def _accept(self, obj: Unknown, cluster: ManagedCluster, decision: acceptance.Decision) -> None:
        mirrors = obj.metadata.annotations.get(keys.ORIGIN) == Door.KUBEFLEET.value
        origin = self._registry.member_cluster(cluster.name) if mirrors else None
        if mirrors and origin is None:
            # Its identity is not known, and it is deleted soon.
            return
        was_accepted = has_condition(obj, HUB_ACCEPTED, status="True", reason=acceptance.ACCEPTED)
        written = await self._kept.keep(acceptance.accepted_objects(cluster, self._namespace, origin=origin))
        if was_accepted:
            self._record_restored(obj, written)
        await self._report(obj, decision)

    async def _deny(self, obj: Unknown, cluster: ManagedCluster, decision: acceptance.Decision) -> float | None:
        await self._kept.keep(acceptance.denied_objects(cluster.name))
        waits = False
        for namespace, name in acceptance.revoked_bindings(cluster.name, self._namespace):
            binding = self._kept.get(ROLEBINDINGS, name, namespace)
            if binding is None:
                continue
            await self._kept.delete(ROLEBINDINGS, binding)
            if not binding.metadata.finalizers:
                continue
            waits = await self._removal.has_works(cluster.name)
            if not waits:
                await self._kept.release(ROLEBINDINGS, binding, [keys.WORK_CLEANUP])
        await self._report(obj, decision)
        return RECHECK if waits else None

    async def _report(self, obj: Unknown, decision: acceptance.Decision) -> None:
        current = self._registry.managed.unchanged(obj)
        if not decision.status or current is None:
            return
        known = has_condition(obj, HUB_ACCEPTED, status=decision.status, reason=decision.reason)
        if known and decision.reason == acceptance.ACCEPTED:
            # The controller of health reports it for each generation, in one write with what has changed.
            return
        accepted = condition(HUB_ACCEPTED, decision.status, decision.reason, message=decision.message)
        await self._registry.managed.report(current, [accepted])
        if not known:
            # An Event of each acceptance would repeat the condition alone, and thousands of clusters may join at once.
            if decision.reason != acceptance.ACCEPTED:
                warning = decision.reason != acceptance.DENIED
                self._hub.event(MANAGEDCLUSTERS, obj, reason=decision.reason, message=decision.message, warning=warning)
            with bind(cluster=obj.metadata.name, reason=decision.reason):
                log.info("acceptance of a cluster changed")

    def _record_restored(self, obj: Unknown, written: Sequence[Json]) -> None:
        for body in written:
            what = f"{body['kind']} {body['metadata']['name']}"
            message = f"{what} was deleted or changed, and is restored: set spec.hubAcceptsClient to false to take the rights away"
            self._hub.event(MANAGEDCLUSTERS, obj, reason="Restored", message=message, warning=True)

    def _kept_changed(self, obj: Unknown) -> None:
        """Reconciles the cluster of an object; a namespace in the way of a cluster has its name, and no label."""
        name = obj.metadata.labels.get(keys.CLUSTER_NAME, "" if obj.metadata.namespace else obj.metadata.name)
        if self._registry.managed_cluster(name) is not None:
            self.controller.add(name)


def _is_new(cluster: ManagedCluster) -> bool:
    """Checks that neither side has reported anything yet. The health of a mirror may be known, that of its member."""
    mirrors = cluster.meta.annotations.get(keys.ORIGIN) == Door.KUBEFLEET.value
    return not mirrors and all(condition_of(cluster.conditions, each) is None for each in (HUB_ACCEPTED, AVAILABLE))
