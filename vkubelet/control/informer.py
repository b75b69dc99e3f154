"""Informer: keeps a store equal to the objects of an API server, and notifies of every difference.

Invariant: unknown does not mean deleted. An object leaves the store when the server reports it or a consistent list lacks it; errors change
nothing.

The first list, and every list after an expired resourceVersion, is a watch with `sendInitialEvents` (KEP-3157) or else a paged LIST.
"""

import asyncio
import enum
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, nullcontext
from functools import cache, partial
from http import HTTPStatus
from typing import Generic, TypeVar
from weakref import WeakSet

from attrs import frozen

from vkubelet.api.codec import EventType, WatchEvent
from vkubelet.api.objects import Key, KubeObject, Resource
from vkubelet.client.rest import Client, Selection
from vkubelet.client.transport import Transport
from vkubelet.clock import Clock, SystemClock, in_batches
from vkubelet.control import restores
from vkubelet.control.controller import Isolation
from vkubelet.control.restores import is_earlier, is_later
from vkubelet.control.store import Store
from vkubelet.control.watch_retries import WatchRetries
from vkubelet.errors import Expired, Invalid, ServerError, VKubeletError
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics

log = logging.getLogger(__name__)

T = TypeVar("T", bound=KubeObject)

END_MARKER_SECONDS = 30.0
"""Seconds that the initial events of a watch may take before a LIST is tried instead."""

_SETTLED_SECONDS = 10.0
"""A stream that lasted this many seconds counts as healthy."""
_DELETED_REMEMBERED, _DELETED_SECONDS = 10_000, 300.0
"""UIDs, and seconds: far more than a call may take that returns an object as it was before its deletion."""
_YIELD_EVERY = 10
"""Objects, each of which may cost its handlers some tenths of a millisecond."""

_only_pages: WeakSet[Transport] = WeakSet()
"""Connections whose server does not send initial events."""


class _Streamed(enum.Enum):
    """What became of initial events as a stream."""

    NOT_ASKED = enum.auto()
    FOLLOWED = enum.auto()
    """The watch has closed since, or before they were complete."""
    INCOMPLETE = enum.auto()
    """The server does not send them all in time: it is not asked again."""
    BEHIND = enum.auto()
    """The watch cache of the server is behind etcd for now."""


@frozen
class Change(Generic[T]):
    """Change of one object.

    `old` None: it was created; `new` None: it was deleted, or no longer matches the selectors. Both with different UIDs: it was deleted and
    created again. `initial`: it belongs to the first list, or existed when the handler was registered. `suspected`: it is missing in a
    later list, so it was deleted at that moment, but no DELETED event was received. `restored`: the server was restored from a backup, so
    an earlier resourceVersion than before is the current one.
    """

    key: Key
    old: T | None
    new: T | None
    initial: bool = False
    suspected: bool = False
    restored: bool = False

    @property
    def more_than_status(self) -> bool:
        """Whether it was created, deleted, or changed in a way that increases its generation."""
        if self.old is None or self.new is None:
            return True
        old, new = self.old.metadata, self.new.metadata
        return (old.uid, old.generation, old.deletion_timestamp) != (new.uid, new.generation, new.deletion_timestamp)


class Informer(Generic[T]):
    """Watch of one selection of a resource. `run` it in a task group; read `store`."""

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        *,
        where: Selection = Selection(),
        store: Store[T] | None = None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.store: Store[T] = store if store is not None else Store()
        self.ever_synced = False
        self.last_error: Exception | None = None
        """Error of the last attempt to list or watch; None as soon as one succeeded."""
        self._client = client
        self._resource = resource
        self._where = where
        self._clock = clock or SystemClock()
        self._metrics = metrics
        self._events = cache(partial(metrics.watch_events.labels, resource.plural)) if metrics is not None else None
        self._handlers: list[Callable[[Change[T]], None]] = []
        self._isolated = Isolation(f"informer {resource.plural}")
        self._retries = WatchRetries(str(resource))
        self._version = ""
        self._synced = asyncio.Event()
        self._received_at = self._clock.monotonic()
        self._listed = ""
        self._newest = ""
        """The highest resourceVersion that the server has returned, also to other calls."""
        self._listed_after = ""
        """The same when the list began that is being read."""
        self._stream: asyncio.Timeout | None = None
        self._restored = False
        """Whether the server has returned with an earlier state, and was not listed since."""
        self._listing: dict[Key, T] | None = None
        self._adopted: dict[Key, T] = {}
        self._deleted: OrderedDict[str, float] = OrderedDict()

    @property
    def resource(self) -> Resource[T]:
        """The watched resource."""
        return self._resource

    @property
    def synced(self) -> bool:
        """Whether the store was listed completely, and no known error separates it from the server now."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Waits until `synced` is True."""
        await self._synced.wait()

    def stale_for(self) -> float:
        """Returns the seconds since the last event, bookmark or list of the server on this watch."""
        return self._clock.monotonic() - self._received_at

    def on_change(self, handler: Callable[[Change[T]], None]) -> None:
        """Registers `handler`, called after each change of the store, and now for each object in it. It must not wait.

        What it raises is logged and affects neither other handlers nor other objects.
        """
        self._handlers.append(handler)
        for obj in self.store:
            self._isolated.call(handler, Change(obj.key, None, obj, initial=True), obj.key)

    def adopt(self, obj: T) -> None:
        """Adds an object that another call returned, unless the watch has already delivered something later.

        An object that the last list should have contained and did not is deleted, and not added; so a `keep` that may need an object later
        has to retain a stub of it now.
        """
        if obj.metadata.uid in self._deleted:
            return
        self.record_version(obj.metadata.resource_version)
        if self._listing is not None:
            self._adopted[obj.key] = obj
        if obj.key in self.store or is_later(obj.metadata.resource_version, self._listed):
            self._put(obj)

    def record_version(self, version: str) -> None:
        """Records the resourceVersion of an object that another call returned: a server that later has only an earlier one was restored."""
        if is_earlier(self._newest or "0", version):
            self._newest = version

    def saw_deleted(self, uid: str) -> bool:
        """Checks whether a DELETED event was received for this UID, as far as remembered, and the server was not restored since."""
        return uid in self._deleted

    async def run(self) -> None:
        """Watches the server until cancelled; none of its errors stops this."""
        staleness = self._metrics.watch_stale.watched(self._resource.plural, self.stale_for) if self._metrics is not None else nullcontext()
        restores.register(self._client, self)
        try:
            with staleness:
                await self._run()
        finally:
            self._synced.clear()

    async def _run(self) -> None:
        while True:
            began = self._clock.monotonic()
            problem = await self._one_stream()
            self._count_restart(problem)
            if self._clock.monotonic() - began >= _SETTLED_SECONDS:
                self._retries.settled()
                if problem is None:
                    continue
            await self._clock.sleep(self._retries.wait_after(problem))

    async def _one_stream(self) -> VKubeletError | None:
        """Lists if necessary, then watches until the stream closes; returns the error that closed it."""
        try:
            if self.last_error is not None and self._is_resumable:
                await self._ask()
            await self._until_abandoned()
        except Expired as error:
            self.record_version(self._version)
            self._version = ""
            self._synced.clear()
            return error
        except VKubeletError as error:
            self._failed(error)
            return error
        return None

    async def _until_abandoned(self) -> None:
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._stream = scope
                await (self._follow() if self._is_resumable else self._list_and_follow())
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            self._stream = None

    @property
    def _is_resumable(self) -> bool:
        """Events that an abandoned stream delivered last may have set the version of a server that was restored."""
        return bool(self._version) and not self._restored

    def list_again(self) -> None:
        """Lists everything because the server was restored from a backup; a stream that is open is abandoned."""
        self._version = ""
        self._synced.clear()
        self._on_restored()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.reschedule(asyncio.get_running_loop().time())

    async def _ask(self) -> None:
        """Sends a small request: a resumed watch may be silent for a minute, so after an error another call has to show that the server
        responds. One that was restored from a backup would be silent until it reaches the resourceVersion of the watch again."""
        self.record_version(self._version)
        newest = await restores.newest(self._client, self._resource, self._where)
        if is_earlier(newest, self._newest):
            restores.report(self._client, self._resource)
        # Another watch may have noticed the same meanwhile.
        if not self._is_resumable:
            return
        self._succeeded()

    async def _follow(self) -> None:
        async with aclosing(self._client.watch(self._resource, since=self._version, where=self._where)) as events:
            await self._consume(events)

    async def _list_and_follow(self) -> None:
        self._begin_list()
        streamed = _Streamed.NOT_ASKED if self._client.transport in _only_pages else await self._stream_and_follow()
        if streamed is _Streamed.FOLLOWED:
            return
        # An object that the abandoned stream delivered may have been deleted since; no event would ever remove it.
        self._begin_list()
        listing = await self._client.list(self._resource, self._where)
        if not listing.resource_version:
            server = self._client.connection.url
            raise ServerError(
                f"list {self._resource}", f"{server} responded with a list without resourceVersion, which no watch can continue"
            )
        if streamed is _Streamed.INCOMPLETE:
            _only_pages.add(self._client.transport)
        for obj in listing.items:
            self._list(obj)
        await self._replace(listing.resource_version)
        await self._follow()

    def _begin_list(self) -> None:
        self._listing, self._adopted, self._listed_after = {}, {}, self._newest

    async def _stream_and_follow(self) -> _Streamed:
        """Streams the initial events, and then follows the watch until it closes."""
        async with aclosing(self._client.watch(self._resource, where=self._where, initial=True)) as events:
            try:
                async with asyncio.timeout(END_MARKER_SECONDS):
                    version = await self._initial(events)
            except (Invalid, TimeoutError) as error:
                with bind(error=str(error) or "no end marker"):
                    log.debug("the watch sent no initial events; listing instead")
                return _Streamed.INCOMPLETE
            except ServerError as error:
                if error.status != HTTPStatus.GATEWAY_TIMEOUT:
                    raise
                return _Streamed.BEHIND
            if version:
                await self._replace(version)
                await self._consume(events)
        return _Streamed.FOLLOWED

    async def _initial(self, events: AsyncGenerator[WatchEvent[T], None]) -> str:
        """Records the objects before the bookmark that completes the list; returns its resourceVersion, or "" when the stream closed
        without one."""
        async for event in events:
            self._on_event(event)
            if event.type is EventType.DELETED:
                self._unlist(event.object)
            elif event.type is not EventType.BOOKMARK:
                self._list(event.object)
            elif event.initial_end:
                return event.object.metadata.resource_version
        return ""

    def _on_restored(self) -> None:
        self._newest, self._restored = "", True
        self._deleted.clear()

    def _list(self, obj: T) -> None:
        assert self._listing is not None, "objects are listed between the begin of a list and its end"
        # An object that `keep` cannot judge stays unchanged: unknown does not mean deleted.
        admitted = self.store.get(obj.key)
        with self._isolated(obj.key):
            admitted = self.store.admit(obj)
        if admitted is not None:
            self._listing[obj.key] = admitted
        else:
            self._listing.pop(obj.key, None)

    def _unlist(self, obj: T) -> None:
        """Drops an object that was deleted before the list was complete."""
        self._remember_deleted(obj.metadata.uid)
        for objects in (self._listing, self._adopted):
            known = objects.get(obj.key) if objects else None
            if objects and known is not None and known.metadata.uid == obj.metadata.uid:
                del objects[obj.key]

    async def _consume(self, events: AsyncGenerator[WatchEvent[T], None]) -> None:
        number = 0
        async for event in events:
            self._on_event(event)
            with self._isolated(event.object.key):
                if event.type is EventType.DELETED:
                    self._remove(event.object)
                elif event.type is not EventType.BOOKMARK:
                    self._put(event.object)
            self._version = event.object.metadata.resource_version
            number += 1
            # A chunk may contain hundreds of events; reading them does not yield to other tasks.
            if number % _YIELD_EVERY == 0:
                await self._clock.sleep(0)

    async def _replace(self, version: str) -> None:
        """Makes the store equal to the list."""
        if is_earlier(version, self._listed_after):
            self._on_restored()
        listed, self._listing = self._with_adopted(self._listing or {}, version), None
        self._listed = version
        first = not self.ever_synced
        async for key in in_batches(self._clock, self.store.keys()):
            if key not in listed:
                self._notify(Change(key, self.store.remove(key), None, suspected=True, restored=self._restored))
        async for new in in_batches(self._clock, listed.values()):
            with self._isolated(new.key):
                self._place_listed(new, initial=first)
        self._version, self._restored = version, False
        self._received_at = self._clock.monotonic()
        self.ever_synced = True
        self._succeeded()

    def _place_listed(self, new: T, *, initial: bool) -> None:
        known = self.store.get(new.key)
        # A restored server gives the same resourceVersions to other changes.
        if known is None or self._restored or not _same(new, known):
            old = self.store.remove(new.key)
            self.store.place(new)
            self._notify(Change(new.key, old, new, initial=initial, restored=self._restored))

    def _with_adopted(self, listed: dict[Key, T], version: str) -> dict[Key, T]:
        """Adds what was adopted while the list was read, if it is later, or if only a stub of it was listed."""
        for obj in self._adopted.values():
            known = listed.get(obj.key)
            stubbed = known is not None and known.metadata.uid == obj.metadata.uid and _newer(obj, known)
            if stubbed or is_later(obj.metadata.resource_version, version):
                admitted = self.store.admit(obj)
                if admitted is not None:
                    listed[obj.key] = admitted
        # The store keeps less of an object than this.
        self._adopted = {}
        return listed

    def _put(self, obj: T) -> None:
        known = self.store.get(obj.key)
        if known is not None and not _newer(obj, known):
            return
        old, new = self.store.put(obj)
        if old is not None or new is not None:
            self._notify(Change(obj.key, old, new))

    def _remove(self, obj: T) -> None:
        uid = obj.metadata.uid
        self._remember_deleted(uid)
        known = self.store.get(obj.key)
        if known is not None and known.metadata.uid == uid:
            self._notify(Change(obj.key, self.store.remove(obj.key), None))

    def _remember_deleted(self, uid: str) -> None:
        now = self._clock.monotonic()
        self._deleted[uid] = now
        while len(self._deleted) > _DELETED_REMEMBERED or next(iter(self._deleted.values())) < now - _DELETED_SECONDS:
            self._deleted.popitem(last=False)

    def _notify(self, change: Change[T]) -> None:
        for handler in self._handlers:
            self._isolated.call(handler, change, change.key)

    def _failed(self, error: VKubeletError) -> None:
        self._synced.clear()
        self.last_error = error
        self._retries.failed(error)

    def _succeeded(self) -> None:
        if self.last_error is not None:
            self._retries.recovered()
        self.last_error = None
        self._synced.set()

    def _on_event(self, event: WatchEvent[T]) -> None:
        self._received_at = self._clock.monotonic()
        if self._events is not None:
            self._events(event.type.value).inc()

    def _count_restart(self, problem: VKubeletError | None) -> None:
        if self._metrics is not None:
            reason = "ended" if problem is None else type(problem).__name__
            self._metrics.watch_restarts.labels(resource=self._resource.plural, reason=reason).inc()


def _same(one: KubeObject, other: KubeObject) -> bool:
    this, that = one.metadata, other.metadata
    return (this.uid, this.resource_version) == (that.uid, that.resource_version)


def _newer(obj: KubeObject, known: KubeObject) -> bool:
    return is_later(obj.metadata.resource_version, known.metadata.resource_version)
