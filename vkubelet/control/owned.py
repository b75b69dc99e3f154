"""The objects that a controller creates for objects of one kind, their owners: watched, applied, pruned and deleted.

Invariant: an object that has another owner is never changed; deletions name the UID.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from attrs import field, frozen

from vkubelet.api.objects import Json, Key, KubeObject, ObjectMeta, Resource, Unknown
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.errors import Conflict, NotFound, VKubeletError
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics

log = logging.getLogger(__name__)

_BY_OWNER = "owner"


class ForeignObject(VKubeletError):
    """An object of the desired name has another owner."""


@frozen
class DesiredObject:
    """Desired state of one object; equal digests mean equal desired states."""

    resource: Resource[Unknown]
    body: Json = field(repr=False)
    digest: str

    @property
    def key(self) -> Key:
        metadata = self.body["metadata"]
        return Key(metadata.get("namespace", ""), metadata["name"])


@frozen(kw_only=True)
class OwnerKind:
    """A kind that owns objects, the annotation of each object that was applied for one, and the remedy for an object of another owner."""

    name: str
    applied: str
    remedy: str

    def uid_of(self, meta: ObjectMeta) -> str:
        """Returns the UID of the controlling owner, or of an owner of the kind."""
        return next((each.uid for each in meta.owner_references if each.controller or each.kind == self.name), "")

    def names_of(self, obj: KubeObject | None) -> Sequence[str]:
        """Returns the names of the owners of the kind."""
        references = obj.metadata.owner_references if obj is not None else ()
        return [each.name for each in references if each.kind == self.name]


class OwnedObjects:
    """Caches and writes these objects. `run` it in a task group, and `wait_synced` before any other call."""

    def __init__(
        self, client: Client, owner: OwnerKind, *, followed: Mapping[Resource[Unknown], Selection], clock: Clock, metrics: Metrics
    ) -> None:
        self._client = client
        self._owner = owner
        self._listeners: list[Callable[[str], None]] = []
        self._applied: dict[tuple[str, Key], tuple[str, str, str]] = {}
        self._resources = {each.plural: each for each in followed}
        self._informers: dict[str, Informer[Unknown]] = {}
        for resource, where in followed.items():
            store: Store[Unknown] = Store(indexes={_BY_OWNER: lambda obj: (owner.uid_of(obj.metadata),)})
            informer = Informer(client, resource, where=where, store=store, clock=clock, metrics=metrics)
            informer.on_change(self._changed)
            self._informers[resource.plural] = informer

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Registers `listener(name of the owner)` for each change of an object of an owner."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Runs the watches until cancelled."""
        async with asyncio.TaskGroup() as group:
            for plural, informer in self._informers.items():
                group.create_task(informer.run(), name=f"{plural} of {self._owner.name}")

    @property
    def ever_synced(self) -> bool:
        """Whether each kind was listed completely once."""
        return all(informer.ever_synced for informer in self._informers.values())

    async def wait_synced(self) -> None:
        """Waits until each kind was listed completely once."""
        for informer in self._informers.values():
            await informer.wait_synced()

    def get(self, resource: Resource[Unknown], key: Key) -> Unknown | None:
        """Returns the cached object, also one of another owner."""
        return self._informers[resource.plural].store.get(key)

    async def apply(self, wanted: Sequence[DesiredObject]) -> bool:
        """Applies the desired objects; returns whether a write was necessary. Raises ApiError, ForeignObject."""
        wrote = False
        for each in wanted:
            wrote = await self._apply(each) or wrote
        return wrote

    async def prune(self, uid: str, wanted: Collection[DesiredObject]) -> None:
        """Deletes the objects that were applied for the owner with this UID and are not desired any more. Raises ApiError."""
        kept = {(each.resource.plural, each.key) for each in wanted}
        for resource, obj in list(self._of(uid)):
            if (resource.plural, obj.key) not in kept and self._owner.applied in obj.metadata.annotations:
                await self.delete(resource, obj)

    async def remove(self, uid: str) -> None:
        """Deletes everything of the owner with this UID, kind by kind. Objects that are already deleted are no error. Raises ApiError."""
        for resource, obj in list(self._of(uid)):
            await self.delete(resource, obj)

    async def delete(self, resource: Resource[Unknown], obj: Unknown) -> None:
        """Deletes exactly this object, and what it owns. Raises ApiError."""
        self._applied.pop((resource.plural, obj.key), None)
        try:
            await self._client.delete(resource, obj.key, uid=obj.metadata.uid, propagation="Background")
        except NotFound:
            log.debug("deleted already")
        except Conflict:
            # Another object has the name by now.
            log.debug("replaced already")

    def must_replace(self, wanted: DesiredObject, live: Unknown) -> bool:
        """Whether an apply cannot turn this object of ours into the desired one, so that it is deleted first."""
        return False

    def notify(self, obj: KubeObject | None) -> None:
        """Notifies the listeners of the owners of an object."""
        for name in self._owner.names_of(obj):
            for listener in self._listeners:
                listener(name)

    def _of(self, uid: str) -> Iterator[tuple[Resource[Unknown], Unknown]]:
        for plural, informer in self._informers.items():
            for obj in informer.store.by_index(_BY_OWNER, uid):
                yield self._resources[plural], obj

    async def _apply(self, wanted: DesiredObject) -> bool:
        informer = self._informers[wanted.resource.plural]
        live = informer.store.get(wanted.key) or await self._unlabelled(wanted)
        mark = (wanted.resource.plural, wanted.key)
        if live is not None and self._applied.get(mark) == (wanted.digest, live.metadata.uid, _state(live)):
            return False
        if live is not None:
            await self._clear_way(wanted, live)
        made = await self._client.apply(wanted.resource, wanted.body)
        self._applied[mark] = (wanted.digest, made.metadata.uid, _state(made))
        informer.adopt(made)
        return live is None or made.metadata.resource_version != live.metadata.resource_version

    async def _unlabelled(self, wanted: DesiredObject) -> Unknown | None:
        """Reads the object live: one of another owner may have no label of ours, so it is not watched."""
        try:
            return await self._client.get(wanted.resource, wanted.key)
        except NotFound:
            return None

    async def _clear_way(self, wanted: DesiredObject, live: Unknown) -> None:
        """Deletes an object that cannot be updated in place. Raises ForeignObject."""
        what = f"{wanted.resource.kind} {wanted.key}"
        if self._owner.uid_of(live.metadata) not in ("", wanted.body["metadata"]["ownerReferences"][0]["uid"]):
            raise ForeignObject(f"{what} belongs to another owner; {self._owner.remedy}")
        if self.must_replace(wanted, live):
            with bind(object=what):
                log.info("replacing an object that cannot be updated in place")
            await self.delete(wanted.resource, live)

    def _changed(self, change: Change[Unknown]) -> None:
        for obj in (change.old, change.new):
            self.notify(obj)


def _state(obj: Unknown) -> str:
    """Returns what changes with the spec of an object: the generation where it has one, else the resourceVersion."""
    return str(obj.metadata.generation or obj.metadata.resource_version)
