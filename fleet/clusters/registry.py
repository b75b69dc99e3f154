"""Registry: the records of all clusters and their Leases, kept up to date by watches, and the views that are computed from them.

Invariant: one watch of each kind serves all controllers; a record that does not parse affects no other cluster.
"""

from collections.abc import Callable
from datetime import datetime

from fleet.api import keys
from fleet.api.clusters import HUB_ACCEPTED, ManagedCluster, MemberCluster, condition_of
from fleet.api.resources import CLUSTER_LEASES, MANAGEDCLUSTERS, MEMBERCLUSTERS
from fleet.clusters.hub import Hub
from fleet.clusters.records import Records
from fleet.clusters.watching import Watching
from fleet.core.view import View, view_of
from vkubelet.api.fields import Fields
from vkubelet.api.objects import Key, Unknown
from vkubelet.client.rest import Selection
from vkubelet.control.informer import Change, Informer


class Registry:
    """All clusters of the hub; `members` is None where the API of KubeFleet is off."""

    def __init__(self, hub: Hub, *, with_members: bool) -> None:
        self.managed = Records(hub, MANAGEDCLUSTERS)
        self.members = Records(hub, MEMBERCLUSTERS) if with_members else None
        self.leases = hub.informer(CLUSTER_LEASES, Selection(labels=keys.CLUSTER_NAME))
        self.watching = Watching(hub.client, self.leases, clock=hub.clock)
        self._listeners: list[tuple[Callable[[str], None], bool]] = []
        self._heartbeat_listeners: list[Callable[[str], None]] = []
        self._managed: dict[str, ManagedCluster] = {}
        self._members: dict[str, MemberCluster] = {}
        self.managed.informer.on_change(self._managed_changed)
        if self.members is not None:
            self.members.informer.on_change(self._member_changed)

    @property
    def informers(self) -> list[Informer[Unknown]]:
        """The watches, which another component runs."""
        members = [] if self.members is None else [self.members.informer]
        return [*self.cluster_informers, *members]

    @property
    def cluster_informers(self) -> list[Informer[Unknown]]:
        """The watches of ManagedClusters and of Leases, which exist without the API of KubeFleet."""
        return [self.managed.informer, self.leases]

    @property
    def knows_members(self) -> bool:
        """Whether a cluster without a MemberCluster here has none on the hub."""
        return self.members is None or self.members.informer.synced

    def on_change(self, listener: Callable[[str], None], *, status: bool = True) -> None:
        """Registers `listener(name of the cluster)` for each change of a record, and calls it for each cluster that is known.

        It is not called for a heartbeat alone, and without `status` not when nothing but the status of a record changes, except that of a
        ManagedCluster that is accepted, denied or removed, or whose health becomes unknown.
        """
        self._listeners.append((listener, status))
        for name in self.names():
            listener(name)

    def on_heartbeat(self, listener: Callable[[str], None]) -> None:
        """Registers `listener(name of the cluster)` for each status of a MemberCluster that differs from the one before by times alone."""
        self._heartbeat_listeners.append(listener)

    def names(self) -> list[str]:
        """Returns the names of all clusters, in order."""
        return sorted(self._managed.keys() | self._members.keys())

    def managed_cluster(self, name: str) -> ManagedCluster | None:
        return self._managed.get(name)

    def member_cluster(self, name: str) -> MemberCluster | None:
        return self._members.get(name)

    def accepts(self, name: str) -> bool:
        """Checks that a cluster is accepted, and not being deleted."""
        found = self._managed.get(name)
        return found is not None and found.accepted and not found.deleting

    def view(self, name: str) -> View | None:
        """Returns the view of one cluster."""
        managed, member = self._managed.get(name), self._members.get(name)
        if managed is None and member is None:
            return None
        return view_of(managed, member, renewed=renew_time(self.leases.store.get(Key(name, keys.LEASE))))

    def views(self) -> list[View]:
        """Returns the views of all clusters, by name."""
        return [found for found in map(self.view, self.names()) if found is not None]

    def _managed_changed(self, change: Change[Unknown]) -> None:
        name, old = change.key.name, self._managed.get(change.key.name)
        if change.new is None:
            self._managed.pop(name, None)
            self._notify(name)
            return
        self._managed[name] = new = ManagedCluster.parse(change.new)
        same = old is not None and _decisive(old) == _decisive(new)
        alone = same and not new.deleting and not change.more_than_status and _is_status_alone(change)
        self._notify(name, status_alone=alone)

    def _member_changed(self, change: Change[Unknown]) -> None:
        name, old = change.key.name, self._members.get(change.key.name)
        if change.new is None:
            self._members.pop(name, None)
            self._notify(name)
            return
        self._members[name] = new = MemberCluster.parse(change.new)
        status_alone = not change.more_than_status and _is_status_alone(change)
        if status_alone and old is not None and new.state.without_times == old.state.without_times:
            for listener in self._heartbeat_listeners:
                listener(name)
        else:
            self._notify(name, status_alone=status_alone)

    def _notify(self, name: str, *, status_alone: bool = False) -> None:
        for listener, status in self._listeners:
            if status or not status_alone:
                listener(name)


def _decisive(cluster: ManagedCluster) -> tuple[object, ...]:
    """Returns what of a status decides about rights and mirrors."""
    return condition_of(cluster.conditions, HUB_ACCEPTED), cluster.is_unknown


def _is_status_alone(change: Change[Unknown]) -> bool:
    old, new = (each.metadata if each is not None else None for each in (change.old, change.new))
    if old is None or new is None:
        return False
    return (old.labels, old.annotations, old.finalizers) == (new.labels, new.annotations, new.finalizers)


def renew_time(lease: Unknown | None) -> datetime | None:
    """Returns when a Lease was renewed, by the clock of the client that did; None when it never was."""
    return None if lease is None else Fields(lease.body.get("spec"), "spec", []).time("renewTime")
