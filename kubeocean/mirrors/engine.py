"""Base of the reconcilers of mirrors: objects in the worker that follow objects of the hub which no pod names.

Invariant: a mirror is deleted only if it is ours and its original is proven to be deleted or out of scope; lists that are not complete, or
refused, delete nothing. Keys are those of the originals in the hub; calls for one never overlap.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from kubeocean.copies.tenants import NOT_PREPARED
from kubeocean.mirrors.namespaces import MirroredNamespaces
from kubeocean.model.ownership import Ownership, classify
from kubeocean.scope import WorkerScope
from kubeocean.worker.cluster import REFUSED
from vkubelet.api.objects import PODS, Json, Key, Unknown
from vkubelet.client.rest import Selection
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.workqueue import Priority
from vkubelet.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Unavailable
from vkubelet.logformat import bind

W = TypeVar("W")
"""Desired mirrors of one original."""

BY_NAMESPACE: Final = "namespace"
"""Index of originals that a subclass provides."""
COALESCED: Final = 0.3
"""Seconds in which changes of the mirrors of one original become one reconcile."""
NOT_LISTED: Final = 1.0
_REFUSED_FOR: Final = 5.0
_USED_AGAIN: Final = 30.0
_QUOTED: Final = 1000
"""Characters of a refusal that a problem contains: a condition names several of them."""
_RECHECK_AFTER: Final = 60.0
"""Seconds until a mirror that the worker does not accept is tried again."""


class Foreign(Exception):
    """An object of another owner has the name that a mirror needs."""


class Mirrors(ABC, Generic[W]):
    """Keeps the mirrors of the objects that `originals` watches in the hub; `title` names these in messages.

    `prepare` returns when objects of a hub namespace may be created in the worker, or raises Unavailable. A subclass registers
    the handlers of further watches.
    """

    def __init__(
        self,
        title: str,
        scope: WorkerScope,
        originals: Informer[Unknown],
        *,
        namespaces: MirroredNamespaces,
        prepare: Callable[[str], Awaitable[None]],
    ) -> None:
        self._title = title
        self._scope = scope
        self._worker = scope.worker
        self._originals = originals
        self._namespaces = namespaces
        self._prepare = prepare
        self._problems: dict[Key, str] = {}
        clock, metrics = scope.host.clock, scope.host.metrics
        self.controller: Controller[Key] = Controller(originals.resource.plural, self.reconcile, workers=8, clock=clock, metrics=metrics)
        originals.on_change(self._original_changed)
        namespaces.on_change(self._use_changed)
        self._worker.namespaces.on_change(self._space_changed)

    @abstractmethod
    def _lists_for(self, namespace: str) -> Iterable[Informer[Unknown]]:
        """Returns the informers that have to be listed before an object of a hub namespace is reconciled."""

    @abstractmethod
    def _desired(self, original: Unknown) -> W | None:
        """Returns the desired mirrors; None when the original has none."""

    @abstractmethod
    async def _write(self, key: Key, wanted: W) -> float | None:
        """Writes what differs; returns the seconds until the next check. Raises Foreign, Unavailable, ApiError."""

    @abstractmethod
    def _mirrors_of(self, key: Key) -> Sequence[tuple[Informer[Unknown], Unknown]]:
        """Returns the mirrors of an original that the worker has, ours alone."""

    @abstractmethod
    def _original_of(self, mirror: Unknown) -> Key | None:
        """Returns the original to which a mirror belongs; None when it names none."""

    @abstractmethod
    def _reconciled(self, key: Key, *, exists: bool) -> None:
        """Notes that an original was reconciled, and whether it exists."""

    async def reconcile(self, key: Key) -> float | None:
        """Creates, updates or deletes the mirrors of one original; returns the seconds until the next check."""
        with bind(original=f"{self._originals.resource} {key}"):
            if not all(each.ever_synced for each in self._lists_for(key.namespace)):
                return NOT_LISTED
            original, wanted = self._originals.store.get(key), None
            if original is not None and self._namespaces.includes(key.namespace):
                wanted = self._desired(original)
            wait = await self._attempt(key, wanted)
            self._reconciled(key, exists=original is not None)
            if wait is None and wanted is not None:
                return self._namespaces.left(key.namespace)
            return wait

    async def _attempt(self, key: Key, wanted: W | None) -> float | None:
        """Writes or deletes, and notes what prevents that; returns the seconds until the next attempt."""
        try:
            wait = await (self._remove(key) if wanted is None else self._write(key, wanted))
        except Foreign as error:
            self._problems[key] = str(error)
        except (Invalid, Forbidden) as error:
            why = error.message if len(error.message) <= _QUOTED else f"{error.message[:_QUOTED]}…"
            named = f"the mirror of {self._originals.resource.kind} {key}"
            text = f"the worker refuses {named}" if wanted is not None else f"{named} is not needed and stays: {error.attempt}"
            self._problems[key] = f"{text}: {why}"
        except Unavailable as error:
            if error.waiting != NOT_PREPARED:
                return error.retry_after
            self._problems[key] = f"{self._title} of namespace {key.namespace} are not mirrored: {error}"
        except (NotFound, Conflict):
            # Without its namespace or the definition of its kind, the list of a mirror is refused too.
            return COALESCED if all(each.synced for each in self._lists_for(key.namespace)) else _REFUSED_FOR
        else:
            self._problems.pop(key, None)
            return wait
        return _RECHECK_AFTER

    async def _remove(self, key: Key) -> float | None:
        """Deletes the mirrors of an original that does not exist or is out of scope, after a live read of it."""
        found = self._mirrors_of(key)
        if not found or not self._scope.shard.is_first:
            return None
        if not (self._scope.virtual.is_complete and self._originals.synced and self._worker.pods.synced):
            return NOT_LISTED
        if self._namespaces.includes(key.namespace) and await self._exists(key):
            return NOT_LISTED
        if await self._used_elsewhere(key.namespace) and await self._exists(key):
            return _USED_AGAIN
        for informer, mirror in found:
            await self._delete(informer, mirror)
        return None

    async def _used_elsewhere(self, namespace: str) -> bool:
        """Checks with a live list whether pods of other shards are in a namespace: they may be about to enter the worker."""
        if self._scope.shard.is_only or not namespace:
            return False
        pods = (await self._scope.host.client.list(PODS, Selection(namespace=namespace, fields="spec.nodeName!="))).items
        nodes = self._scope.hub_nodes.store
        return any(not pod.terminal and not self._scope.owns(pod.node) and nodes.get(Key("", pod.node)) is not None for pod in pods)

    async def _exists(self, key: Key) -> bool:
        """Checks that the original exists in the hub and has a mirror."""
        try:
            return self._desired(await self._scope.host.client.get(self._originals.resource, key)) is not None
        except NotFound:
            return False

    # --- writes ---

    async def _create(self, informer: Informer[Unknown], body: Json, key: Key) -> Unknown | None:
        """Creates a mirror; returns that which exists already, if it is ours. Raises Foreign if it is not."""
        try:
            informer.adopt(await self._worker.client.create(informer.resource, body))
            return None
        except AlreadyExists:
            live = await self._worker.client.get(informer.resource, key_of(body))
        if not self._is_ours(live, key):
            kinds = informer.resource.kind, self._originals.resource.kind
            text = f"{kinds[0]} {live.key} of the worker has another owner and the name that the mirror of {kinds[1]} {key} needs"
            raise Foreign(f"{text}; rename or delete it there")
        return live

    async def _live(self, informer: Informer[Unknown], body: Json, key: Key) -> Unknown | None:
        """Returns the mirror that exists and may have to be changed; None after it was created. Raises Foreign."""
        live = informer.store.get(key_of(body))
        return live if live is not None and self._is_ours(live, key) else await self._create(informer, body, key)

    async def _replace(self, informer: Informer[Unknown], live: Unknown, body: Json) -> None:
        await self._delete(informer, live)
        informer.adopt(await self._worker.client.create(informer.resource, body))

    async def _delete(self, informer: Informer[Unknown], mirror: Unknown) -> None:
        try:
            await self._worker.client.delete(informer.resource, mirror.key, uid=mirror.metadata.uid)
        except NotFound:
            return

    def _is_ours(self, mirror: Unknown, key: Key) -> bool:
        return classify(mirror.metadata, self._worker.mount.owner) is Ownership.OURS and self._original_of(mirror) == key

    # --- events ---

    def _enqueue_namespace(self, namespace: str, *, after: float = 0.0) -> None:
        for original in self._originals.store.by_index(BY_NAMESPACE, namespace):
            self.controller.add(original.key, after=after)

    def _use_changed(self, namespace: str, after: float) -> None:
        self._enqueue_namespace(namespace, after=after)

    def _space_changed(self, change: Change[Unknown]) -> None:
        for namespace in self._namespaces.all:
            if self._worker.mount.namespace_of(namespace) == change.key.name:
                self._enqueue_namespace(namespace)

    def _original_changed(self, change: Change[Unknown]) -> None:
        self.controller.add(change.key, priority=priority_of(change))

    def _mirror_changed(self, change: Change[Unknown]) -> None:
        mirror = change.new or change.old
        key = self._original_of(mirror) if mirror is not None else None
        if mirror is not None and key is not None and self._is_ours(mirror, key):
            self.controller.add(key, after=COALESCED, priority=priority_of(change))


def key_of(body: Json) -> Key:
    """Returns the key of an object that is to be written."""
    return Key(body["metadata"].get("namespace", ""), body["metadata"]["name"])


def refusals(informers: Iterable[Informer[Unknown]]) -> list[str]:
    """Returns why lists are refused, of those that are."""
    return [str(each.last_error) for each in informers if isinstance(each.last_error, REFUSED)]


def failures(informers: Iterable[Informer[Unknown]]) -> list[str]:
    """Returns why lists fail that have never been complete, other than by a refusal."""
    errors = (each.last_error for each in informers if not each.ever_synced)
    return [str(error) for error in errors if error is not None and not isinstance(error, REFUSED)]


def priority_of(change: Change[Unknown]) -> Priority:
    """Returns the priority of a change: the objects of a first list wait."""
    return Priority.LOW if change.initial else Priority.HIGH
