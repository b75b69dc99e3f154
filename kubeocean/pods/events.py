"""Mirrors the worker's Events about our physical pods to their virtual pods in the hub.

Invariant: one Event in the worker is at most one in the hub, under a name derived from its uid, so a restart repeats nothing; events never
delay statuses, use bounded memory, and without the right to read them nothing else is affected.
"""

import asyncio
import logging
import math
import re
from collections import OrderedDict
from contextlib import aclosing
from datetime import datetime
from typing import Final, Self

from attrs import define, field, frozen

from kubeocean.pods.virtual_status import in_hub_names
from kubeocean.scope import WorkerScope
from vkubelet.api.codec import EventType
from vkubelet.api.names import md5_hex
from vkubelet.api.objects import EVENTS, Json, Key, Pod, PodRef, Unknown
from vkubelet.client.rest import PatchKind, Selection
from vkubelet.clock import parse_rfc3339
from vkubelet.control import restores
from vkubelet.control.backoff import Backoff, TokenBucket
from vkubelet.control.controller import Controller, Isolation
from vkubelet.control.informer import Change
from vkubelet.control.restores import is_earlier
from vkubelet.control.workqueue import Priority
from vkubelet.errors import AlreadyExists, Expired, Forbidden, Invalid, NotFound, VKubeletError
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

PENDING_LIMIT: Final = 2000
_EVENTS_AT_ONCE: Final = 20
"""Events of one chunk that are processed before other tasks run again."""
REACH_BACK: Final = 300.0
"""Seconds: an Event that is older when it is received is not mirrored, so a start does not repeat the Events of an hour."""

_REMEMBERED = 4096
_PER_SECOND, _BURST = 25.0, 50.0
_AFTER_STATUSES, _WARNS_AFTER = 2.0, 0.5
"""Seconds that Events and warnings are delayed: in a burst of pods their statuses are written first; warnings wait less."""
_SAME_EVENT_AFTER = 3.0
_POD_AWAITED = 5.0
_POD_RECHECKED_AFTER = 1.0
_FORBIDDEN_RETRIED_AFTER = 60.0
_SELECTED: Final = "involvedObject.kind=Pod,reason!=Scheduled"
"""Events of pods but the one that each pod has, `is_known_in_hub`: the API server need not send it."""
_REFUSED_RETRIED_AFTER, _REFUSALS_OF_A_START = 2.0, 5
"""Seconds, and number of attempts: an API server that has just started refuses everything until it has read its roles."""
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
    def of(cls, obj: Unknown) -> Self | None:
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
    def is_known_in_hub(self) -> bool:
        """Whether the hub has this Event already: for its user the pod was scheduled once, as the hub's scheduler has reported."""
        return (self.type, self.reason) == ("Normal", "Scheduled")

    def age(self, now: datetime) -> float:
        """Returns the seconds since its last occurrence; infinitely many for a time that is none here, such as one of the year 0, which
        API servers accept."""
        try:
            return (now - parse_rfc3339(self.last)).total_seconds()
        except ValueError:
            return math.inf


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
        "firstTimestamp": _whole_seconds(event.first),
        "lastTimestamp": _whole_seconds(event.last),
        "source": {"component": event.component, "host": ref.node},
        "reportingComponent": "kubeocean",
        "reportingInstance": binding,
    }


def _whole_seconds(time: str) -> str:
    """Removes the fraction of a second, which these fields do not have."""
    return re.sub(r"\.\d+", "", time)


@frozen
class _Waiting:
    event: WorkerEvent
    since: float


@frozen
class _Mirrored:
    count: int
    last: str
    at: float


@define(kw_only=True, eq=False)
class EventMirror:
    """Mirrors the Events of the namespaces of the binding; keys of its queue are their uids."""

    scope: WorkerScope
    controller: Controller[str] = field(init=False)
    _waiting: OrderedDict[str, _Waiting] = field(factory=OrderedDict, init=False)
    _mirrored: OrderedDict[str, _Mirrored] = field(factory=OrderedDict, init=False)
    _bucket: TokenBucket = field(init=False)
    _forbidden: set[str] = field(factory=set, init=False)
    _lacks_right: bool = field(default=False, init=False)
    """Whether it was logged that no Event can be written in the hub."""
    _new: asyncio.Queue[str] = field(factory=asyncio.Queue, init=False)

    def __attrs_post_init__(self) -> None:
        host = self.scope.host
        self._bucket = TokenBucket(_PER_SECOND, _BURST, clock=host.clock)
        self.controller = Controller("events", self.reconcile, workers=2, clock=host.clock, metrics=host.metrics)

    async def run(self) -> None:
        """Mirrors Events until cancelled."""
        worker = self.scope.worker
        async with asyncio.TaskGroup() as group:
            group.create_task(self.controller.run())
            if worker.mount.is_shared:
                group.create_task(EventStream(self, worker.mount.namespace).run())
                return
            worker.namespaces.on_change(self._namespace_changed)
            watched: set[str] = set()
            while True:
                if (name := await self._new.get()) not in watched:
                    watched.add(name)
                    group.create_task(EventStream(self, name).run(), name=f"events of {name}")

    def _namespace_changed(self, change: Change[Unknown]) -> None:
        if change.old is None:
            self._new.put_nowait(change.key.name)

    def on_event(self, obj: Unknown) -> None:
        """Enqueues an Event of the stream with a short delay; at most `PENDING_LIMIT` wait, and the oldest is dropped first."""
        event, clock = WorkerEvent.of(obj), self.scope.host.clock
        if event is None or event.is_known_in_hub or event.age(clock.now()) > REACH_BACK:
            return
        before = self._mirrored.get(event.uid)
        if before is not None and (before.count, before.last) == (event.count, event.last):
            return
        now = clock.monotonic()
        self._waiting[event.uid] = _Waiting(event, now)
        if len(self._waiting) > PENDING_LIMIT:
            dropped, _ = self._waiting.popitem(last=False)
            self.controller.discard(dropped)
            self.scope.metrics.events_dropped.inc()
        after = _WARNS_AFTER if event.type == "Warning" else _AFTER_STATUSES
        if before is not None:
            after = max(after, before.at + _SAME_EVENT_AFTER - now)
        self.controller.add(event.uid, after=after, priority=Priority.LOW)

    async def reconcile(self, uid: str) -> float | None:
        """Writes one Event, or waits a few seconds until its pod is observed. Raises errors that are worth a retry."""
        waiting = self._waiting.get(uid)
        if waiting is None:
            return None
        physical = self.scope.worker.pods.store.get(waiting.event.pod)
        if physical is None and self.scope.host.clock.monotonic() - waiting.since < _POD_AWAITED:
            return _POD_RECHECKED_AFTER
        ref = self._virtual(physical, waiting.event)
        pod = self.scope.host.pods.by_uid(ref.uid) if ref is not None else None
        if pod is not None and physical is not None:
            with bind(pod=str(pod.key), node=pod.node, uid=pod.metadata.uid):
                await self._bucket.wait()
                await self._mirror(waiting.event, mirrored(waiting.event, pod, physical, binding=self.scope.binding.name))
        if self._waiting.get(uid) is waiting:
            del self._waiting[uid]
        return None

    def _virtual(self, physical: Pod | None, event: WorkerEvent) -> PodRef | None:
        if physical is None or physical.metadata.uid != event.pod_uid:
            return None
        return self.scope.worker.backed(physical)

    async def _mirror(self, event: WorkerEvent, body: Json) -> None:
        try:
            await self._write(event, body)
        except (Forbidden, NotFound, Invalid) as error:
            self.on_dropped(error)
            return
        self._lacks_right = False
        self.scope.metrics.events_mirrored.inc()
        self._mirrored[event.uid] = _Mirrored(event.count, event.last, self.scope.host.clock.monotonic())
        self._mirrored.move_to_end(event.uid)
        if len(self._mirrored) > _REMEMBERED:
            self._mirrored.popitem(last=False)

    async def _write(self, event: WorkerEvent, body: Json) -> None:
        client = self.scope.host.client
        if event.uid not in self._mirrored:
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

    def on_dropped(self, error: Forbidden | NotFound | Invalid) -> None:
        """Counts an Event that cannot be written in the hub; a missing right is logged once until it was granted."""
        self.scope.metrics.events_dropped.inc()
        lacks_right = isinstance(error, Forbidden) and error.lacks_right
        log.log(logging.WARNING if lacks_right and not self._lacks_right else logging.DEBUG, "cannot mirror an event: %s", error)
        self._lacks_right |= lacks_right

    def on_forbidden(self, error: Forbidden, namespace: str) -> None:
        """Reports that the right is missing in a namespace, once until it was granted."""
        if namespace in self._forbidden:
            return
        self._forbidden.add(namespace)
        text = f"events of physical pods are not shown: grant list and watch of events in namespace {namespace} to the kubeconfig's user"
        self.scope.binding.event("EventsForbidden", text)
        log.warning("not allowed to watch the events of the worker: %s", error)

    def on_allowed(self, namespace: str) -> None:
        """Notes that the Events of a namespace can be watched."""
        self._forbidden.discard(namespace)


@define
class EventStream:
    """The watch of one namespace."""

    mirror: EventMirror
    namespace: str
    _isolated: Isolation = field(factory=lambda: Isolation("events of the worker"), init=False)
    _backoff: Backoff = field(factory=lambda: Backoff(first=0.2, limit=30.0, jitter=0.5), init=False)
    _version: str = field(default="", init=False)
    _interrupted: bool = field(default=False, init=False)
    _refusals: int = field(default=0, init=False)

    async def run(self) -> None:
        """Watches without a cache: a stream starts with the existing Events, and resumes at the last bookmark.

        Events that are received twice are recognized by their uid.
        """
        while True:
            wait = self._backoff.next()
            try:
                await self._follow()
                self._interrupted = False
            except Expired:
                self._version = ""
            except Forbidden as error:
                self._refusals += 1
                wait = min(wait, _REFUSED_RETRIED_AFTER)
                if self._refusals > _REFUSALS_OF_A_START:
                    self.mirror.on_forbidden(error, self.namespace)
                    wait = _FORBIDDEN_RETRIED_AFTER
            except VKubeletError as error:
                self._interrupted = True
                log.debug("cannot watch the events of the worker now: %s", error)
            await self.mirror.scope.host.clock.sleep(wait)

    async def _follow(self) -> None:
        where, client = Selection(namespace=self.namespace, fields=_SELECTED), self.mirror.scope.worker.client
        if self._interrupted and self._version and is_earlier(await restores.newest(client, EVENTS, where), self._version):
            restores.report(client, EVENTS)
            self._version = ""
        async with aclosing(client.watch(EVENTS, since=self._version, where=where)) as stream:
            received = 0
            async for seen in stream:
                received += 1
                if received % _EVENTS_AT_ONCE == 0:
                    await self.mirror.scope.host.clock.sleep(0)
                self._backoff.reset()
                self._refusals = 0
                self.mirror.on_allowed(self.namespace)
                if seen.type is EventType.BOOKMARK:
                    self._version = seen.object.metadata.resource_version
                elif seen.type is not EventType.DELETED:
                    with self._isolated(seen.object.key):
                        self.mirror.on_event(seen.object)
