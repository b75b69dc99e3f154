"""Health of clusters as the hub sees it: reports Leases that are not renewed and clocks that differ, and taints clusters by their health.

Invariant: a cluster becomes Unknown only after a live read of its Lease, and only by renewals that a watch without a break has missed. The
health of a mirror whose Lease no agent has renewed is that of the member.
"""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from fleet.api import keys
from fleet.api.clusters import AVAILABLE, CLOCK_SYNCED, HUB_ACCEPTED, ManagedCluster, condition_of
from fleet.api.resources import CLUSTER_LEASES, MANAGEDCLUSTERADDONS, MANAGEDCLUSTERS
from fleet.clusters.hub import Hub, synced
from fleet.clusters.records import Records, condition, has_condition
from fleet.clusters.registry import Registry, renew_time
from fleet.core.taints import with_health_taint
from fleet.core.view import Door
from fleet.ocm.acceptance import ACCEPTED
from fleet.ocm.heartbeats import GRACE, Pulse, Verdict, checks_clock, clocks_differ, grace_multiple, member_status
from vkubelet.api.objects import Json, Key, Unknown, diff_merge, get_condition
from vkubelet.control.informer import Change
from vkubelet.control.store import Store
from vkubelet.control.workqueue import Priority
from vkubelet.errors import NotFound
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

LEASE_STOPPED: Final = "ManagedClusterLeaseUpdateStopped"
CLOCK_DIFFERS: Final = "ManagedClusterClockOutOfSync"
CLOCK_EQUAL: Final = "ManagedClusterClockSynced"
FIRST_REPORT: Final = 15.0
"""Seconds from its acceptance within which an agent reports for the first time."""
_ADDON_AVAILABLE = "Available"
_BY_CLUSTER = "cluster"


def addon_labels(addons: Sequence[Unknown]) -> dict[str, str]:
    """Returns the labels by which a ManagedCluster shows the state of its addons."""
    states = {"True": "available", "False": "unhealthy"}
    found = {}
    for addon in addons:
        available = get_condition((addon.body.get("status") or {}).get("conditions") or (), _ADDON_AVAILABLE) or {}
        found[f"{keys.ADDON_FEATURE}{addon.metadata.name}"] = states.get(available.get("status", ""), "unreachable")
    return found


class Health:
    """Controller of health. `watch` runs in every replica, so that a new leader knows the renewals."""

    def __init__(self, hub: Hub, registry: Registry) -> None:
        self._hub = hub
        self._registry = registry
        self._watching = registry.watching
        self._pulses: dict[str, Pulse] = {}
        self._heartbeats: dict[str, Pulse] = {}
        """Those of members, by the name of the cluster."""
        self._differs: dict[str, bool] = {}
        """Whether the clock of a cluster differed at its last renewal."""
        store: Store[Unknown] = Store(indexes={_BY_CLUSTER: lambda obj: (obj.metadata.namespace,)})
        self._addons = Records(hub, MANAGEDCLUSTERADDONS, store=store)
        self.informers = [self._addons.informer]
        """The watches that are this controller's own."""
        self.controller = hub.controller("health", self.reconcile)
        registry.leases.on_change(self._renewed)
        registry.on_change(self._record_changed)
        registry.on_heartbeat(self._heartbeat)
        self._addons.informer.on_change(lambda change: self.controller.add(change.key.namespace))

    async def watch(self) -> None:
        """Follows breaks of the watch until cancelled."""
        while True:
            await self._watching.next_break()
            now = self._watching.now()
            self._pulses = {name: pulse.resumed(now=now) for name, pulse in self._pulses.items()}
            self._heartbeats = {name: pulse.resumed(now=now) for name, pulse in self._heartbeats.items()}
            self.controller.add_many(list(self._pulses))
            log.info("leases of clusters were not watched for a while; none is judged before two periods")

    async def run(self) -> None:
        """Runs until cancelled."""
        await synced([*self.informers, *self._registry.cluster_informers])
        await self.controller.run()

    async def reconcile(self, name: str) -> float | None:
        """Reports the health of one cluster; returns the seconds until it can change without an event. Raises ApiError."""
        obj, cluster = self._registry.managed.get(name), self._registry.managed_cluster(name)
        if obj is None or cluster is None or cluster.deleting or condition_of(cluster.conditions, HUB_ACCEPTED) is None:
            return None
        if self._has_member_health(cluster):
            return await self._mark_mirror(obj, cluster)
        if not has_condition(obj, AVAILABLE, status="Unknown", reason=LEASE_STOPPED) and await self._has_stopped(cluster):
            obj = await self._registry.managed.report(obj, [await self._lose(obj, cluster)])
        found = get_condition((obj.body.get("status") or {}).get("conditions") or (), AVAILABLE) or {}
        obj = await self._mark(obj, found.get("status", ""))
        first = self._first_report(cluster)
        clock = self._clock_condition(cluster, obj) if first <= 0 else []
        await self._registry.managed.report(obj, [*clock, *_acceptance(obj, cluster)])
        due = self._due(cluster)
        return due if first <= 0 else first if due is None else min(first, due)

    # --- Renewals ------------------------------------------------------------------------------------------------------------------

    def _renewed(self, change: Change[Unknown]) -> None:
        lease, name = change.new, change.key.namespace
        if change.key.name != keys.LEASE:
            return
        if lease is None:
            self._pulses.pop(name, None)
            self._differs.pop(name, None)
            return
        written, now, known = renew_time(lease), self._watching.now(), self._pulses.get(name)
        self._pulses[name] = Pulse.begin(written, now=now) if known is None else known.after(written, now=now)
        if known is None:
            # Without a Lease there was no timer.
            self._revive(name)
        elif written is not None and written != known.written:
            self._compare_clock(name, written, before=known)
            self._revive(name)

    def _compare_clock(self, name: str, written: datetime, *, before: Pulse) -> None:
        """Compares the time of a renewal, except the first one after renewals stopped: the network may have delayed it."""
        cluster = self._registry.managed_cluster(name)
        if cluster is None or not self._watching.settled:
            return
        if before.last is not None and before.verdict(now=self._watching.now(), seconds=cluster.lease_seconds) is not Verdict.ALIVE:
            return
        differs = clocks_differ(written, now=self._hub.client.server_now(), seconds=cluster.lease_seconds)
        if differs != self._differs.get(name):
            self._differs[name] = differs
            self.controller.add(name)

    def _revive(self, name: str) -> None:
        """Judges a cluster again that has no timer, because it has sent nothing for too long; its agent reports that it is available."""
        if name not in self.controller.queue:
            self.controller.add(name, priority=Priority.LOW)

    # --- Members -------------------------------------------------------------------------------------------------------------------

    def _record_changed(self, name: str) -> None:
        self._note_heartbeat(name)
        self.controller.add(name)

    def _heartbeat(self, name: str) -> None:
        self._note_heartbeat(name)
        self._revive(name)

    def _note_heartbeat(self, name: str) -> None:
        member = self._registry.member_cluster(name)
        if member is None:
            self._heartbeats.pop(name, None)
        else:
            agent, now, known = member.state.agent(), self._watching.now(), self._heartbeats.get(name)
            written = agent.heartbeat if agent is not None else None
            self._heartbeats[name] = Pulse.begin(written, now=now) if known is None else known.after(written, now=now)

    def _has_member_health(self, cluster: ManagedCluster) -> bool:
        """Checks that a cluster mirrors a member whose agent sends heartbeats alone: agents of KubeFleet know no Lease."""
        mirrors = cluster.meta.annotations.get(keys.ORIGIN) == Door.KUBEFLEET.value
        pulse = self._pulses.get(cluster.name)
        return mirrors and (pulse is None or pulse.last is None)

    async def _mark_mirror(self, obj: Unknown, cluster: ManagedCluster) -> float | None:
        """Writes the taint of the member's health, once the member is known. Raises ApiError."""
        member, pulse, multiple = self._registry.member_cluster(cluster.name), self._heartbeats.get(cluster.name), grace_multiple(cluster)
        if member is None or pulse is None:
            return None
        verdict = Verdict.UNDECIDED
        if self._watching.continuous:
            verdict = pulse.verdict(now=self._watching.now(), seconds=member.period, multiple=multiple)
        obj = await self._mark(obj, member_status(member, verdict))
        await self._registry.managed.report(obj, _acceptance(obj, cluster))
        return self._left(pulse, seconds=member.period, multiple=multiple)

    # --- Judgement -----------------------------------------------------------------------------------------------------------------

    def _verdict(self, cluster: ManagedCluster) -> Verdict:
        pulse = self._pulses.get(cluster.name)
        if pulse is None or not self._watching.continuous:
            return Verdict.UNDECIDED
        return pulse.verdict(now=self._watching.now(), seconds=cluster.lease_seconds, multiple=grace_multiple(cluster))

    async def _has_stopped(self, cluster: ManagedCluster) -> bool:
        """Judges by the watch, and before the first report also by a live read. Raises ApiError."""
        if self._verdict(cluster) is not Verdict.STOPPED:
            return False
        try:
            lease = await self._hub.client.get(CLUSTER_LEASES, Key(cluster.name, keys.LEASE))
        except NotFound:
            # It is restored, and not renewed before.
            return False
        self._registry.leases.adopt(lease)
        return self._verdict(cluster) is Verdict.STOPPED

    def _due(self, cluster: ManagedCluster) -> float | None:
        pulse = self._pulses.get(cluster.name)
        if pulse is None:
            return None
        return self._left(pulse, seconds=cluster.lease_seconds, multiple=grace_multiple(cluster))

    def _left(self, pulse: Pulse, *, seconds: int, multiple: int) -> float | None:
        """Returns the seconds until a verdict can change without an event."""
        now = self._watching.now()
        left = (pulse.due(now=now, seconds=seconds, multiple=multiple) - now).total_seconds()
        # A final verdict changes by events alone; one that a break has delayed is checked again.
        return left if left > 0 else None if self._watching.continuous else float(seconds)

    async def _lose(self, obj: Unknown, cluster: ManagedCluster) -> Json:
        """Reports the addons of a cluster whose Lease is not renewed, then returns the condition of the cluster. Raises ApiError."""
        pulse = self._pulses[cluster.name]
        last = f"last at {pulse.last:%Y-%m-%dT%H:%M:%SZ}" if pulse.last is not None else "never"
        grace = grace_multiple(cluster) * cluster.lease_seconds
        message = f"Lease {cluster.name}/{keys.LEASE} was not renewed for {grace} s, {last}; check the agent and its connection to the hub"
        for addon in self._addons.informer.store.by_index(_BY_CLUSTER, cluster.name):
            await self._addons.report(addon, [condition(_ADDON_AVAILABLE, "Unknown", LEASE_STOPPED, message=message)])
        self._hub.event(MANAGEDCLUSTERS, obj, reason=LEASE_STOPPED, message=message, warning=True)
        with bind(cluster=cluster.name):
            log.info("cluster is unreachable")
        return condition(AVAILABLE, "Unknown", LEASE_STOPPED, message=message)

    def _first_report(self, cluster: ManagedCluster) -> float:
        """Returns the seconds that the agent of a cluster has for its first report, with which the equality of its clock is written."""
        accepted, known = (condition_of(cluster.conditions, each) for each in (HUB_ACCEPTED, AVAILABLE))
        if known is not None or accepted is None or accepted.since is None or self._differs.get(cluster.name):
            return 0.0
        # By the clock that has written it; a time in the future is of a process with another clock.
        waited = (self._hub.clock.now() - accepted.since).total_seconds()
        return FIRST_REPORT - waited if waited >= 0 else 0.0

    def _clock_condition(self, cluster: ManagedCluster, obj: Unknown) -> list[Json]:
        """Returns the condition of the clock when it changes."""
        differs = self._differs.get(cluster.name) if checks_clock(cluster) else False
        status, reason = ("False", CLOCK_DIFFERS) if differs else ("True", CLOCK_EQUAL)
        if differs is None or has_condition(obj, CLOCK_SYNCED, status=status, reason=reason):
            return []
        limit = GRACE * cluster.lease_seconds
        message = "the clocks of cluster and hub agree"
        if differs:
            message = f"the clock of the cluster differs from that of the hub by {limit} s or more; synchronize both with a time server"
        if not checks_clock(cluster):
            message = f"not compared, because of annotation {keys.SKIP_CLOCK_CHECK}"
        return [condition(CLOCK_SYNCED, status, reason, message=message)]

    async def _mark(self, obj: Unknown, health: str) -> Unknown:
        """Writes the taint of the cluster's health, and the labels of its addons, if they differ; returns the record. Raises ApiError."""
        addons = self._addons.informer.store.by_index(_BY_CLUSTER, obj.metadata.name)
        taints = (obj.body.get("spec") or {}).get("taints") or []
        wanted = with_health_taint(taints, health, now=self._hub.client.server_now())
        shown = {name: value for name, value in obj.metadata.labels.items() if name.startswith(keys.ADDON_FEATURE)}
        labels = diff_merge(shown, addon_labels(addons))
        change: Json = {"spec": {"taints": wanted}} if wanted != taints else {}
        if labels:
            change["metadata"] = {"labels": labels}
        return await self._registry.managed.patch(obj, change) if change else obj


def _acceptance(obj: Unknown, cluster: ManagedCluster) -> list[Json]:
    """Returns the condition of an acceptance for the generation of the record: taints, which only this controller and people change, do
    not concern it."""
    found = get_condition((obj.body.get("status") or {}).get("conditions") or (), HUB_ACCEPTED) or {}
    if not cluster.accepted or (found.get("status"), found.get("reason")) != ("True", ACCEPTED):
        return []
    return [condition(HUB_ACCEPTED, "True", ACCEPTED, message=found.get("message", ""))]
