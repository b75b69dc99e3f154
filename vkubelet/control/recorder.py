"""Event recorder: writes Kubernetes Events about objects in the background.

Invariant: recording never waits, never fails and never fills memory; an Event that cannot be written in time is dropped and counted.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import Generic, Self, TypeVar

from attrs import define, frozen

from vkubelet.api.objects import EVENTS, Json, Key, KubeObject, Resource
from vkubelet.client.rest import Client
from vkubelet.clock import Clock, rfc3339
from vkubelet.control.backoff import TokenBucket, with_retry
from vkubelet.control.controller import Isolation
from vkubelet.errors import AlreadyExists, Forbidden, NotFound, VKubeletError
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

T = TypeVar("T", bound=KubeObject)
V = TypeVar("V")

QUEUE_LIMIT = 1000
BURST = 25
"""Events about one object at once, and then one per REFILL seconds, as client-go's spam filter."""
REFILL = 300.0
_REMEMBERED = 4096
_SAME_SERIES = 600.0
"""Seconds since the last of equal events after which the next one is a new Event, as client-go's aggregation interval."""
_MESSAGE_LIMIT = 1024
_NAME_LIMIT = 230
_ATTEMPTS = 3
_LAST_FLUSH = 2.0


@frozen
class ObjectReference:
    """Object that an Event is about; `field_path` names a part of it, such as `spec.containers{web}`."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    field_path: str = ""

    @classmethod
    def of(cls, resource: Resource[T], obj: T) -> Self:
        """Returns a reference to an object as read."""
        metadata = obj.metadata
        return cls(resource.api_version, resource.kind, metadata.name, metadata.namespace, metadata.uid)

    def body(self) -> Json:
        """Returns the `involvedObject` of an Event."""
        named = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "namespace": self.namespace,
            "uid": self.uid,
            "fieldPath": self.field_path,
        }
        return {name: value for name, value in named.items() if value}


@frozen
class _Content:
    subject: ObjectReference
    reason: str
    message: str
    warning: bool


@define
class _Series:
    """Equal events: their count, first and last time; `name` is that of the Event object once there is one."""

    count: int
    first: datetime
    last: datetime
    name: str = ""


class _Recent(Generic[V]):
    """The most recently used values, by key; those that were not used for so many seconds are dropped."""

    def __init__(self, make: Callable[[], V], *, clock: Clock, seconds: float) -> None:
        self._make = make
        self._clock = clock
        self._seconds = seconds
        self._values: OrderedDict[object, tuple[float, V]] = OrderedDict()

    def __getitem__(self, key: object) -> V:
        now = self._clock.monotonic()
        while self._values and next(iter(self._values.values()))[0] < now - self._seconds:
            self._values.popitem(last=False)
        _, value = self._values.pop(key) if key in self._values else (now, self._make())
        self._values[key] = now, value
        if len(self._values) > _REMEMBERED:
            self._values.popitem(last=False)
        return value


class Recorder:
    """Writer of core/v1 Events as `component` on `host`; equal ones become one Event with a count."""

    def __init__(
        self,
        client: Client,
        component: str,
        *,
        host: str = "",
        clock: Clock,
        redact: Callable[[str, str], str] = lambda uid, text: text,
    ) -> None:
        """Sets up the recorder; `redact(uid, text)` removes what must not be published about the object with this UID."""
        self._client = client
        self._component = component
        self._host = host
        self._redact = redact
        self._clock = clock
        self._pending: OrderedDict[_Content, _Series] = OrderedDict()
        self._written: _Recent[_Series] = _Recent(lambda: _Series(0, clock.now(), clock.now()), clock=clock, seconds=_SAME_SERIES)
        # After that time a bucket is full again.
        self._buckets: _Recent[TokenBucket] = _Recent(
            lambda: TokenBucket(1 / REFILL, BURST, clock=clock), clock=clock, seconds=REFILL * BURST
        )
        self._wake = asyncio.Event()
        self._written_out = asyncio.Event()
        self._written_out.set()
        self._isolated = Isolation("events")
        self._lacks_right = False
        """Whether a missing right was logged and no Event was written since."""
        self.dropped = 0
        """Number of Events that were not written: too many, or refused."""

    def event(self, subject: ObjectReference, reason: str, message: str, *, warning: bool = False) -> None:
        """Records an event of `subject`; `reason` is CamelCase, the message a sentence for people without secrets."""
        if not self._buckets[subject.uid or (subject.kind, subject.namespace, subject.name)].take():
            self.dropped += 1
            return
        content = _Content(subject, reason, self._redact(subject.uid, message)[:_MESSAGE_LIMIT], warning)
        now = self._clock.now()
        waiting = self._pending.get(content)
        if waiting is not None:
            waiting.count += 1
            waiting.last = now
            return
        if len(self._pending) >= QUEUE_LIMIT:
            self.dropped += self._pending.popitem(last=False)[1].count
        self._pending[content] = _Series(1, now, now)
        self._written_out.clear()
        self._wake.set()

    async def written(self) -> None:
        """Waits until nothing is left to write; `run` runs meanwhile."""
        await self._written_out.wait()

    async def run(self) -> None:
        """Writes until cancelled; then pending Events get a last short chance."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._flush(_ATTEMPTS)
        except asyncio.CancelledError:
            try:
                async with asyncio.timeout(_LAST_FLUSH):
                    await self._flush(1)
            except TimeoutError:
                log.debug("events were left unwritten")
            raise

    async def _flush(self, attempts: int) -> None:
        while self._pending:
            content, series = self._pending.popitem(last=False)
            written = False
            with self._isolated(f"{content.subject.kind} {content.subject.namespace}/{content.subject.name}"):
                written = await self._try_to_write(content, series, attempts)
            self.dropped += 0 if written else series.count
        self._written_out.set()

    async def _try_to_write(self, content: _Content, series: _Series, attempts: int) -> bool:
        try:
            await self._write(content, series, attempts)
        except VKubeletError as error:
            lacks_right = isinstance(error, Forbidden) and error.lacks_right
            with bind(error=str(error)):
                log.log(logging.WARNING if lacks_right and not self._lacks_right else logging.DEBUG, "event dropped")
            self._lacks_right |= lacks_right
            return False
        self._lacks_right = False
        return True

    async def _write(self, content: _Content, new: _Series, attempts: int) -> None:
        series = self._written[content]
        if series.name:
            total = _Series(series.count + new.count, series.first, new.last, series.name)
            key = Key(_namespace(content.subject), series.name)
            change = {"count": total.count, "lastTimestamp": rfc3339(total.last)}
            try:
                await with_retry(lambda: self._client.patch(EVENTS, key, change), attempts=attempts, clock=self._clock)
            except NotFound:
                # Events expire after an hour; the next one starts a new series.
                series.name = ""
            else:
                series.count, series.last = total.count, total.last
                return
        body = self._body(content, new)
        try:
            await with_retry(
                lambda: self._client.create(EVENTS, body, namespace=_namespace(content.subject)), attempts=attempts, clock=self._clock
            )
        except AlreadyExists:
            log.debug("an event was written although its answer was lost")
        series.name, series.count, series.first, series.last = body["metadata"]["name"], new.count, new.first, new.last

    def _body(self, content: _Content, series: _Series) -> Json:
        return {
            "metadata": {"name": f"{content.subject.name[:_NAME_LIMIT]}.{secrets.token_hex(8)}", "namespace": _namespace(content.subject)},
            "involvedObject": content.subject.body(),
            "type": "Warning" if content.warning else "Normal",
            "reason": content.reason,
            "message": content.message,
            "count": series.count,
            "firstTimestamp": rfc3339(series.first),
            "lastTimestamp": rfc3339(series.last),
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }


def _namespace(subject: ObjectReference) -> str:
    """Returns the namespace of an Event: those about cluster-scoped objects belong to `default` (API validation of core/v1 Events)."""
    return subject.namespace or "default"
