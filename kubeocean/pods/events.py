"""Mirrors the worker's Events about our physical pods to their virtual pods in the hub.

Invariant: one Event in the worker is at most one in the hub, under a name derived from its uid, so a restart repeats nothing; events never
delay statuses, use bounded memory, and without the right to read them nothing else is affected.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from contextlib import aclosing
from datetime import datetime
from typing import Final

from attrs import frozen

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.metrics import SyncerMetrics
from kubeocean.pods.hub_names import in_hub_names
from kubeocean.worker.cluster import WorkerCluster
from vkubelet.api.codec import EventType
from vkubelet.api.names import md5_hex
from vkubelet.api.objects import Key, Pod, PodRef, Unknown
from vkubelet.api.shapes import Json
from vkubelet.client.resources import EVENTS
from vkubelet.client.rest import PatchKind, Selection
from vkubelet.clock import parse_rfc3339
from vkubelet.control.backoff import Backoff, TokenBucket
from vkubelet.control.controller import Controller
from vkubelet.control.workqueue import Priority
from vkubelet.errors import AlreadyExists, Expired, Forbidden, Invalid, NotFound, VKubeletError
from vkubelet.logformat import bind
from vkubelet.provider import Host

log = logging.getLogger(__name__)

PENDING_LIMIT: Final = 2000
REACH_BACK: Final = 300.0
"""Seconds: an Event that is older when it is received is not mirrored, so a start does not repeat the Events of an hour."""

_REMEMBERED = 4096
_PER_SECOND, _BURST = 25.0, 50.0
_AFTER_STATUSES, _WARNS_AFTER = 2.0, 0.5
"""Seconds that Events and warnings are delayed: in a burst of pods their statuses are written first; warnings wait less."""
_SAME_AGAIN = 3.0
_POD_SHOWS_UP = 5.0
_ASK_AGAIN = 1.0
_REFUSED_EVERY = 60.0
_MESSAGE_LIMIT = 1024
_NAME_LIMIT = 230


@frozen(kw_only=True)
class WorkerEvent:
    """An Event of the worker about a pod; times are RFC 3339 text."""

    uid: str
    pod: Key
    pod_uid: str
    field_path: str
    type: str
    reason: str
    message: str
    component: str
    count: int
    first: str
    last: str

    @classmethod
    def of(cls, obj: Unknown) -> WorkerEvent | None:
        """Reads either form, with a count or with a series (events.k8s.io); returns None when the Event is not about a pod."""
        body = obj.body
        about, series = body.get("involvedObject") or {}, body.get("series") or {}
        if about.get("kind") != "Pod" or not about.get("uid"):
            return None
        first = body.get("firstTimestamp") or body.get("eventTime") or obj.metadata.creation_timestamp
        return cls(
            uid=obj.metadata.uid,
            pod=Key(about.get("namespace") or "", about.get("name") or ""),
            pod_uid=about["uid"],
            field_path=about.get("fieldPath") or "",
            type=body.get("type") or "Normal",
            reason=body.get("reason") or "",
            message=body.get("message") or "",
            component=(body.get("source") or {}).get("component") or body.get("reportingComponent") or "",
            count=series.get("count") or body.get("count") or 1,
            first=first,
            last=series.get("lastObservedTime") or body.get("lastTimestamp") or first,
        )

    @property
    def is_known_at_home(self) -> bool:
        """Whether the hub has this Event already: for its user the pod was scheduled once, as the hub's scheduler has reported."""
        return (self.type, self.reason) == ("Normal", "Scheduled")

    def age(self, now: datetime) -> float:
        """Returns the seconds since its last occurrence."""
        return (now - parse_rfc3339(self.last)).total_seconds()


def mirrored(event: WorkerEvent, pod: Pod, physical: Pod, *, binding: str) -> Json:
    """Returns the Event for the hub. Its source is the worker's component, on the virtual node; Kubeocean is the reporting component."""
    ref = pod.ref
    about = {"apiVersion": "v1", "kind": "Pod", "name": ref.name, "namespace": ref.namespace, "uid": ref.uid}
    return {
        "metadata": {"name": f"{ref.name[:_NAME_LIMIT]}.{md5_hex(event.uid)[:16]}", "namespace": ref.namespace},
        "involvedObject": {**about, **({"fieldPath": event.field_path} if event.field_path else {})},
        "type": event.type,
        "reason": event.reason,
        "message": in_hub_names(event.message, pod, physical)[:_MESSAGE_LIMIT],
        "count": event.count,
        "firstTimestamp": _whole(event.first),
        "lastTimestamp": _whole(event.last),
        "source": {"component": event.component, "host": ref.node},
        "reportingComponent": "kubeocean",
        "reportingInstance": binding,
    }


def _whole(time: str) -> str:
    """Removes the fraction of a second, which these fields do not have."""
    return re.sub(r"\.\d+", "", time)


@frozen
class _Waiting:
    event: WorkerEvent
    since: float


@frozen
class _Told:
    count: int
    last: str
    at: float


@frozen(kw_only=True)
class EventParts:
    """Dependencies of the mirror."""

    host: Host
    worker: WorkerCluster
    binding: BindingReconciler
    metrics: SyncerMetrics


class EventMirror:
    """Watches the Events of the mount namespace; keys of its queue are their uids."""

    def __init__(self, parts: EventParts) -> None:
        self._parts = parts
        self._where = Selection(namespace=parts.worker.mount.namespace, fields="involvedObject.kind=Pod")
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._told: OrderedDict[str, _Told] = OrderedDict()
        self._bucket = TokenBucket(_PER_SECOND, _BURST, clock=parts.host.clock)
        self._backoff = Backoff(first=0.2, limit=30.0, jitter=0.5)
        self._version = ""
        self._refused = False
        self.controller: Controller[str] = Controller(
            "events", self.reconcile, workers=2, clock=parts.host.clock, metrics=parts.host.metrics
        )

    async def run(self) -> None:
        """Mirrors Events until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.controller.run())
            group.create_task(self._watch())

    async def _watch(self) -> None:
        """Watches without a cache: a stream starts with the existing Events, and resumes at the last bookmark.

        Events that are received twice are recognized by their uid.
        """
        while True:
            wait = self._backoff.next()
            try:
                await self._follow()
            except Expired:
                self._version = ""
            except Forbidden as error:
                self.refused(error)
                wait = _REFUSED_EVERY
            except VKubeletError as error:
                log.debug("events of the worker can not be watched now: %s", error)
            await self._parts.host.clock.sleep(wait)

    async def _follow(self) -> None:
        async with aclosing(self._parts.worker.client.watch(EVENTS, since=self._version, where=self._where)) as stream:
            async for seen in stream:
                self._backoff.forget()
                self._refused = False
                if seen.type is EventType.BOOKMARK:
                    self._version = seen.object.metadata.resource_version
                elif seen.type is not EventType.DELETED:
                    self.take(seen.object)

    def take(self, obj: Unknown) -> None:
        """Enqueues an Event of the stream with a short delay; at most `PENDING_LIMIT` wait, and the oldest is dropped first."""
        event, clock = WorkerEvent.of(obj), self._parts.host.clock
        if event is None or event.is_known_at_home or event.age(clock.now()) > REACH_BACK:
            return
        told = self._told.get(event.uid)
        if told is not None and (told.count, told.last) == (event.count, event.last):
            return
        now = clock.monotonic()
        self._waiting[event.uid] = _Waiting(event, now)
        if len(self._waiting) > PENDING_LIMIT:
            dropped, _ = self._waiting.popitem(last=False)
            self.controller.discard(dropped)
            self._parts.metrics.events_dropped.inc()
        after = _WARNS_AFTER if event.type == "Warning" else _AFTER_STATUSES
        if told is not None:
            after = max(after, told.at + _SAME_AGAIN - now)
        self.controller.add(event.uid, after=after, priority=Priority.LOW)

    async def reconcile(self, uid: str) -> float | None:
        """Writes one Event, or waits a few seconds until its pod is observed. Raises errors that are worth a retry."""
        waiting = self._waiting.get(uid)
        if waiting is None:
            return None
        physical = self._parts.worker.pods.store.get(waiting.event.pod)
        if physical is None and self._parts.host.clock.monotonic() - waiting.since < _POD_SHOWS_UP:
            return _ASK_AGAIN
        ref = self._virtual(physical, waiting.event)
        pod = self._parts.host.pods.by_uid(ref.uid) if ref is not None else None
        if pod is not None and physical is not None:
            with bind(pod=str(pod.key), node=pod.node, uid=pod.metadata.uid):
                await self._bucket.wait()
                await self._tell(waiting.event, mirrored(waiting.event, pod, physical, binding=self._parts.binding.name))
        if self._waiting.get(uid) is waiting:
            del self._waiting[uid]
        return None

    def _virtual(self, physical: Pod | None, event: WorkerEvent) -> PodRef | None:
        if physical is None or physical.metadata.uid != event.pod_uid:
            return None
        return self._parts.worker.backed(physical)

    async def _tell(self, event: WorkerEvent, body: Json) -> None:
        try:
            await self._write(event, body)
        except (Forbidden, NotFound, Invalid) as error:
            self._parts.metrics.events_dropped.inc()
            log.debug("event can not be mirrored: %s", error)
            return
        self._parts.metrics.events_mirrored.inc()
        self._told[event.uid] = _Told(event.count, event.last, self._parts.host.clock.monotonic())
        self._told.move_to_end(event.uid)
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)

    async def _write(self, event: WorkerEvent, body: Json) -> None:
        client = self._parts.host.client
        if event.uid not in self._told:
            try:
                await client.create(EVENTS, body)
            except AlreadyExists:
                log.debug("event was mirrored before")
                if event.count == 1:
                    return
            else:
                return
        change = {name: body[name] for name in ("count", "lastTimestamp", "message")}
        try:
            await client.patch(EVENTS, Key(body["metadata"]["namespace"], body["metadata"]["name"]), change, kind=PatchKind.MERGE)
        except NotFound:
            # Events expire after an hour.
            await client.create(EVENTS, body)

    def refused(self, error: Forbidden) -> None:
        """Reports that the right is missing, once until it was granted."""
        if self._refused:
            return
        self._refused = True
        text = (
            "events of physical pods are not shown: the kubeconfig's user may not watch events in the mount namespace; grant list and watch"
        )
        self._parts.binding.event("EventsForbidden", text)
        log.warning("events of the worker may not be watched: %s", error)
