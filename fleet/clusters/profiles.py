"""Publishes ClusterProfiles: one of each joined member, and one of each cluster in every namespace with a binding to its set.

Invariant: a profile of another manager is never changed; the profile of a member is deleted before its MemberCluster is.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from attrs import evolve

from fleet.api import keys
from fleet.api.clusters import MemberCluster
from fleet.api.resources import CLUSTERPROFILES, MANAGEDCLUSTERS, MEMBERCLUSTERS
from fleet.clusters.hub import Hub, synced
from fleet.clusters.kept import KeptObjects
from fleet.clusters.records import Records, condition
from fleet.clusters.registry import Registry
from fleet.core.profiles import (
    KUBEFLEET,
    LOST,
    MANAGERS,
    OCM,
    Profile,
    is_published,
    managed_profile,
    member_health,
    member_profile,
    oldest_heartbeat,
)
from vkubelet.api.objects import Json, Unknown, get_condition
from vkubelet.control.informer import Informer
from vkubelet.control.store import Store
from vkubelet.errors import NotFound

log = logging.getLogger(__name__)

PUBLISHED: Final = "ClusterProfilePublished"
FOREIGN: Final = "ForeignProfile"
IN_PLACE: Final = "Published"
_BY_NAME = "name"
_CHECKED_EVERY = 1.0

Bound = Callable[[str], Mapping[str, str]]
"""Returns the namespaces that have a binding to a set of a cluster, each with that set."""


class Profiles:
    """Controller of profiles, by the name of the cluster; `namespace` is that of the profiles of members.

    bindings: the watches from which `bound` has its answer.
    """

    def __init__(
        self, hub: Hub, registry: Registry, bound: Bound, *, bindings: Sequence[Informer[Unknown]], namespace: str, threshold: float
    ) -> None:
        self._hub = hub
        self._registry = registry
        self._bound = bound
        self._bindings = bindings
        self._namespace = namespace
        self._threshold = threshold
        self._beats: dict[str, tuple[datetime | None, datetime | None]] = {}
        """The last heartbeat of each member as written, and on the hub's clock."""
        self._lost: set[str] = set()
        """Members whose last heartbeat was too old."""
        store: Store[Unknown] = Store(indexes={_BY_NAME: lambda obj: (obj.metadata.name,)})
        self._profiles = Records(hub, CLUSTERPROFILES, store=store)
        self.informers = [self._profiles.informer]
        """The watches that are this controller's own."""
        self._kept = KeptObjects(hub.client, self.informers)
        self.controller = hub.controller("profiles", self.reconcile)
        registry.on_change(self._record_changed)
        registry.on_heartbeat(self._heartbeat)
        self._kept.on_change(lambda obj: self.controller.add(obj.metadata.name))

    async def run(self) -> None:
        """Runs until cancelled."""
        await synced([*self.informers, *self._registry.cluster_informers])
        async with asyncio.TaskGroup() as group:
            group.create_task(self.controller.run(), name="profiles")
            group.create_task(self._check_heartbeats(), name="heartbeats")
            await synced([*self._registry.informers, *self._bindings])
            self.check_all()

    def check_all(self) -> None:
        """Checks all clusters again, and those that have only a profile: bindings or sets have changed, or members are known now."""
        published = {obj.metadata.name for obj in self._profiles.informer.store}
        self.controller.add_many(sorted(published.union(self._registry.names())))

    async def reconcile(self, name: str) -> None:
        """Publishes one cluster. Raises ApiError."""
        desired = {each.namespace: each for each in self._desired(name)}
        member = self._registry.member_cluster(name)
        if member is not None and not member.deleting and is_published(member):
            await self._hold(name)
        foreign = [namespace for namespace, profile in desired.items() if not await self._publish(profile)]
        if not desired and member is None and self._registry.managed_cluster(name) is None and not await self._is_gone(name):
            return
        for obj in self._profiles.informer.store.by_index(_BY_NAME, name):
            if obj.metadata.namespace not in desired and self._may_delete(obj):
                await self._kept.delete(CLUSTERPROFILES, obj)
        await self._report(name, foreign)
        if member is not None and member.deleting:
            await self._release(name)

    # --- Profiles ------------------------------------------------------------------------------------------------------------------

    def _desired(self, name: str) -> list[Profile]:
        """Returns the profiles of a cluster; of two in one namespace the last one counts."""
        managed, member = self._registry.managed_cluster(name), self._registry.member_cluster(name)
        found = []
        if managed is not None and not managed.deleting:
            found += [managed_profile(managed, namespace, cluster_set=each) for namespace, each in self._bound(name).items()]
        if member is not None and is_published(member):
            threshold, (_, heartbeat) = oldest_heartbeat(self._threshold, member.period), self._beats.get(name, (None, None))
            health = member_health(member, heartbeat=heartbeat, now=self._registry.watching.now(), threshold=threshold)
            profile = member_profile(member, self._namespace, health=health)
            if health["reason"] != LOST:
                self._lost.discard(name)
            elif self._registry.watching.lasts() < threshold:
                # This process may have been away itself: the profile keeps what it reported last.
                profile = evolve(profile, conditions=())
                self._lost.discard(name)
            else:
                self._lost.add(name)
            found.append(profile)
        return found

    async def _publish(self, profile: Profile) -> bool:
        """Writes a profile; returns False when the name is taken by another manager. Raises ApiError."""
        obj = self._profiles.get(profile.name, profile.namespace)
        if obj is not None and _manager(obj) != profile.manager:
            if _manager(obj) not in MANAGERS:
                return False
            # The manager of a profile cannot be changed.
            await self._kept.delete(CLUSTERPROFILES, obj)
            return True
        await self._kept.keep([profile.body])
        obj = self._profiles.get(profile.name, profile.namespace)
        if obj is not None:
            await self._profiles.report(obj, profile.conditions, profile.status(obj.body.get("status") or {}))
        return True

    def _may_delete(self, obj: Unknown) -> bool:
        """Checks that a profile is of this hub, and that it is known whether its namespace is bound, or its cluster a member."""
        if _manager(obj) == OCM:
            return all(each.ever_synced for each in self._bindings)
        return _manager(obj) == KUBEFLEET and self._registry.knows_members

    # --- Records -------------------------------------------------------------------------------------------------------------------

    async def _hold(self, name: str) -> None:
        members = self._registry.members
        obj = members.get(name) if members is not None else None
        if members is not None and obj is not None:
            await members.hold(obj, [keys.PROFILE_FINALIZER])

    async def _release(self, name: str) -> None:
        members = self._registry.members
        obj = members.get(name) if members is not None else None
        if members is not None and obj is not None:
            await members.release(obj, [keys.PROFILE_FINALIZER])

    async def _report(self, name: str, foreign: Sequence[str]) -> None:
        """Reports on the records of a cluster that a profile belongs to another manager, and when none does any more."""
        for records in (self._registry.managed, self._registry.members):
            obj = records.get(name) if records is not None else None
            if records is None or obj is None:
                continue
            known = get_condition((obj.body.get("status") or {}).get("conditions") or (), PUBLISHED)
            if foreign or known is not None:
                await records.report(obj, [_published(name, foreign)])

    async def _is_gone(self, name: str) -> bool:
        """Reads both records live. Raises ApiError."""
        kinds = (MANAGEDCLUSTERS,) if self._registry.members is None else (MANAGEDCLUSTERS, MEMBERCLUSTERS)
        for resource in kinds:
            try:
                await self._hub.client.get(resource, name)
            except NotFound:
                continue
            return False
        return True

    # --- Heartbeats ----------------------------------------------------------------------------------------------------------------

    def _record_changed(self, name: str) -> None:
        member = self._registry.member_cluster(name)
        if member is None:
            self._beats.pop(name, None)
            self._lost.discard(name)
        else:
            self._observe(name, member)
        self.controller.add(name)

    def _heartbeat(self, name: str) -> None:
        member = self._registry.member_cluster(name)
        if member is not None:
            self._observe(name, member)
        if name in self._lost:
            self._lost.discard(name)
            self.controller.add(name)

    def _observe(self, name: str, member: MemberCluster) -> None:
        """Notes a heartbeat: one that changes while it is watched counts from that moment, any other from its own time."""
        agent = member.state.agent()
        written = agent.heartbeat if agent is not None else None
        known = self._beats.get(name)
        if known is None:
            self._beats[name] = (written, written)
        elif written != known[0]:
            self._beats[name] = (written, self._registry.watching.now())

    async def _check_heartbeats(self) -> None:
        """Reconciles each member once whose last heartbeat has become too old while it was watched, until cancelled. A timer for each
        member would expire as often as heartbeats arrive."""
        while True:
            await self._hub.clock.sleep(_CHECKED_EVERY)
            now, watched = self._registry.watching.now(), self._registry.watching.lasts()
            for name, (_, heartbeat) in self._beats.items():
                # Nearly all are younger than any member's limit.
                if heartbeat is None or name in self._lost or (now - heartbeat).total_seconds() <= self._threshold:
                    continue
                member = self._registry.member_cluster(name)
                limit = oldest_heartbeat(self._threshold, member.period) if member is not None else math.inf
                if (now - heartbeat).total_seconds() > limit <= watched:
                    self._lost.add(name)
                    self.controller.add(name)


def _manager(obj: Unknown) -> str:
    return str(((obj.body.get("spec") or {}).get("clusterManager") or {}).get("name", ""))


def _published(name: str, foreign: Sequence[str]) -> Json:
    if not foreign:
        return condition(PUBLISHED, "True", IN_PLACE, message="the ClusterProfiles of the cluster exist")
    where = ", ".join(f"{namespace}/{name}" for namespace in foreign)
    return condition(PUBLISHED, "False", FOREIGN, message=f"ClusterProfile {where} is of another manager; delete it to publish the cluster")
