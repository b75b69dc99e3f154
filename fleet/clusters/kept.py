"""Objects that the hub keeps as desired for its clusters: RBAC, namespaces, Leases.

Invariant: an object that contains everything desired is not written, not even by a process that has just started; deletions name the UID.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from vkubelet.api.objects import Json, JsonView, Key, Resource, Unknown
from vkubelet.client.rest import Client, PatchKind
from vkubelet.control.informer import Change, Informer
from vkubelet.errors import AlreadyExists, NotFound
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

_SETS = ("finalizers", "ownerReferences")
"""Fields of metadata whose entries belong to several clients."""
_HEAD = ("apiVersion", "kind", "metadata")


def contains(live: object, desired: object) -> bool:
    """Checks that the desired fields have their values; a list must be equal."""
    if isinstance(desired, Mapping):
        return isinstance(live, Mapping) and all(contains(live.get(name), value) for name, value in desired.items())
    return live == desired


def is_kept(live: JsonView, desired: JsonView) -> bool:
    """Checks that an object needs no write. The spec of a Lease belongs to the client that renews it."""
    metadata, wanted = live["metadata"], dict(desired["metadata"])
    listed = {name: wanted.pop(name) for name in _SETS if name in wanted}
    if any(not contains_each(metadata.get(name) or (), entries) for name, entries in listed.items()):
        return False
    rest = {} if desired["kind"] == "Lease" else {name: value for name, value in desired.items() if name not in _HEAD}
    return contains(metadata, wanted) and contains(live, rest)


def contains_each(live: Iterable[object], desired: Iterable[object]) -> bool:
    """Checks that each desired entry is contained in one that exists."""
    found = list(live)
    return all(any(contains(each, entry) for each in found) for entry in desired)


class KeptObjects:
    """Writes these objects from the caches of `informers`, which must be synced before."""

    def __init__(self, client: Client, informers: Iterable[Informer[Unknown]]) -> None:
        self._client = client
        self._informers = {each.resource.kind: each for each in informers}

    def on_change(self, listener: Callable[[Unknown], None]) -> None:
        """Registers `listener(object)` for each change of a kept object, except renewals of Leases."""
        for informer in self._informers.values():
            informer.on_change(partial(_notify, listener, informer.resource))

    def get(self, resource: Resource[Unknown], name: str, namespace: str = "") -> Unknown | None:
        return self._informers[resource.kind].store.get(Key(namespace, name))

    async def keep(self, desired: Sequence[Json]) -> list[Json]:
        """Creates and corrects objects in their order; returns those that were written. Raises ApiError."""
        return [body for body in desired if await self._keep(body)]

    async def _keep(self, body: Json) -> bool:
        informer = self._informers[body["kind"]]
        key = Key(body["metadata"].get("namespace", ""), body["metadata"]["name"])
        live = informer.store.get(key)
        if live is not None and (live.metadata.deletion_timestamp is not None or _is_bound_elsewhere(live, body)):
            await self.delete(informer.resource, live)
            await self.release(informer.resource, live, body["metadata"].get("finalizers", ()))
            live = None
        if live is not None and is_kept(live.body, body):
            return False
        informer.adopt(await self._write(informer.resource, body, exists=live is not None))
        return True

    async def _write(self, resource: Resource[Unknown], body: Json, *, exists: bool) -> Unknown:
        """Creates an object by POST, which costs the API server a fraction of an apply, or corrects one. Raises ApiError."""
        try:
            return await (self._client.apply if exists else self._client.create)(resource, body)
        except AlreadyExists:
            # The caches contain labelled objects alone. A namespace of another client is not adopted.
            if body["kind"] == "Namespace":
                raise
        return await self._client.apply(resource, body)

    async def delete(self, resource: Resource[Unknown], obj: Unknown) -> None:
        """Deletes an object unless that is requested already. Raises ApiError, Conflict for one that has been replaced by another."""
        if obj.metadata.deletion_timestamp is not None:
            return
        try:
            await self._client.delete(resource, obj.key, uid=obj.metadata.uid, propagation="Background")
        except NotFound:
            with bind(object=f"{resource.kind} {obj.key}"):
                log.debug("deleted already")

    async def release(self, resource: Resource[Unknown], obj: Unknown, finalizers: Collection[str]) -> None:
        """Removes finalizers of an object. Raises ApiError."""
        left = [each for each in obj.metadata.finalizers if each not in finalizers]
        if len(left) == len(obj.metadata.finalizers):
            return
        try:
            # A merge patch without a resourceVersion: a deletion that was requested just now has changed it.
            change = {"metadata": {"uid": obj.metadata.uid, "finalizers": left}}
            await self._client.patch(resource, obj.key, change, kind=PatchKind.MERGE)
        except NotFound:
            with bind(object=f"{resource.kind} {obj.key}"):
                log.debug("deleted already")


def _is_bound_elsewhere(live: Unknown, body: Json) -> bool:
    """Checks for a binding of another role, which no write can change."""
    return "roleRef" in body and live.body.get("roleRef") != body["roleRef"]


def _notify(listener: Callable[[Unknown], None], resource: Resource[Unknown], change: Change[Unknown]) -> None:
    obj = change.new or change.old
    renewed = resource.kind == "Lease" and change.old is not None and change.new is not None
    if obj is not None and not renewed:
        listener(obj)
