"""Base of the reconcilers of copies: objects of the hub that pods refer to have copies in the worker for as long as pods use them.

Invariant: calls for one original never overlap. A copy is deleted only if it is ours and no virtual pod names its original; our marks on
the original, of which one is a finalizer, are removed after its copy.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakValueDictionary

from attrs import frozen

from kubeocean.copies.bodies import copy_of, is_copy, mark_patch, unmark_patch
from kubeocean.scope import WorkerScope
from vkubelet.api.objects import Key, Unknown
from vkubelet.client.rest import Client, PatchKind
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.workqueue import Priority
from vkubelet.errors import NotFound

_RECHECK_AFTER: Final = 30.0
"""Seconds until a copy that only a virtual pod names is rechecked."""


class OriginalMissing(NotFound):
    """The hub has no such object, or it is being deleted."""


class Mirrored(ABC):
    """Reconciles the copies of one kind; keys are those of the originals in the hub.

    A subclass sets its own attributes first: listeners are called at once for the objects that are cached already.
    """

    def __init__(self, scope: WorkerScope, *, originals: Informer[Unknown], copies: Informer[Unknown], workers: int) -> None:
        self.originals = originals
        self._copies = copies
        self._resource = originals.resource
        self._hub, self._worker = scope.host.client, scope.worker.client
        self._clock = scope.host.clock
        self._mount = scope.worker.mount
        self._shard = scope.shard
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self.controller: Controller[Key] = Controller(
            self._resource.plural, self.reconcile, workers=workers, clock=scope.host.clock, metrics=scope.host.metrics
        )
        originals.on_change(self._original_changed)
        copies.on_change(self._copy_changed)

    @abstractmethod
    async def reconcile(self, key: Key) -> float | None:
        """Creates, updates or deletes the copy; returns the seconds until the next check."""

    @abstractmethod
    async def _delete_copy(self, key: Key, original: Unknown | None) -> float | None:
        """Deletes the copy if it is ours, and removes our marks from the original; returns the seconds until the next check."""

    def _lock(self, key: Key) -> asyncio.Lock:
        """Returns the lock of all calls for one original."""
        return self._locks.setdefault(key, asyncio.Lock())

    async def _original(self, key: Key) -> Unknown | None:
        """Reads the original in the hub; None when it does not exist. Raises ApiError."""
        return await self._found(self._hub, key)

    async def _existing(self, key: Key) -> Unknown:
        """Reads the original in the hub. Raises OriginalMissing, ApiError."""
        original = await self._original(key)
        if original is None:
            raise OriginalMissing(f"get {self._resource} {key}", "it does not exist", status=404)
        return original

    async def _copy(self, key: Key) -> Unknown | None:
        """Reads an object of the worker; None when it does not exist. Raises ApiError."""
        return await self._found(self._worker, key)

    async def _found(self, client: Client, key: Key) -> Unknown | None:
        try:
            return await client.get(self._resource, key)
        except NotFound:
            return None

    async def _mark(self, original: Unknown) -> Unknown:
        """Marks the original as copied by this binding, before the copy is created. Raises ApiError."""
        change = mark_patch(original.metadata, self._mount)
        return original if change is None else await self._hub.patch(self._resource, original.key, change, kind=PatchKind.MERGE)

    async def _unmark(self, original: Unknown | None) -> None:
        """Removes our marks from the original, whose deletion our finalizer may block. Raises ApiError."""
        change = unmark_patch(original.metadata, self._mount) if original is not None else None
        if original is not None and change is not None:
            await self._hub.patch(self._resource, original.key, change, kind=PatchKind.MERGE)

    def _is_copy(self, copy: Unknown, key: Key) -> bool:
        """Checks that an object of the worker is the copy of this original."""
        return is_copy(copy.metadata, key, self._mount.owner)

    def _original_changed(self, change: Change[Unknown]) -> None:
        if self._concerns(change):
            self._enqueue(change.key, change)

    def _concerns(self, change: Change[Unknown]) -> bool:
        """Checks whether a change of an original may concern its copy."""
        return True

    def _copy_changed(self, change: Change[Unknown]) -> None:
        copy = change.new or change.old
        key = copy_of(copy.metadata) if copy is not None else None
        if copy is not None and key is not None and self._is_copy(copy, key):
            self._own_copy_changed(key, change)

    def _own_copy_changed(self, key: Key, change: Change[Unknown]) -> None:
        self._enqueue(key, change)

    def _enqueue(self, key: Key, change: Change[Unknown]) -> None:
        self.controller.add(key, priority=Priority.LOW if change.initial else Priority.HIGH)


@frozen(kw_only=True)
class Naming:
    """Checks whether pods name an original; unknown counts as named."""

    needed: Callable[[Key], bool]
    """By a pod that was synced here."""
    by_a_pod: Callable[[Key], bool]
    """By any pod of the caches."""
    elsewhere: Callable[[Key], Awaitable[bool]]
    """By a pod of another shard, as the hub lists it now."""


class MirroredForPods(Mirrored):
    """Keeps a copy for as long as pods name its original. Of several shards the first one deletes copies."""

    def __init__(
        self,
        scope: WorkerScope,
        *,
        originals: Informer[Unknown],
        copies: Informer[Unknown],
        workers: int,
        naming: Naming,
    ) -> None:
        self._needed = naming.needed
        self._named_by_a_pod = naming.by_a_pod
        self._named_elsewhere = naming.elsewhere
        self._unused: dict[Key, float] = {}
        """When each unused copy was first found unused."""
        self._unused_after = scope.settings.unused_copy_after
        super().__init__(scope, originals=originals, copies=copies, workers=workers)

    def copy_key(self, key: Key) -> Key:
        """Returns the key of the copy of an original in the worker."""
        return self._mount.copy_key(key)

    def _is_concerned(self, key: Key) -> bool:
        """Checks whether this shard keeps the copy up to date: it needs it, or is the first one."""
        return self._shard.is_first or self._needed(key)

    def released(self, key: Key) -> None:
        """Enqueues an original after a pod that named it was deleted."""
        self.controller.add(key, priority=Priority.LOW)

    @property
    def _recheck_after(self) -> float:
        """Seconds; a virtual pod outlives its physical one by a moment, and its deletion triggers no reconcile here."""
        return min(_RECHECK_AFTER, self._unused_after)

    async def _release(self, key: Key, original: Unknown | None = None) -> float | None:
        """Deletes a copy that no pod has named for `unused_after` seconds; returns the seconds until the next check."""
        now = self._clock.monotonic()
        wait = self._unused.setdefault(key, now) + self._unused_after - now
        if wait > 0 and self._may_stay(key):
            return wait
        async with self._lock(key):
            if self._needed(key):
                return 0.0
            if await self._named_elsewhere(key):
                return self._recheck_after
            return await self._delete_copy(key, original)

    def _may_stay(self, key: Key) -> bool:
        """Checks whether an unused copy may stay for a while."""
        return True

    def _is_copy(self, copy: Unknown, key: Key) -> bool:
        return copy.key == self.copy_key(key) and super()._is_copy(copy, key)
