"""Removes a cluster whose record is deleted: addons, then works, in their order, then its rights; what is left is its namespace.

Invariant: an object counts as removed only when a complete list of the API server lacks it, and everything that is deleted here was in
the namespace of the cluster and labelled as its own.
"""

import logging
from collections.abc import Sequence

from fleet.api import keys
from fleet.api.clusters import ManagedCluster
from fleet.api.resources import CLUSTER_LEASES, MANAGEDCLUSTERADDONS, MANAGEDCLUSTERS, MANIFESTWORKS
from fleet.clusters.hub import Hub
from fleet.clusters.kept import KeptObjects
from fleet.clusters.records import condition
from fleet.clusters.registry import Registry
from fleet.ocm.acceptance import revoked_bindings, role_name
from vkubelet.api.objects import CLUSTERROLEBINDINGS, CLUSTERROLES, NAMESPACES, ROLEBINDINGS, Key, Resource, Unknown
from vkubelet.client.rest import Selection
from vkubelet.clock import parse_rfc3339
from vkubelet.errors import ApiError
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

DELETING = "Deleting"
REMAINING = "ResourceRemaining"
NONE_LEFT = "NoResource"
FAILED = "DeletingError"
RECHECK = 5.0
"""Seconds between two lists of what is left."""
_NAMED = 3
_HIGHEST_PRIORITY = 100


def priority(obj: Unknown) -> int:
    """Returns the priority of an object, from 0 to 100; those with the lowest are deleted first. An invalid one is 0."""
    text = obj.metadata.annotations.get(keys.CLEANUP_PRIORITY, "")
    return min(int(text), _HIGHEST_PRIORITY) if text.isascii() and text.isdigit() else 0


def next_to_delete(left: Sequence[Unknown]) -> list[Unknown]:
    """Returns the objects that are to be deleted now, and are not yet: all of the lowest priority that is left."""
    lowest = min(map(priority, left), default=0)
    return [each for each in left if priority(each) == lowest and each.metadata.deletion_timestamp is None]


def remaining_text(addons: Sequence[Unknown], works: Sequence[Unknown]) -> str:
    """Describes what is left, with the names of the oldest."""
    oldest = sorted((*addons, *works), key=lambda each: (each.metadata.creation_timestamp, each.metadata.name))
    names = ", ".join(each.metadata.name for each in oldest[:_NAMED])
    return f"{len(addons)} ManagedClusterAddOns and {len(works)} ManifestWorks are left, the oldest: {names}"


class Removal:
    """Removes deleted clusters, for the controller that created their objects."""

    def __init__(self, hub: Hub, registry: Registry, kept: KeptObjects, *, namespace: str) -> None:
        self._hub = hub
        self._registry = registry
        self._kept = kept
        self._namespace = namespace

    async def has_works(self, cluster: str) -> bool:
        """Checks for ManifestWorks in the namespace of a cluster. Raises ApiError."""
        return bool((await self._hub.client.list(MANIFESTWORKS, Selection(namespace=cluster))).items)

    async def reconcile(self, obj: Unknown, cluster: ManagedCluster) -> float | None:
        """Removes what belongs to a deleted cluster, step by step; returns the seconds until the next one. Raises ApiError."""
        if keys.RESOURCE_CLEANUP in obj.metadata.finalizers:
            try:
                again, obj = await self._remove_contents(obj, cluster)
            except ApiError as error:
                if not error.retryable:
                    await self._registry.managed.report(
                        obj, [condition(DELETING, "True", FAILED, message=f"cannot remove the cluster: {error}")]
                    )
                raise
            if again is not None:
                return again
            obj = await self._registry.managed.release(obj, [keys.RESOURCE_CLEANUP])
        if keys.RBAC_CLEANUP in obj.metadata.finalizers:
            await self._remove_rights(cluster.name)
            await self._registry.managed.release(obj, [keys.RBAC_CLEANUP])
            with bind(cluster=cluster.name):
                log.info("cluster removed")
        return None

    async def _remove_contents(self, obj: Unknown, cluster: ManagedCluster) -> tuple[float | None, Unknown]:
        if not self._owns_namespace(cluster.name):
            return None, obj
        where = Selection(namespace=cluster.name)
        addons = (await self._hub.client.list(MANAGEDCLUSTERADDONS, where)).items
        works = (await self._hub.client.list(MANIFESTWORKS, where)).items
        if not addons and not works:
            done = condition(DELETING, "True", NONE_LEFT, message="no ManagedClusterAddOn and no ManifestWork is left")
            return None, await self._registry.managed.report(obj, [done])
        resource, left = (MANAGEDCLUSTERADDONS, addons) if addons else (MANIFESTWORKS, works)
        obj = await self._registry.managed.report(obj, [condition(DELETING, "True", REMAINING, message=remaining_text(addons, works))])
        for each in next_to_delete(left):
            await self._kept.delete(resource, each)
        if self._is_forced(obj, cluster):
            await self._force(obj, addons, works)
        return RECHECK, obj

    def _owns_namespace(self, cluster: str) -> bool:
        namespace = self._kept.get(NAMESPACES, cluster)
        return namespace is not None and namespace.metadata.labels.get(keys.CLUSTER_NAME) == cluster

    def _is_forced(self, obj: Unknown, cluster: ManagedCluster) -> bool:
        limit, requested = cluster.forced_after, obj.metadata.deletion_timestamp
        return limit is not None and requested is not None and self._hub.client.server_now() - parse_rfc3339(requested) >= limit

    async def _force(self, obj: Unknown, addons: Sequence[Unknown], works: Sequence[Unknown]) -> None:
        """Deletes everything at once, and removes the finalizers that a missing agent would have to."""
        contents: tuple[tuple[Resource[Unknown], Sequence[Unknown]], ...] = ((MANAGEDCLUSTERADDONS, addons), (MANIFESTWORKS, works))
        for resource, left in contents:
            for each in left:
                await self._kept.delete(resource, each)
                await self._kept.release(resource, each, each.metadata.finalizers)
        message = f"removed by force ({keys.FORCE_CLEANUP}): {remaining_text(addons, works)}; what they created may remain in the worker"
        self._hub.event(MANAGEDCLUSTERS, obj, reason="ForcedCleanup", message=message, warning=True)

    async def _remove_rights(self, cluster: str) -> None:
        role = role_name(cluster)
        lease = self._registry.leases.store.get(Key(cluster, keys.LEASE))
        bindings = [(ROLEBINDINGS, namespace, name) for namespace, name in revoked_bindings(cluster, self._namespace)]
        for resource, namespace, name in (*bindings, (CLUSTERROLEBINDINGS, "", role), (CLUSTERROLES, "", role)):
            found = self._kept.get(resource, name, namespace)
            if found is not None and found.metadata.labels.get(keys.CLUSTER_NAME) == cluster:
                await self._kept.delete(resource, found)
                await self._kept.release(resource, found, [keys.WORK_CLEANUP])
        if lease is not None:
            await self._kept.delete(CLUSTER_LEASES, lease)
