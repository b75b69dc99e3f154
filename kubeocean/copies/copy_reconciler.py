"""Reconciles copies of hub ConfigMaps and Secrets in the mount namespace: created before a pod needs them, kept equal, deleted when unused.

Invariant: a copy is written only when it differs, only if its owner mark is ours, and deleted only while no virtual pod names its original.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from weakref import WeakValueDictionary

from attrs import field, frozen

from kubeocean.copies import marks
from kubeocean.copies.bodies import copy_of, same_content
from kubeocean.model import keys
from kubeocean.worker.cluster import Mount
from vkubelet.api.objects import Key, Unknown
from vkubelet.api.shapes import Json
from vkubelet.client.resources import Resource
from vkubelet.client.rest import Client, PatchKind
from vkubelet.clock import Clock
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.workqueue import Priority
from vkubelet.errors import AlreadyExists, Conflict, NotFound, Unavailable
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics

log = logging.getLogger(__name__)

_LOOK_AGAIN = 30.0
"""Seconds until a copy that only a virtual pod names is rechecked."""


@frozen
class CopyKind:
    """Differences between ConfigMaps and Secrets: their resource, and how a copy is rendered.

    `made_with` returns the content of a copy that is not from its original.
    """

    resource: Resource[Unknown]
    render: Callable[[Unknown], Json]
    made_with: Callable[[Key], str] = field(default=lambda key: "", kw_only=True)


@frozen(kw_only=True)
class CopyParts:
    """Dependencies of one copy reconciler; `originals` and `copies` cache objects without their content."""

    hub: Client
    worker: Client
    originals: Informer[Unknown]
    copies: Informer[Unknown]
    mount: Mount
    needed: Callable[[Key], bool]
    named_by_a_pod: Callable[[Key], bool]
    clock: Clock
    metrics: Metrics
    unused_after: float


@frozen
class _Written:
    """Version of the original that a copy contains, the other content, and the uid and version of that copy."""

    original: str
    made_with: str
    copy_uid: str
    copy_version: str


class CopyReconciler:
    """Keeps the copies of one kind; keys are those of the originals in the hub."""

    def __init__(self, kind: CopyKind, parts: CopyParts) -> None:
        self._kind = kind
        self._parts = parts
        self._written: dict[Key, _Written] = {}
        self._unused: dict[Key, float] = {}
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self.controller: Controller[Key] = Controller(
            kind.resource.plural, self.reconcile, workers=8, clock=parts.clock, metrics=parts.metrics
        )
        parts.originals.on_change(self._original_changed)
        parts.copies.on_change(self._copy_changed)

    def copy_key(self, key: Key) -> Key:
        """Returns the key of the copy of an original in the worker."""
        return self._parts.mount.copy_key(key)

    def released(self, key: Key) -> None:
        """Enqueues an original after a pod that named it was deleted."""
        self.controller.add(key, priority=Priority.LOW)

    def recheck(self) -> None:
        """Enqueues the copies in which content that is not from their originals has changed."""
        for key, written in self._written.items():
            if written.made_with != self._kind.made_with(key):
                self.controller.add(key)

    async def ensure(self, key: Key) -> None:
        """Creates or updates the copy. Raises NotFound when the original does not exist, Unavailable when the name is taken."""
        if self._fresh(key):
            return
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            if not self._fresh(key):
                await self._write(key)

    async def reconcile(self, key: Key) -> float | None:
        """Updates the copy if a pod needs it, else deletes it after `unused_after`; returns the seconds until the next check."""
        with bind(object=str(key)):
            needed = self._parts.needed(key)
            if not needed and not self._parts.named_by_a_pod(key):
                return await self._release(key)
            self._unused.pop(key, None)
            if not needed and not self._has_copy(key):
                # Marked by an earlier process; whether a pod needs it is known once all pods are listed.
                return min(_LOOK_AGAIN, self._parts.unused_after)
            try:
                await self.ensure(key)
            except NotFound as error:
                if not error.attempt.startswith("get "):
                    raise
                await self._delete_copy(key)
                return None
            # A virtual pod outlives its physical one by a moment, and its deletion triggers no reconcile here.
            return None if needed else min(_LOOK_AGAIN, self._parts.unused_after)

    def _fresh(self, key: Key) -> bool:
        head, written = self._parts.originals.store.get(key), self._written.get(key)
        return (
            head is not None
            and written is not None
            and head.metadata.resource_version == written.original
            and self._kind.made_with(key) == written.made_with
            and self._parts.originals.synced
            and not head.metadata.deletion_timestamp
        )

    def _original_changed(self, change: Change[Unknown]) -> None:
        known = self._parts.needed(change.key) or change.key in self._written or self._has_copy(change.key)
        if known or change.new is not None and keys.synced_by(self._parts.mount.owner.cluster_id) in change.new.metadata.labels:
            self.controller.add(change.key, priority=Priority.LOW if change.initial else Priority.HIGH)

    def _copy_changed(self, change: Change[Unknown]) -> None:
        copy = change.new or change.old
        key = copy_of(copy.metadata) if copy is not None else None
        if copy is None or key is None or not self._is_copy(copy, key):
            return
        written = self._written.get(key)
        if change.new is not None and written is not None and change.new.metadata.resource_version == written.copy_version:
            return
        self._written.pop(key, None)
        self.controller.add(key, priority=Priority.LOW if change.initial else Priority.HIGH)

    def _is_copy(self, copy: Unknown, key: Key) -> bool:
        """Checks that a copy is ours, and of this original.

        The name is a hash, so it is not enough; a copy whose annotations were removed names no other original.
        """
        return copy.key == self.copy_key(key) and self._parts.mount.owner.owns(copy.metadata) and copy_of(copy.metadata) in (None, key)

    def _is_unowned_copy(self, copy: Unknown, key: Key) -> bool:
        """Checks for a copy of exactly this original by Kubeocean (Go), which set no owners: it is adopted."""
        return keys.is_managed(copy.metadata) and keys.Owner.of(copy.metadata) is None and copy_of(copy.metadata) == key

    def _has_copy(self, key: Key) -> bool:
        return self._parts.copies.store.get(self.copy_key(key)) is not None

    async def _write(self, key: Key) -> None:
        resource = self._kind.resource
        original = await self._parts.hub.get(resource, key)
        if original.metadata.deletion_timestamp:
            raise NotFound(f"get {resource} {key}", "it is being deleted", status=404)
        original = await self._mark(original)
        made_with, wanted = self._kind.made_with(key), self._kind.render(original)
        copy = None if self._has_copy(key) else await self._create(wanted)
        if copy is None:
            copy = await self._update(key, wanted)
        self._written[key] = _Written(original.metadata.resource_version, made_with, copy.metadata.uid, copy.metadata.resource_version)
        # The watches will deliver the same in a moment; until then other pods that need it would cause requests to both clusters again.
        self._parts.originals.adopt(original)
        self._parts.copies.adopt(copy)

    async def _mark(self, original: Unknown) -> Unknown:
        change = marks.added(original.metadata, self._parts.mount)
        if change is None:
            return original
        return await self._parts.hub.patch(self._kind.resource, original.key, change, kind=PatchKind.MERGE)

    async def _create(self, wanted: Json) -> Unknown | None:
        try:
            return await self._parts.worker.create(self._kind.resource, wanted)
        except AlreadyExists:
            return None

    async def _update(self, key: Key, wanted: Json) -> Unknown:
        resource, worker = self._kind.resource, self._parts.worker
        try:
            copy = await worker.get(resource, self.copy_key(key))
        except NotFound:
            return await worker.create(resource, wanted)
        if not self._is_copy(copy, key) and not self._is_unowned_copy(copy, key):
            raise Unavailable(f"{resource.kind} {copy.key} of the worker cluster belongs to somebody else; rename or delete it there")
        if same_content(wanted, copy.body):
            return copy
        if resource.kind == "Secret" and copy.body.get("type") != wanted.get("type"):
            # The type of a Secret is immutable.
            await worker.delete(resource, copy.key, uid=copy.metadata.uid)
            return await worker.create(resource, wanted)
        wanted["metadata"]["resourceVersion"] = copy.metadata.resource_version
        return await worker.replace(resource, wanted)

    async def _release(self, key: Key) -> float | None:
        since = self._unused.setdefault(key, self._parts.clock.monotonic())
        wait = since + self._parts.unused_after - self._parts.clock.monotonic()
        if wait > 0 and (self._has_copy(key) or key in self._written) and not self._is_deleted(key):
            return wait
        self._unused.pop(key, None)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if self._parts.needed(key):
                return 0.0
            await self._delete_copy(key)
        return None

    def _is_deleted(self, key: Key) -> bool:
        """Checks whether the original is being deleted and waits for our finalizer."""
        original = self._parts.originals.store.get(key)
        return original is not None and original.metadata.deletion_timestamp is not None

    async def _delete_copy(self, key: Key) -> None:
        """Deletes the copy if it is ours, then removes our marks from the original, whose deletion our finalizer may block."""
        resource = self._kind.resource
        self._written.pop(key, None)
        try:
            copy = await self._parts.worker.get(resource, self.copy_key(key))
            if self._is_copy(copy, key):
                await self._parts.worker.delete(resource, copy.key, uid=copy.metadata.uid, resource_version=copy.metadata.resource_version)
                log.debug("unused copy deleted")
        except NotFound:
            log.debug("copy is gone already")
        try:
            original = await self._parts.hub.get(resource, key)
            change = marks.removed(original.metadata, self._parts.mount)
            if change is not None:
                await self._parts.hub.patch(resource, key, change, kind=PatchKind.MERGE)
        except (NotFound, Conflict):
            return
