"""The membership of one worker in one hub, from its certificate on: follows the record, renews Lease and certificate, reports the status.

Invariant: before the hub accepts the cluster, and after it denies it, nothing but the own record is read, and nothing is written.
"""

import asyncio
import enum
import logging
from typing import Final

from attrs import define, field

from fleet.agent.identity import Bootstrap, IssuedCertificate
from fleet.agent.join import CertificateExpired
from fleet.agent.lease import HubLease
from fleet.agent.managed_cluster_status import LOOKED_EVERY, Report, StatusWriter, is_accepted, is_denied, may_report, omission
from fleet.agent.worker import Worker, wait_at_most
from fleet.api.clusters import ManagedCluster
from fleet.api.resources import MANAGEDCLUSTERS
from vkubelet.api.objects import Key, Unknown
from vkubelet.client.rest import Client, Selection
from vkubelet.control.backoff import Backoff
from vkubelet.control.informer import Change, Informer
from vkubelet.errors import Conflict, Unauthorized, VKubeletError

log = logging.getLogger(__name__)

_WATCHED_EVERY: Final = 5.0
_OVERDUE_PERIODS: Final = 2
_LEAST_PAUSE: Final = 2.0
"""Seconds between two writes of the status, also where another client reverts them."""


class Next(enum.Enum):
    """What follows after a membership."""

    AGAIN = "again"
    """The same hub, from its bootstrap Secret on."""
    OTHER_HUB = "other hub"


class Over(Exception):
    """Raised inside the task group of a membership when it is over; with `discard` the stored certificate is not used again."""

    def __init__(self, then: Next, *, discard: bool = False) -> None:
        super().__init__(then.value)
        self.then = then
        self.discard = discard


@define(kw_only=True)
class Membership:
    """The membership in the hub of `bootstrap`; `hub` has the issued identity."""

    worker: Worker
    hub: Client
    bootstrap: Bootstrap
    issued: IssuedCertificate
    changed: asyncio.Event = field(factory=asyncio.Event)
    """Set when the status may have to be written at once."""
    record: Informer[Unknown] = field(init=False)
    lease: HubLease = field(init=False)
    _accepted: asyncio.Event = field(init=False, factory=asyncio.Event)
    _accepted_at: float = field(init=False, default=0.0)

    def __attrs_post_init__(self) -> None:
        worker = self.worker
        where = Selection(fields=f"metadata.name={worker.settings.cluster}")
        self.record = Informer(self.hub, MANAGEDCLUSTERS, where=where, clock=worker.clock, metrics=worker.metrics)
        self.record.on_change(self._on_change)
        self.lease = HubLease(self.hub, worker.settings.cluster, holder=worker.holder, may_lead=worker.may_lead, clock=worker.clock)

    async def run(self) -> None:
        """Runs until cancelled. Raises Over, LeadershipLost."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.record.run(), name="record")
            group.create_task(self.lease.run(self._lease_seconds), name="lease")
            group.create_task(self._catch_up(), name="return of the hub")
            group.create_task(self._renew_certificate(), name="certificate")
            group.create_task(self._report(), name="status")
            group.create_task(self._report_health(), name="health")
            group.create_task(self._report_inventory(), name="inventory")
            group.create_task(self._watch_hub(), name="hub")

    async def _catch_up(self) -> None:
        """Reads the record and reports as soon as the hub responds again: watch and report may wait for their back-off."""
        while True:
            await self.lease.returned.wait()
            self.lease.returned.clear()
            try:
                await self._read_record()
            except VKubeletError as error:
                log.debug("the record is not read, the watch follows: %s", error)
            self.changed.set()

    async def _read_record(self) -> None:
        self.record.adopt(await self.hub.get(MANAGEDCLUSTERS, Key("", self.worker.settings.cluster)))

    @property
    def cluster(self) -> ManagedCluster | None:
        """The record, None while it is unknown or absent."""
        obj = self._obj
        return ManagedCluster.parse(obj) if obj is not None else None

    @property
    def _obj(self) -> Unknown | None:
        return self.record.store.get(Key("", self.worker.settings.cluster))

    @property
    def removed(self) -> bool:
        """Whether the hub has deleted the record."""
        return self.record.synced and self._obj is None

    # --- The record -------------------------------------------------------------------------------------------------------------------

    def _on_change(self, change: Change[Unknown]) -> None:
        cluster = self.cluster
        if cluster is None or not is_accepted(cluster):
            self._accepted.clear()
        elif not self._accepted.is_set():
            self._accepted_at = self.worker.clock.monotonic()
            self._accepted.set()
        before = ManagedCluster.parse(change.old) if change.old is not None else None
        if before is None or cluster is None or _occasion(before) != _occasion(cluster):
            self.changed.set()
        self._tell(cluster)

    def _tell(self, cluster: ManagedCluster | None) -> None:
        situation, name = self.worker.situation, self.worker.settings.cluster
        if cluster is None:
            remedy = "to join again, on the hub run `fleet init`, and in the worker the line that it prints"
            situation.waits("RecordDeleted", f"the hub has no ManagedCluster {name} any more; {remedy}")
        elif is_accepted(cluster) and not may_report(cluster):
            situation.waits("ClockOutOfSync", "the hub finds that the clock of the worker differs from its own; set the clocks by NTP")
        elif is_accepted(cluster):
            situation.proceeds("Joined", f"the hub accepts cluster {name}", joined=True)
        elif is_denied(cluster):
            situation.waits("ClusterDenied", f"the hub denies cluster {name}; on the hub run: fleet accept {name}")
        else:
            situation.waits("ClusterNotAccepted", f"the hub has not accepted cluster {name}; on the hub run: fleet accept {name}")

    async def _watch_hub(self) -> None:
        """Stops the membership when the hub denies the cluster or does not respond, where another hub can be used. Raises Over."""
        settings, clock, overdue = self.worker.settings, self.worker.clock, False
        while True:
            await clock.sleep(_WATCHED_EVERY)
            before, overdue = overdue, bool(self.lease.problem) and self._lease_is_overdue()
            if overdue:
                self.worker.situation.waits("HubNotReached", f"cannot renew the Lease of the cluster on the hub: {self.lease.problem}")
            elif before:
                self._tell(self.cluster)
            if self.record.last_error is not None and not self.record.ever_synced:
                problem = f"cannot read ManagedCluster {settings.cluster} on the hub: {self.record.last_error}"
                self.worker.situation.waits("HubNotReached", problem)
            elif self.removed:
                self._tell(None)
            if isinstance(self.record.last_error, Unauthorized) and self.record.stale_for() > settings.lost_hub_after:
                problem = f"the hub has refused the certificate for {settings.lost_hub_after:g} s; the cluster joins again"
                self.worker.situation.waits("CertificateRefused", problem)
                raise Over(Next.AGAIN, discard=True)
            if len(settings.bootstrap_secrets) < 2:
                continue
            cluster = self.cluster
            if cluster is not None and is_denied(cluster):
                raise Over(Next.OTHER_HUB)
            silent = self._lease_age if self._accepted.is_set() else self.record.stale_for()
            if silent > settings.lost_hub_after:
                self.worker.situation.waits("HubLost", f"the Lease could not be renewed for {silent:.0f} s: {self.lease.problem}")
                raise Over(Next.OTHER_HUB)

    @property
    def _lease_age(self) -> float:
        """Seconds since the last renewal, or since the cluster was accepted."""
        return self.worker.clock.monotonic() - max(self.lease.renewed_at, self._accepted_at)

    def _lease_is_overdue(self) -> bool:
        cluster = self.cluster
        if not self._accepted.is_set() or cluster is None:
            return False
        return self._lease_age > _OVERDUE_PERIODS * cluster.lease_seconds

    # --- What is renewed --------------------------------------------------------------------------------------------------------------

    async def _lease_seconds(self) -> int:
        while True:
            await self._accepted.wait()
            cluster = self.cluster
            if cluster is not None:
                return cluster.lease_seconds

    async def _renew_certificate(self) -> None:
        try:
            await self.worker.registration.renew(self.hub, self.issued, self.bootstrap)
        except CertificateExpired as error:
            self.worker.situation.waits("CertificateExpired", f"{error}; the cluster joins again")
            raise Over(Next.AGAIN) from error

    # --- What is reported -------------------------------------------------------------------------------------------------------------

    async def _report_health(self) -> None:
        while True:
            await self.worker.health.changes()
            self.changed.set()

    async def _report_inventory(self) -> None:
        """Reports the resources as soon as they are known; later changes of nodes and pods are noticed once a minute."""
        await self.worker.inventory.wait_synced()
        self.changed.set()

    async def _report(self) -> None:
        writer, backoff = StatusWriter(self.hub, clock=self.worker.clock), Backoff(first=1.0, limit=30.0)
        await self.worker.health.known.wait()
        while True:
            await self._accepted.wait()
            # The Lease of an agent that was away is old: the hub would revert what is written before it is renewed.
            await self.lease.renewed.wait()
            self.changed.clear()
            try:
                wait = await self._write(writer)
                backoff.reset()
            except VKubeletError as error:
                wait = backoff.next()
                if backoff.failures() > 2:
                    self.worker.situation.warns("StatusNotWritten", f"cannot write the status of the cluster on the hub: {error}")
            await self.worker.clock.sleep(_LEAST_PAUSE)
            await wait_at_most(self.worker.clock, self.changed, wait)

    async def _write(self, writer: StatusWriter) -> float:
        """Writes the status if it differs; returns the seconds until it is checked again. Raises ApiError."""
        try:
            return await self._write_known(writer)
        except Conflict:
            # The watch may be behind for longer than a report may be late.
            await self._read_record()
            return await self._write_known(writer)

    async def _write_known(self, writer: StatusWriter) -> float:
        worker = self.worker
        facts = await worker.inventory.read()
        obj = self._obj
        if obj is None or not may_report(ManagedCluster.parse(obj)):
            return LOOKED_EVERY
        if self._lease_is_overdue():
            # To the hub the cluster is unreachable until the Lease is renewed, so that it would revert the status.
            return _LEAST_PAUSE
        omitted = omission(facts)
        if omitted:
            worker.situation.warns("ClaimsOmitted", omitted)
        report = Report(facts=facts, unhealthy=worker.health.problem, not_renewed=worker.registration.rotation_problem)
        await writer.write(obj, report)
        return LOOKED_EVERY


def _occasion(cluster: ManagedCluster) -> tuple[object, ...]:
    """Returns what of a record causes a report at once when it changes."""
    return may_report(cluster), cluster.meta.generation, cluster.is_unknown
