"""Renews the Leases of all nodes from one heap of due times.

Invariant: a Lease is renewed as long as its node is kept here, whatever else happens to the node; after a stop it expires.
"""

import asyncio
import heapq
import logging
import math
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from attrs import define, field, frozen

from vkubelet.api.objects import LEASES, Json, Key, Lease
from vkubelet.client.rest import Client
from vkubelet.clock import Clock, parse_rfc3339, rfc3339_micro
from vkubelet.control.controller import Isolation
from vkubelet.errors import AlreadyExists, Conflict, LeadershipLost, NotFound, SettingsError, VKubeletError
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics

log = logging.getLogger(__name__)

NAMESPACE = "kube-node-lease"
DURATION = 40
"""Seconds, the kubelet's `nodeLeaseDurationSeconds`."""

RENEWED_BY = "vkubelet/renewed-by"
"""Annotation: the process that renewed last, so that a second process for the same nodes is detected."""

IN_FLIGHT = 32
_ATTEMPT = 10.0
"""Seconds for one renewal: a read alone may hang for 30, and would block its slot for all others."""
_RETRY_FIRST, _RETRY_LIMIT = 0.2, 7.0
_SPREAD, _JITTER = (0.1, 1.0), (0.96, 1.0)
"""Shares of the interval until the second renewal and between later ones: Leases that start together are spread over the interval."""
_TICK, _WOKEN_EVERY = 0.05, 1.0
"""Shortest and longest sleep in seconds until the next renewal that is due."""


@frozen(kw_only=True)
class LeaseSettings:
    """How node Leases are renewed."""

    renew_every: float = field(default=10.0)
    """Seconds between renewals of one Lease."""

    def __attrs_post_init__(self) -> None:
        if not 0 < self.renew_every < DURATION:
            raise SettingsError(
                "lease.renew_every",
                f"is {self.renew_every:g}; set a number of seconds above 0 and below {DURATION}, the duration of a Lease",
            )


@define
class _Kept:
    node_uid: str
    due: float
    lease: Lease | None = None
    failures: int = 0


class LeaseKeeper:
    """Renewal of any number of Leases; `identity` names this process in them."""

    def __init__(self, client: Callable[[str], Client], *, identity: str, clock: Clock, settings: LeaseSettings, metrics: Metrics) -> None:
        self._client = client
        self._identity = identity
        self._clock = clock
        self._settings = settings
        self._metrics = metrics
        self._kept: dict[str, _Kept] = {}
        self._renewals: dict[str, asyncio.Task[None]] = {}
        """Those in progress, at most one for each node."""
        self._heap: list[tuple[float, str]] = []
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._isolated = Isolation("node leases")

    def keep(self, node: str, uid: str) -> None:
        """Renews this node's Lease from now on, the first time immediately; `uid` is that of the Node, which owns the Lease."""
        known = self._kept.get(node)
        if known is not None and known.node_uid == uid:
            return
        self._kept[node] = _Kept(uid, self._clock.monotonic())
        self._push(node)

    def drop(self, node: str) -> None:
        """Stops the renewal; the Lease itself is not deleted."""
        self._kept.pop(node, None)

    async def release(self, node: str) -> None:
        """Stops the renewal and deletes the Lease, because the Node is deleted.

        A renewal in progress completes before, as it would create the Lease again.

        Raises ApiError when the API server refuses.
        """
        self.drop(node)
        if renewal := self._renewals.get(node):
            await asyncio.wait([renewal])
        try:
            await self._client(node).delete(LEASES, Key(NAMESPACE, node))
        except NotFound:
            return

    async def run(self) -> None:
        """Renews until cancelled. Raises LeadershipLost when another process has acquired a Lease."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._wake_in_time(), name="lease-timer")
            while True:
                await self._slots.acquire()
                while (due := self._next_due()) is None:
                    self._changed.clear()
                    await self._changed.wait()
                node, kept = due
                self._renewals[node] = group.create_task(self._renew_isolated(node, kept), name=f"lease {node}")
                self._renewals[node].add_done_callback(partial(self._renewed, node))

    async def _wake_in_time(self) -> None:
        """Sets the event when the head of the heap is due; one that is added meanwhile is late by far less than the slack of any Lease."""
        while True:
            due = self._heap[0][0] if self._heap else math.inf
            await self._clock.sleep(min(_WOKEN_EVERY, max(_TICK, due - self._clock.monotonic())))
            self._changed.set()

    def _push(self, node: str) -> None:
        heapq.heappush(self._heap, (self._kept[node].due, node))
        self._changed.set()

    def _next_due(self) -> tuple[str, _Kept] | None:
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            due, node = heapq.heappop(self._heap)
            kept = self._kept.get(node)
            if kept is not None and kept.due == due and node not in self._renewals:
                return node, kept
        return None

    def _renewed(self, node: str, _: asyncio.Task[None]) -> None:
        """Plans the next renewal, also when something that was awaited was cancelled elsewhere: no Lease may drop out of the rotation."""
        del self._renewals[node]
        self._slots.release()
        if node in self._kept:
            self._push(node)

    async def _renew_isolated(self, node: str, kept: _Kept) -> None:
        with self._isolated(node):
            await self._renew_in_time(node, kept)

    async def _renew_in_time(self, node: str, kept: _Kept) -> None:
        """Renews, and sets when the next renewal is due."""
        lateness, wait, spread = self._clock.monotonic() - kept.due, _RETRY_LIMIT, _JITTER if kept.lease else _SPREAD
        try:
            async with asyncio.timeout(_ATTEMPT):
                kept.lease = await self._renew(node, kept)
        except LeadershipLost:
            raise
        except (VKubeletError, TimeoutError) as error:
            kept.failures += 1
            wait = min(_RETRY_LIMIT, _RETRY_FIRST * 2 ** min(kept.failures, 10)) * random.uniform(0.8, 1.2)
            with bind(node=node):
                level = logging.WARNING if kept.failures == 5 else logging.DEBUG
                log.log(level, "node lease not renewed: %s", str(error) or "no answer in time")
        else:
            self._metrics.lease_lateness_seconds.observe(max(0.0, lateness))
            kept.failures = 0
            wait = self._settings.renew_every * random.uniform(*spread)
        finally:
            kept.due = self._clock.monotonic() + wait

    async def _renew(self, node: str, kept: _Kept) -> Lease:
        client = self._client(node)
        if kept.lease is None:
            return await self._take(client, node, kept)
        try:
            return await client.replace(LEASES, self._body(node, kept, kept.lease))
        except NotFound:
            if self._kept.get(node) is not kept:
                raise
            return await client.create(LEASES, self._body(node, kept, None), namespace=NAMESPACE)
        except Conflict:
            return await self._settle(client, node, kept, kept.lease)

    async def _take(self, client: Client, node: str, kept: _Kept) -> Lease:
        """Acquires the Lease for the first time in this process, replacing that of an earlier process unconditionally."""
        try:
            found = await client.get(LEASES, Key(NAMESPACE, node))
        except NotFound:
            if self._kept.get(node) is not kept:
                raise
            try:
                return await client.create(LEASES, self._body(node, kept, None), namespace=NAMESPACE)
            except AlreadyExists:
                found = await client.get(LEASES, Key(NAMESPACE, node))
        return await client.replace(LEASES, self._body(node, kept, found))

    async def _settle(self, client: Client, node: str, kept: _Kept, ours: Lease) -> Lease:
        """Resolves a conflict: either our own write whose response did not arrive, or another process, which wins if its renewal is
        newer."""
        found = await client.get(LEASES, Key(NAMESPACE, node))
        if other := successor(found, identity=self._identity, renewed_at=_renewed_at(ours)):
            raise LeadershipLost(
                f"the Lease of node {node} is renewed by {other} as well; only one process may serve a node, so stop one of the two"
            )
        return await client.replace(LEASES, self._body(node, kept, found))

    def _body(self, node: str, kept: _Kept, found: Lease | None) -> Json:
        return lease_body(node, kept.node_uid, identity=self._identity, now=self._clock.now(), found=found)


def lease_body(node: str, uid: str, *, identity: str, now: datetime, found: Lease | None) -> Json:
    """Returns the Lease to create, or to replace `found` with; labels and annotations of other clients are kept."""
    metadata: Json = {"name": node, "namespace": NAMESPACE, "annotations": {RENEWED_BY: identity}}
    if found is not None:
        metadata["resourceVersion"] = found.metadata.resource_version
        metadata["labels"] = found.metadata.labels
        metadata["annotations"] = {**found.metadata.annotations, RENEWED_BY: identity}
    metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}]
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {"holderIdentity": node, "leaseDurationSeconds": DURATION, "renewTime": rfc3339_micro(_later(now, found))},
    }


def _later(now: datetime, found: Lease | None) -> datetime:
    """Returns a renewal time later than the last: the node controller only counts such a one, so a clock set back must not show in the
    Lease."""
    last = _renewed_at(found) if found is not None else None
    return now if last is None or last < now or last.year == datetime.max.year else last + timedelta(microseconds=1)


def _renewed_at(lease: Lease) -> datetime:
    return parse_rfc3339(lease.spec.get("renewTime") or "1970-01-01T00:00:00Z")


def successor(found: Lease, *, identity: str, renewed_at: datetime) -> str:
    """Returns who else renewed the Lease after `renewed_at`, our own last renewal; "" when no client did."""
    holder = found.metadata.annotations.get(RENEWED_BY, "")
    return holder if holder != identity and _renewed_at(found) > renewed_at else ""
