"""Mirrors each cluster in the other API: a MemberCluster for an accepted ManagedCluster, a ManagedCluster for a MemberCluster.

Invariant: what is written goes from the origin to its mirror and never back; a mirror is deleted only by its UID, after the API server
has confirmed that its origin is missing, leaves or is denied.
"""

import logging
from collections.abc import Mapping
from typing import Final

from fleet.api import keys
from fleet.api.clusters import HUB_ACCEPTED, NO_SELECT_IF_NEW, ManagedCluster, MemberCluster, holds
from fleet.api.resources import MANAGEDCLUSTERS, MEMBERCLUSTERS
from fleet.clusters.hub import Hub, synced
from fleet.clusters.kept import contains, contains_each
from fleet.clusters.records import Records
from fleet.clusters.registry import Registry
from fleet.core.taints import as_managed_taints, as_member_taints
from fleet.core.view import Door, origin_of
from vkubelet.api.codec import encode_json
from vkubelet.api.objects import Json, JsonView, Resource, Unknown
from vkubelet.control.informer import Informer
from vkubelet.errors import NotFound
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

CONTESTED: Final = "TwoRecords"


def mirrored_member(cluster: ManagedCluster) -> Json:
    """Builds the MemberCluster of an accepted ManagedCluster; its identity is the group of the cluster's certificates."""
    group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": keys.cluster_group(cluster.name)}
    # The finalizer that the controller of members would have to add before it creates anything.
    metadata = {**_metadata(cluster.name, Door.OCM, cluster.meta.labels), "finalizers": [keys.MEMBER_FINALIZER]}
    # Most clusters report within seconds that they are available. Before, a member that has not joined is not chosen anyway.
    taints = as_member_taints(each for each in cluster.taints if cluster.is_unknown or each.key != keys.UNREACHABLE)
    # The deletion of a mirror follows that of its origin, which nothing may refuse.
    spec = {"identity": group, "taints": taints, "deleteOptions": {"validationMode": "Skip"}}
    return {"metadata": metadata, "spec": spec}


def mirrored_cluster(member: MemberCluster, live: JsonView | None) -> Json:
    """Builds the ManagedCluster of a MemberCluster; taints of the live mirror with another effect belong to others."""
    kept = [each for each in ((live or {}).get("spec") or {}).get("taints") or () if each.get("effect") != NO_SELECT_IF_NEW]
    taints = [*kept, *as_managed_taints(member.taints)]
    return {"metadata": _metadata(member.name, Door.KUBEFLEET, member.meta.labels), "spec": {"hubAcceptsClient": True, "taints": taints}}


def differs(live: JsonView, desired: JsonView) -> bool:
    """Checks whether a mirror lacks anything of its origin, or has a taint that this has not."""
    spec, metadata = {"taints": [], **live["spec"]}, dict(desired["metadata"])
    held = contains_each(live["metadata"].get("finalizers") or (), metadata.pop("finalizers", ()))
    return not held or not contains(live["metadata"], metadata) or not contains(spec, desired["spec"])


def further_labels(live: Mapping[str, str], desired: JsonView) -> set[str]:
    """Returns labels of a mirror that its origin has not, and that are not of this process itself."""
    found = set(live) - set(desired["metadata"]["labels"]) - {keys.CLUSTER_SET}
    return {each for each in found if not each.startswith(keys.ADDON_FEATURE)}


def _metadata(name: str, origin: Door, labels: JsonView) -> Json:
    return {"name": name, "annotations": {keys.ORIGIN: origin.value}, "labels": dict(labels)}


class Mirror:
    """Controller of mirrors, by the name of the cluster."""

    def __init__(self, hub: Hub, registry: Registry, members: Records) -> None:
        self._hub = hub
        self._registry = registry
        self._members = members
        self._written: dict[str, bytes] = {}
        """The metadata that each mirror has. One that is not known yet is applied if it has further labels, to drop those of its origin."""
        self._contested: set[str] = set()
        self.informers: list[Informer[Unknown]] = []
        self.controller = hub.controller("mirrors", self.reconcile)
        registry.on_change(self.controller.add, status=False)

    async def run(self) -> None:
        """Runs until cancelled."""
        await synced(self._registry.informers)
        await self.controller.run()

    async def reconcile(self, name: str) -> None:
        """Brings the mirror of one cluster up to date. Raises ApiError."""
        managed, member = self._registry.managed_cluster(name), self._registry.member_cluster(name)
        if managed is None and member is None:
            self._written.pop(name, None)
            self._contested.discard(name)
        elif managed is not None and _mirrors(managed, Door.KUBEFLEET):
            await self._follow_member(managed, member)
        elif member is not None and _mirrors(member, Door.OCM):
            await self._follow_cluster(managed, member)
        elif managed is not None and member is not None:
            self._record_contest(managed, member)
        elif managed is not None and managed.accepted and not managed.deleting and holds(managed.conditions, HUB_ACCEPTED):
            await self._write(MEMBERCLUSTERS, mirrored_member(managed), live=None)
        elif member is not None and not member.deleting and not keys.name_problem(name):
            await self._write(MANAGEDCLUSTERS, mirrored_cluster(member, None), live=None)

    async def _follow_cluster(self, managed: ManagedCluster | None, member: MemberCluster) -> None:
        obj = self._members.get(member.name)
        if obj is None or member.deleting:
            return
        if managed is not None and managed.accepted and not managed.deleting:
            await self._write(MEMBERCLUSTERS, mirrored_member(managed), live=obj)
        elif await self._has_ended(MANAGEDCLUSTERS, member.name):
            await self._delete(MEMBERCLUSTERS, obj)

    async def _follow_member(self, managed: ManagedCluster, member: MemberCluster | None) -> None:
        obj = self._registry.managed.get(managed.name)
        if obj is None or managed.deleting:
            return
        if member is not None and not member.deleting:
            await self._write(MANAGEDCLUSTERS, mirrored_cluster(member, obj.body), live=obj)
        elif await self._has_ended(MEMBERCLUSTERS, managed.name):
            await self._delete(MANAGEDCLUSTERS, obj)

    async def _has_ended(self, resource: Resource[Unknown], name: str) -> bool:
        """Reads an origin live: it is missing, is being deleted, or is not accepted. Raises ApiError."""
        try:
            found = await self._hub.client.get(resource, name)
        except NotFound:
            return True
        denied = resource == MANAGEDCLUSTERS and not ManagedCluster.parse(found).accepted
        return found.metadata.deletion_timestamp is not None or denied

    async def _write(self, resource: Resource[Unknown], desired: Json, *, live: Unknown | None) -> None:
        name, digest = desired["metadata"]["name"], encode_json(desired["metadata"])
        known = self._written.get(name)
        same = live is not None and not differs(live.body, desired)
        if live is not None and same and (known == digest or (known is None and not further_labels(live.metadata.labels, desired))):
            self._written[name] = digest
            return
        body = desired
        if live is not None:
            # Only the taints of a ManagedCluster contain those of others, as they were read.
            read = {"resourceVersion": live.metadata.resource_version} if resource == MANAGEDCLUSTERS else {}
            version = {**read, "uid": live.metadata.uid}
            body = {**desired, "metadata": {**desired["metadata"], **version}}
        made = await self._hub.client.apply(resource, body)
        (self._members if resource == MEMBERCLUSTERS else self._registry.managed).informer.adopt(made)
        self._written[name] = digest
        if live is None:
            with bind(cluster=name, kind=resource.kind):
                log.info("cluster is mirrored")

    async def _delete(self, resource: Resource[Unknown], obj: Unknown) -> None:
        try:
            await self._hub.client.delete(resource, obj.key, uid=obj.metadata.uid)
        except NotFound:
            log.debug("the mirror is deleted already")

    def _record_contest(self, managed: ManagedCluster, member: MemberCluster) -> None:
        """Records once that two clients have created the two records of one name; none of them is changed."""
        origin = origin_of(managed, member).door
        obj, resource = self._registry.managed.get(managed.name), MANAGEDCLUSTERS
        if origin is Door.KUBEFLEET:
            obj, resource = self._members.get(member.name), MEMBERCLUSTERS
        if obj is None or managed.name in self._contested:
            return
        self._contested.add(managed.name)
        message = (
            f"ManagedCluster and MemberCluster {managed.name} are of other clients; {origin.value} is older, and counts as the origin. "
            f"Delete one of them, or annotate the other with {keys.ORIGIN}={origin.value}"
        )
        self._hub.event(resource, obj, reason=CONTESTED, message=message, warning=True)


def _mirrors(record: ManagedCluster | MemberCluster, origin: Door) -> bool:
    return record.meta.annotations.get(keys.ORIGIN) == origin.value
