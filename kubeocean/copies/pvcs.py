"""Reconciles claims of pods: copies of hub PersistentVolumeClaims in the mount namespace, bound by name to the copy of their volume.

Invariant: a claim is copied to the worker only when it is bound in the hub, and its copy exists for as long as a pod may use it; a claim
that is being deleted in the hub keeps our finalizer until its copy is deleted in the worker, so that mounted storage is never deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from attrs import frozen

from kubeocean.copies import marks
from kubeocean.copies.bodies import copy_of, marked_copy, missing_marks
from kubeocean.copies.pvs import VolumeReconciler
from kubeocean.copies.volumes import names_volume
from kubeocean.model import keys
from kubeocean.worker.cluster import WorkerCluster, claim_of
from vkubelet.api.objects import Key, Unknown
from vkubelet.api.quantity import Quantity
from vkubelet.api.shapes import Json, JsonView
from vkubelet.client.resources import PVCS
from vkubelet.client.rest import PatchKind, Selection
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.control.workqueue import Priority
from vkubelet.errors import AlreadyExists, NotFound, Unavailable
from vkubelet.logformat import bind
from vkubelet.provider import Host

log = logging.getLogger(__name__)

_NOT_BOUND_AGAIN: Final = 5.0
_ENDS_SOON: Final = 2.0
_LOOK_AGAIN: Final = 30.0
"""Seconds until a copy that only a virtual pod names is rechecked."""
_STORAGE: Final = "storage"
_ON_THE_NODE: Final = "NodeResize"
_PENDING: Final = "FileSystemResizePending"
_OF_A_RESIZE: Final = frozenset({_PENDING, "Resizing", "ControllerResizeError", "NodeResizeError"})
"""Conditions that mean nothing when a claim has its new size."""
_LEFT_AT_HOME: Final = ("storageClassName", "dataSource", "dataSourceRef", "selector", "volumeAttributesClassName")


def physical_claim(obj: Unknown, volume: str, *, owner: keys.Owner, namespace: str) -> Json:
    """Returns the copy of a bound claim: without a class, bound by name to `volume` (pure)."""
    there: JsonView = obj.body.get("spec") or {}
    spec: Json = {name: value for name, value in there.items() if name not in _LEFT_AT_HOME}
    # Absent would mean the worker's default class.
    spec |= {"storageClassName": "", "volumeName": volume}
    body = marked_copy(PVCS.kind, obj.metadata, owner, namespace=namespace)
    body["metadata"]["annotations"][keys.VIRTUAL_VOLUME] = there.get("volumeName") or ""
    return {**body, "spec": spec}


def unbound(obj: Unknown) -> str:
    """Returns why no pod can use this claim now, "" when one can."""
    body, meta = obj.body, obj.metadata
    phase = (body.get("status") or {}).get("phase") or "Pending"
    if meta.deletion_timestamp:
        return f"PersistentVolumeClaim {meta.key} is being deleted"
    if phase != "Bound" or not (body.get("spec") or {}).get("volumeName"):
        return f"PersistentVolumeClaim {meta.key} is not bound to a volume yet (it is {phase})"
    return ""


def expanded(original: Unknown, copy: Unknown) -> Json | None:
    """Returns the merge patch of the claim's status after the file system has grown, as a kubelet of the hub would write it (pure).

    None before that, and until the status in the hub reports that only the resize on the node is pending.
    """
    status, meta = original.body.get("status") or {}, original.metadata
    stage = (status.get("allocatedResourceStatuses") or {}).get(_STORAGE, "")
    conditions = status.get("conditions") or ()
    if not stage.startswith(_ON_THE_NODE) and not any(each["type"] == _PENDING for each in conditions):
        return None
    has, had = _storage(copy, "capacity"), _storage(original, "capacity")
    if has <= had or has < _storage(original, "allocatedResources"):
        return None
    left = [each for each in conditions if each["type"] not in _OF_A_RESIZE]
    capacity = {_STORAGE: copy.body["status"]["capacity"][_STORAGE]}
    return {
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "status": {"capacity": capacity, "allocatedResourceStatuses": {_STORAGE: None}, "conditions": left},
    }


def _storage(claim: Unknown, field: str) -> Quantity:
    return Quantity.parse(((claim.body.get("status") or {}).get(field) or {}).get(_STORAGE, "0"))


@frozen(kw_only=True)
class ClaimParts:
    """Dependencies of the reconciler; `needed` and `named_by_a_pod` return whether a claim of the hub is in use."""

    host: Host
    worker: WorkerCluster
    volumes: VolumeReconciler
    needed: Callable[[Key], bool]
    named_by_a_pod: Callable[[Key], bool]
    unused_after: float


class ClaimReconciler:
    """Controller whose keys are PersistentVolumeClaims of the hub."""

    def __init__(self, parts: ClaimParts) -> None:
        self._parts = parts
        self._unused: dict[Key, float] = {}
        self._volumes: dict[Key, str] = {}
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        label = keys.synced_by(parts.worker.mount.owner.cluster_id)
        self.originals: Informer[Unknown] = Informer(
            parts.host.client,
            PVCS,
            where=Selection(labels=f"{label}=true"),
            store=Store(keep=claim_of),
            clock=parts.host.clock,
            metrics=parts.host.metrics,
        )
        self.controller: Controller[Key] = Controller(
            PVCS.plural, self.reconcile, workers=4, clock=parts.host.clock, metrics=parts.host.metrics
        )
        self.originals.on_change(self._original_changed)
        parts.worker.claims.on_change(self._copy_changed)

    def released(self, key: Key) -> None:
        """Enqueues a claim after a pod that named it was deleted."""
        self.controller.add(key, priority=Priority.LOW)

    async def ensure(self, key: Key) -> None:
        """Creates claim and volume in the worker. Raises NotFound when there is no such claim, Unavailable while it is not usable."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            original = await self._parts.host.client.get(PVCS, key)
            if problem := unbound(original):
                raise Unavailable(problem, retry_after=_NOT_BOUND_AGAIN, event="FailedMount", waiting="ContainerCreating")
            await self._ensure(original)

    async def reconcile(self, key: Key) -> float | None:
        """Keeps the copy while a pod needs it, and deletes it after `unused_after`, or with its original.

        Returns the seconds until the next check.
        """
        with bind(object=str(key)):
            original = await self._original(key)
            if original is None or original.metadata.deletion_timestamp:
                async with self._locks.setdefault(key, asyncio.Lock()):
                    return await self._end(key, original)
            needed = self._parts.needed(key)
            if not needed and not self._parts.named_by_a_pod(key):
                return await self._release(key, original)
            self._unused.pop(key, None)
            if not unbound(original):
                async with self._locks.setdefault(key, asyncio.Lock()):
                    await self._ensure(original)
                    await self._tell_expanded(original)
            # A virtual pod outlives its physical one by a moment, and its deletion triggers no reconcile here.
            return None if needed else min(_LOOK_AGAIN, self._parts.unused_after)

    async def _ensure(self, original: Unknown) -> None:
        key, worker, mount = original.key, self._parts.worker, self._parts.worker.mount
        volume = str(original.body["spec"]["volumeName"])
        there = await self._there(key)
        if there is not None:
            await self._usable(there, key, volume=volume)
        self._volumes[key] = volume
        named = await self._parts.volumes.ensure(volume, mount.copy_key(key), claim_uid=there.metadata.uid if there is not None else "")
        change = marks.added(original.metadata, mount)
        if change is not None:
            original = await self._parts.host.client.patch(PVCS, key, change, kind=PatchKind.MERGE)
        wanted = physical_claim(original, named, owner=mount.owner, namespace=mount.namespace)
        if there is not None:
            await self._mark(there, wanted)
            return
        try:
            worker.claims.adopt(await worker.client.create(PVCS, wanted))
        except AlreadyExists:
            raise Unavailable(f"the copy of PersistentVolumeClaim {key} has just appeared", retry_after=0.2) from None

    async def _tell_expanded(self, original: Unknown) -> None:
        """Reports the new size in the claim's status; a write of `_ensure` just before causes a conflict, and a retry."""
        copy = self._parts.worker.claims.store.get(self._parts.worker.mount.copy_key(original.key))
        change = expanded(original, copy) if copy is not None else None
        if change is not None:
            await self._parts.host.client.patch(PVCS, original.key, change, kind=PatchKind.MERGE, subresource="status")
            log.debug("claim has its new size")

    async def _usable(self, there: Unknown, key: Key, *, volume: str) -> None:
        """Raises Unavailable for a copy that belongs to another owner, is terminating, or is that of an earlier claim."""
        if not self._is_copy(there, key):
            text = f"PersistentVolumeClaim {there.key} of the worker cluster belongs to somebody else; rename or delete it there"
            raise Unavailable(text, retry_after=30.0)
        lost = (there.body.get("status") or {}).get("phase") == "Lost"
        if not there.metadata.deletion_timestamp and (lost or not names_volume(there, volume)):
            await self._parts.worker.client.delete(PVCS, there.key, uid=there.metadata.uid)
            there = await self._there(key) or there
        elif not there.metadata.deletion_timestamp:
            return
        text = f"an earlier copy of PersistentVolumeClaim {key} is still ending in the worker cluster"
        raise Unavailable(text, retry_after=_ENDS_SOON, event="FailedMount", waiting="ContainerCreating")

    async def _mark(self, there: Unknown, wanted: Json) -> None:
        """Restores the marks that another client removed, or that Kubeocean (Go) never set."""
        metadata = missing_marks(there.metadata, wanted)
        if metadata:
            change = {"metadata": {"uid": there.metadata.uid, **metadata}}
            self._parts.worker.claims.adopt(await self._parts.worker.client.patch(PVCS, there.key, change, kind=PatchKind.MERGE))

    async def _release(self, key: Key, original: Unknown) -> float | None:
        clock = self._parts.host.clock
        since = self._unused.setdefault(key, clock.monotonic())
        wait = since + self._parts.unused_after - clock.monotonic()
        if wait > 0:
            return wait
        async with self._locks.setdefault(key, asyncio.Lock()):
            if self._parts.needed(key):
                return 0.0
            return await self._end(key, original)

    async def _end(self, key: Key, original: Unknown | None) -> float | None:
        """Deletes the copy if it is ours; after that, removes our marks from the original, whose deletion our finalizer may block."""
        there = await self._there(key)
        if there is not None and self._is_copy(there, key):
            if not there.metadata.deletion_timestamp:
                await self._parts.worker.client.delete(PVCS, there.key, uid=there.metadata.uid)
                log.debug("unused copy of a claim is deleted")
            # A pod may use it until it terminates; the deletion of the claim triggers a reconcile.
            return _ENDS_SOON
        self._unused.pop(key, None)
        bound_to = str((original.body.get("spec") or {}).get("volumeName") or "") if original is not None else ""
        change = marks.removed(original.metadata, self._parts.worker.mount) if original is not None else None
        if change is not None:
            await self._parts.host.client.patch(PVCS, key, change, kind=PatchKind.MERGE)
        for volume in {self._volumes.pop(key, bound_to), bound_to} - {""}:
            self._parts.volumes.released(volume, self._parts.worker.mount.copy_key(key))
        return None

    async def _original(self, key: Key) -> Unknown | None:
        try:
            return await self._parts.host.client.get(PVCS, key)
        except NotFound:
            return None

    async def _there(self, key: Key) -> Unknown | None:
        try:
            return await self._parts.worker.client.get(PVCS, self._parts.worker.mount.copy_key(key))
        except NotFound:
            return None

    def _is_copy(self, there: Unknown, key: Key) -> bool:
        meta = there.metadata
        of_go = keys.is_managed(meta) and keys.Owner.of(meta) is None and keys.OWNER not in meta.labels
        return copy_of(meta) == key and (self._parts.worker.mount.owner.owns(meta) or of_go)

    def _original_changed(self, change: Change[Unknown]) -> None:
        if _matters(change):
            self.controller.add(change.key, priority=Priority.LOW if change.initial else Priority.HIGH)

    def _copy_changed(self, change: Change[Unknown]) -> None:
        copy = change.new or change.old
        key = copy_of(copy.metadata) if copy is not None else None
        if copy is None or key is None or copy.key != self._parts.worker.mount.copy_key(key) or not self._is_copy(copy, key):
            return
        if _matters(change):
            self.controller.add(key, priority=Priority.LOW if change.initial else Priority.HIGH)
        if change.new is None and (volume := copy.metadata.annotations.get(keys.VIRTUAL_VOLUME, "")):
            self._parts.volumes.released(volume, copy.key)


def _matters(change: Change[Unknown]) -> bool:
    """Checks whether a claim was created or deleted, or one of its cached fields changed."""
    return change.more_than_status or change.old is None or change.new is None or change.old.raw != change.new.raw
