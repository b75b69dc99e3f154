"""Reconciles copies of hub ConfigMaps and Secrets in the mount namespace: created before a pod needs them, kept equal, deleted when unused.

Invariant: a copy is written only when it differs, only if its owner mark is ours, and deleted only while no virtual pod names its original.
"""

import logging
from collections.abc import Callable

from attrs import field, frozen

from kubeocean.copies.bodies import copy_of, is_copy, same_content
from kubeocean.copies.mirrored import MirroredForPods, Naming, OriginalMissing
from kubeocean.model import keys
from kubeocean.model.ownership import Ownership, classify
from kubeocean.scope import WorkerScope
from vkubelet.api.objects import SECRETS, Json, Key, Unknown
from vkubelet.control.informer import Change, Informer
from vkubelet.errors import AlreadyExists, Conflict, NotFound, Unavailable
from vkubelet.logformat import bind

log = logging.getLogger(__name__)


@frozen
class CopyKind:
    """Differences between ConfigMaps and Secrets: how a copy is rendered, and its content that is not from its original."""

    render: Callable[[Unknown], Json]
    made_with: Callable[[Key], str] = field(default=lambda key: "", kw_only=True)


@frozen
class _Written:
    """Version of the original that a copy contains, the other content, and the uid and version of that copy."""

    original: str
    made_with: str
    copy_uid: str
    copy_version: str


class CopyReconciler(MirroredForPods):
    """Keeps the copies of one kind; `originals` and `copies` cache objects without their content."""

    def __init__(
        self,
        kind: CopyKind,
        scope: WorkerScope,
        *,
        originals: Informer[Unknown],
        copies: Informer[Unknown],
        naming: Naming,
    ) -> None:
        self._kind = kind
        self._written: dict[Key, _Written] = {}
        super().__init__(scope, originals=originals, copies=copies, workers=8, naming=naming)

    def recheck(self) -> None:
        """Enqueues the copies in which content that is not from their originals has changed."""
        for key, written in self._written.items():
            if written.made_with != self._kind.made_with(key):
                self.controller.add(key)

    async def ensure(self, key: Key) -> None:
        """Creates or updates the copy. Raises OriginalMissing, or Unavailable when another owner has the name of the copy."""
        if self._fresh(key):
            return
        async with self._lock(key):
            if not self._fresh(key):
                await self._write(key)

    async def reconcile(self, key: Key) -> float | None:
        """Updates the copy if a pod needs it, else deletes it after `unused_after`; returns the seconds until the next check."""
        with bind(object=str(key)):
            if not self._is_concerned(key):
                return None
            needed = self._needed(key)
            if not needed and not self._named_by_a_pod(key):
                return await self._release(key)
            self._unused.pop(key, None)
            if not needed and not self._has_copy(key):
                # Marked by an earlier process; whether a pod needs it is known once all pods are listed.
                return self._recheck_after
            try:
                await self.ensure(key)
            except OriginalMissing:
                return await self._delete_copy(key, None)
            return None if needed else self._recheck_after

    def _fresh(self, key: Key) -> bool:
        head, written = self.originals.store.get(key), self._written.get(key)
        return (
            head is not None
            and written is not None
            and head.metadata.resource_version == written.original
            and self._kind.made_with(key) == written.made_with
            and self.originals.synced
            and not head.metadata.deletion_timestamp
        )

    def _concerns(self, change: Change[Unknown]) -> bool:
        if self._needed(change.key) or change.key in self._written or self._has_copy(change.key):
            return True
        return change.new is not None and keys.synced_by(self._mount.owner.cluster_id) in change.new.metadata.labels

    def _own_copy_changed(self, key: Key, change: Change[Unknown]) -> None:
        written = self._written.get(key)
        if change.new is not None and written is not None and change.new.metadata.resource_version == written.copy_version:
            return
        self._written.pop(key, None)
        self._enqueue(key, change)

    def _is_copy(self, copy: Unknown, key: Key) -> bool:
        """Checks that a copy is ours, and of this original.

        The name is a hash, so it is not enough; a copy whose annotations were removed names no other original.
        """
        owned = classify(copy.metadata, self._mount.owner) is Ownership.OURS
        return owned and copy.key == self.copy_key(key) and copy_of(copy.metadata) in (None, key)

    def _has_copy(self, key: Key) -> bool:
        return self._copies.store.get(self.copy_key(key)) is not None

    async def _write(self, key: Key) -> None:
        original = await self._existing(key)
        if original.metadata.deletion_timestamp:
            raise OriginalMissing(f"get {self._resource} {key}", "it is being deleted", status=404)
        original = await self._mark(original)
        made_with, desired = self._kind.made_with(key), self._kind.render(original)
        # Until the copies are listed one may exist, of a process before; then it is read first.
        may_exist = self._has_copy(key) or not self._copies.ever_synced
        copy = None if may_exist else await self._create(desired)
        if copy is None:
            copy = await self._update(key, desired)
        self._written[key] = _Written(original.metadata.resource_version, made_with, copy.metadata.uid, copy.metadata.resource_version)
        # The watches will deliver the same in a moment; until then other pods that need it would cause requests to both clusters again.
        self.originals.adopt(original)
        self._copies.adopt(copy)

    async def _create(self, desired: Json) -> Unknown | None:
        try:
            return await self._worker.create(self._resource, desired)
        except AlreadyExists:
            return None

    async def _update(self, key: Key, desired: Json) -> Unknown:
        copy = await self._copy(self.copy_key(key))
        if copy is None:
            return await self._worker.create(self._resource, desired)
        if not self._is_copy(copy, key) and not is_copy(copy.metadata, key, self._mount.owner):
            text = f"{self._resource.kind} {copy.key} of the worker cluster has another owner and the name that the copy of {key} needs"
            raise Unavailable(f"{text}; rename or delete it there")
        if same_content(desired, copy.body):
            return copy
        if self._resource.kind == SECRETS.kind and copy.body.get("type") != desired.get("type"):
            # The type of a Secret is immutable.
            await self._worker.delete(self._resource, copy.key, uid=copy.metadata.uid)
            return await self._worker.create(self._resource, desired)
        desired["metadata"]["resourceVersion"] = copy.metadata.resource_version
        return await self._worker.replace(self._resource, desired)

    def _may_stay(self, key: Key) -> bool:
        """Keeps no copy of an original that is being deleted and waits for our finalizer."""
        original = self.originals.store.get(key)
        is_deleted = original is not None and original.metadata.deletion_timestamp is not None
        return (self._has_copy(key) or key in self._written) and not is_deleted

    async def _delete_copy(self, key: Key, original: Unknown | None) -> float | None:
        self._unused.pop(key, None)
        self._written.pop(key, None)
        try:
            copy = await self._copy(self.copy_key(key))
            if copy is not None and self._is_copy(copy, key):
                meta = copy.metadata
                await self._worker.delete(self._resource, copy.key, uid=meta.uid, resource_version=meta.resource_version)
                log.debug("unused copy deleted")
        except NotFound:
            log.debug("copy is deleted already")
        try:
            await self._unmark(await self._original(key))
        except (NotFound, Conflict):
            log.debug("original was deleted or changed meanwhile; the watch enqueues it again")
        return None
