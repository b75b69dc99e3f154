"""Sets of clusters: creates the two that always exist, reports which are empty and which bindings have a set, and reports to each
cluster which namespaces its sets prescribe.

Invariant: the clusters of a set are computed from their labels alone; a cluster that is being deleted belongs to none.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fleet.api import keys
from fleet.api.clusters import BY_LABELS, EXCLUSIVE, ManagedClusterSet, ManagedClusterSetBinding
from fleet.api.resources import MANAGEDCLUSTERSETBINDINGS, MANAGEDCLUSTERSETS
from fleet.clusters.hub import Hub, synced
from fleet.clusters.records import Records, condition
from fleet.clusters.registry import Registry
from vkubelet.api.objects import Json, JsonView, Unknown, diff_merge
from vkubelet.api.selectors import match_label_selector
from vkubelet.control.informer import Change
from vkubelet.control.store import Store

EMPTY: Final = "ClusterSetEmpty"
NONE_MATCHED: Final = "NoClusterMatched"
SELECTED: Final = "ClustersSelected"
BOUND: Final = "Bound"
SET_FOUND: Final = "ClusterSetBound"
SET_MISSING: Final = "ClusterSetNotFound"

_BY_SET = "set"
_GATHERED = 1.0
"""Seconds for which changes of clusters are gathered: each counts for every set, and leads to a write of its status."""
STANDARD: Final[Mapping[str, Json]] = {
    keys.DEFAULT_SET: {"clusterSelector": {"selectorType": EXCLUSIVE}},
    keys.GLOBAL_SET: {"clusterSelector": {"selectorType": BY_LABELS, "labelSelector": {}}},
}
"""Specs of the sets that always exist."""


def selects(chosen: ManagedClusterSet, labels: Mapping[str, str]) -> bool:
    """Checks whether a cluster with these labels belongs to a set."""
    if chosen.selector_type == EXCLUSIVE:
        return labels.get(keys.CLUSTER_SET) == chosen.meta.name
    return chosen.selector_type == BY_LABELS and match_label_selector(chosen.selector, labels)


def set_condition_of(name: str, count: int) -> Json:
    """Returns the condition of a set with so many clusters."""
    if not count:
        return condition(
            EMPTY, "True", NONE_MATCHED, message=f"no cluster belongs to the set; label clusters with {keys.CLUSTER_SET}={name}"
        )
    return condition(EMPTY, "False", SELECTED, message=f"{count} clusters belong to the set")


def binding_condition(name: str, *, exists: bool) -> Json:
    """Returns the condition of a binding to a set."""
    if exists:
        return condition(BOUND, "True", SET_FOUND, message=f"ManagedClusterSet {name} exists")
    return condition(BOUND, "False", SET_MISSING, message=f"ManagedClusterSet {name} does not exist; create it, or bind another set")


def managed_namespaces(sets: Sequence[ManagedClusterSet], live: Sequence[JsonView]) -> list[Json]:
    """Returns the namespaces that sets prescribe, each with the conditions that it has."""
    known = {(each.get("clusterSet"), each.get("name")): dict(each) for each in live}
    wanted = [(each.meta.name, name) for each in sets for name in each.namespaces]
    return [known.get(key) or {"clusterSet": key[0], "name": key[1]} for key in wanted]


class ClusterSets:
    """Controller of sets and of their bindings, by the name of the set."""

    def __init__(self, hub: Hub, registry: Registry) -> None:
        self._hub = hub
        self._registry = registry
        self._sets = Records(hub, MANAGEDCLUSTERSETS)
        store: Store[Unknown] = Store(indexes={_BY_SET: lambda obj: (ManagedClusterSetBinding.parse(obj).cluster_set,)})
        self._bindings = Records(hub, MANAGEDCLUSTERSETBINDINGS, store=store)
        self.informers = [self._sets.informer, self._bindings.informer]
        """The watches that are this controller's own."""
        self.controller = hub.controller("sets", self.reconcile)
        self.prescriptions = hub.controller("managed namespaces", self.prescribe)
        self._listeners: list[Callable[[], None]] = []
        self._sets.informer.on_change(self._set_changed)
        self._bindings.informer.on_change(self._binding_changed)
        registry.managed.informer.on_change(self._cluster_changed)

    async def run(self) -> None:
        """Runs until cancelled."""
        await synced([*self.informers, *self._registry.cluster_informers])
        for name in STANDARD:
            self.controller.add(name)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.controller.run(), name="sets")
            group.create_task(self.prescriptions.run(), name="managed namespaces")

    def members(self, name: str) -> list[str]:
        """Returns the names of the clusters of a set; none when it does not exist."""
        found = self._sets.get(name)
        if found is None:
            return []
        chosen = ManagedClusterSet.parse(found)
        known = [(each, self._registry.managed_cluster(each)) for each in self._registry.names()]
        return [each for each, cluster in known if cluster and not cluster.deleting and selects(chosen, cluster.meta.labels)]

    def namespaces_of(self, cluster: str) -> dict[str, str]:
        """Returns the namespaces that have a binding to a set of the cluster, each with the first of these sets."""
        found: dict[str, str] = {}
        for chosen in self._sets_of(cluster):
            for binding in self._bindings.informer.store.by_index(_BY_SET, chosen.meta.name):
                found.setdefault(binding.metadata.namespace, chosen.meta.name)
        return found

    def _sets_of(self, cluster: str) -> list[ManagedClusterSet]:
        known = self._registry.managed_cluster(cluster)
        if known is None or known.deleting:
            return []
        parsed = map(ManagedClusterSet.parse, sorted(self._sets.informer.store, key=lambda each: each.metadata.name))
        return [each for each in parsed if selects(each, known.meta.labels)]

    def on_change(self, listener: Callable[[], None]) -> None:
        """Registers `listener()` for when another namespace may have a binding to the set of a cluster."""
        self._listeners.append(listener)

    async def reconcile(self, name: str) -> None:
        """Reports one set and its bindings. Raises ApiError."""
        obj = self._sets.get(name)
        if name in STANDARD:
            obj = await self._restore(name, obj)
        if obj is not None:
            await self._sets.report(obj, [set_condition_of(name, len(self.members(name)))])
        for binding in self._bindings.informer.store.by_index(_BY_SET, name):
            await self._bindings.report(binding, [binding_condition(name, exists=obj is not None)])

    async def prescribe(self, cluster: str) -> None:
        """Reports to one cluster which namespaces it is to have; its agent adds their conditions. Raises ApiError."""
        obj = self._registry.managed.get(cluster)
        if obj is None or obj.metadata.deletion_timestamp is not None:
            return
        live = (obj.body.get("status") or {}).get("managedNamespaces") or []
        listed = managed_namespaces(self._sets_of(cluster), live)
        if listed != live:
            await self._registry.managed.report(obj, (), {"managedNamespaces": listed})

    async def _restore(self, name: str, obj: Unknown | None) -> Unknown:
        """Creates a set that always exists, or gives it its spec again unless its annotation forbids that. Raises ApiError."""
        spec = STANDARD[name]
        if obj is None:
            made = await self._hub.client.create(MANAGEDCLUSTERSETS, {"metadata": {"name": name}, "spec": spec})
            self._sets.informer.adopt(made)
            return made
        difference = diff_merge((obj.body.get("spec") or {}).get("clusterSelector") or {}, spec["clusterSelector"])
        if not difference or obj.metadata.annotations.get(keys.AUTO_UPDATE) == "false":
            return obj
        return await self._sets.patch(obj, {"spec": {"clusterSelector": difference}})

    def _set_changed(self, change: Change[Unknown]) -> None:
        self.controller.add(change.key.name)
        if change.more_than_status:
            self.prescriptions.add_many(self._registry.names())
        self._notify(change)

    def _notify(self, change: Change[Unknown]) -> None:
        for listener in self._listeners if change.more_than_status else ():
            listener()

    def _binding_changed(self, change: Change[Unknown]) -> None:
        for each in (change.old, change.new):
            if each is not None:
                self.controller.add(ManagedClusterSetBinding.parse(each).cluster_set)
        self._notify(change)

    def _cluster_changed(self, change: Change[Unknown]) -> None:
        """Checks all sets when the labels of a cluster change; which they match is not known without."""
        before, after = (each and (each.metadata.labels, each.metadata.deletion_timestamp) for each in (change.old, change.new))
        if before != after:
            self.prescriptions.add(change.key.name)
            for obj in self._sets.informer.store:
                self.controller.add(obj.metadata.name, after=_GATHERED)
