"""Reconciles claims of pods: copies of hub PersistentVolumeClaims in the mount namespace, bound by name to the copy of their volume.

Invariant: a claim is copied to the worker only when it is bound in the hub, and its copy exists for as long as a pod may use it; a claim
that is being deleted in the hub keeps our finalizer until its copy is deleted in the worker, so that mounted storage is never deleted.
"""

import logging
from typing import Final

from kubeocean.copies.bodies import marked_copy, missing_marks
from kubeocean.copies.mirrored import MirroredForPods, Naming
from kubeocean.copies.pvs import VolumeReconciler
from kubeocean.copies.volumes import names_volume
from kubeocean.model import keys
from kubeocean.scope import WorkerScope
from kubeocean.worker.cluster import claim_of
from vkubelet.api.objects import PVCS, Json, JsonView, Key, Unknown
from vkubelet.api.quantity import Quantity
from vkubelet.client.rest import PatchKind, Selection
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.errors import AlreadyExists, Unavailable
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

_NOT_BOUND_AGAIN: Final = 5.0
_DELETED_SOON: Final = 2.0
_STORAGE: Final = "storage"
_ON_THE_NODE: Final = "NodeResize"
_PENDING: Final = "FileSystemResizePending"
_OF_A_RESIZE: Final = frozenset({_PENDING, "Resizing", "ControllerResizeError", "NodeResizeError"})
"""Conditions that mean nothing when a claim has its new size."""
_NOT_COPIED: Final = ("storageClassName", "dataSource", "dataSourceRef", "selector", "volumeAttributesClassName")


def physical_claim(obj: Unknown, volume: str, *, owner: keys.Owner, namespace: str) -> Json:
    """Returns the copy of a bound claim: without a class, bound by name to `volume` (pure)."""
    original: JsonView = obj.body.get("spec") or {}
    spec: Json = {name: value for name, value in original.items() if name not in _NOT_COPIED}
    # Absent would mean the worker's default class.
    spec |= {"storageClassName": "", "volumeName": volume}
    body = marked_copy(PVCS.kind, obj.metadata, owner, namespace=namespace)
    body["metadata"]["annotations"][keys.VIRTUAL_VOLUME] = original.get("volumeName") or ""
    return {**body, "spec": spec}


def unbound(obj: Unknown) -> str:
    """Returns why no pod can use this claim now, "" when one can."""
    body, meta = obj.body, obj.metadata
    phase = (body.get("status") or {}).get("phase") or "Pending"
    if meta.deletion_timestamp:
        return f"PersistentVolumeClaim {meta.key} is being deleted; create it again, or remove it from the pod"
    if phase != "Bound" or not (body.get("spec") or {}).get("volumeName"):
        return f"PersistentVolumeClaim {meta.key} is not bound to a volume yet (it is {phase}); the pod starts when it is bound"
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


class ClaimReconciler(MirroredForPods):
    """Controller whose keys are PersistentVolumeClaims of the hub."""

    def __init__(
        self,
        scope: WorkerScope,
        *,
        volumes: VolumeReconciler,
        naming: Naming,
    ) -> None:
        host, copies = scope.host, scope.worker.claims
        where = Selection(labels=f"{keys.synced_by(scope.worker.mount.owner.cluster_id)}=true")
        originals: Informer[Unknown] = Informer(
            host.client, PVCS, where=where, store=Store(keep=claim_of), clock=host.clock, metrics=host.metrics
        )
        self._volumes = volumes
        self._volume_names: dict[Key, str] = {}
        super().__init__(scope, originals=originals, copies=copies, workers=4, naming=naming)

    async def ensure(self, key: Key) -> None:
        """Creates claim and volume in the worker. Raises OriginalMissing, or Unavailable while the claim is not usable."""
        async with self._lock(key):
            original = await self._existing(key)
            if problem := unbound(original):
                raise Unavailable(problem, retry_after=_NOT_BOUND_AGAIN, event="FailedMount", waiting="ContainerCreating")
            await self._ensure(original)

    async def reconcile(self, key: Key) -> float | None:
        """Keeps the copy while a pod needs it, and deletes it after `unused_after`, or with its original.

        Returns the seconds until the next check.
        """
        with bind(object=str(key)):
            if not self._is_concerned(key):
                return None
            original = await self._original(key)
            if original is None or original.metadata.deletion_timestamp:
                async with self._lock(key):
                    return await self._delete_copy(key, original)
            needed = self._needed(key)
            if not needed and not self._named_by_a_pod(key):
                return await self._release(key, original)
            self._unused.pop(key, None)
            if not unbound(original):
                async with self._lock(key):
                    await self._ensure(original)
                    await self._report_expansion(original)
            return None if needed else self._recheck_after

    async def _ensure(self, original: Unknown) -> None:
        key, mount = original.key, self._mount
        volume = str(original.body["spec"]["volumeName"])
        copy = await self._copy(self.copy_key(key))
        if copy is not None:
            await self._check(copy, key, volume=volume)
        self._volume_names[key] = volume
        name = await self._volumes.ensure(volume, self.copy_key(key), claim_uid=copy.metadata.uid if copy is not None else "")
        original = await self._mark(original)
        desired = physical_claim(original, name, owner=mount.owner, namespace=mount.namespace_of(key.namespace))
        if copy is not None:
            await self._restore_marks(copy, desired)
            return
        try:
            self._copies.adopt(await self._worker.create(PVCS, desired))
        except AlreadyExists:
            raise Unavailable(f"the copy of PersistentVolumeClaim {key} was created by another client; retrying", retry_after=0.2) from None

    async def _report_expansion(self, original: Unknown) -> None:
        """Reports the new size in the claim's status; a write of `_ensure` just before causes a conflict, and a retry."""
        copy = self._copies.store.get(self.copy_key(original.key))
        change = expanded(original, copy) if copy is not None else None
        if change is not None:
            await self._hub.patch(PVCS, original.key, change, kind=PatchKind.MERGE, subresource="status")
            log.debug("claim has its new size")

    async def _check(self, copy: Unknown, key: Key, *, volume: str) -> None:
        """Raises Unavailable for a copy that belongs to another owner, is terminating, or is that of an earlier claim."""
        if not self._is_copy(copy, key):
            text = f"PersistentVolumeClaim {copy.key} of the worker cluster has another owner and the name that the copy of {key} needs"
            raise Unavailable(f"{text}; rename or delete it there", retry_after=30.0)
        lost = (copy.body.get("status") or {}).get("phase") == "Lost"
        if not copy.metadata.deletion_timestamp:
            if not lost and names_volume(copy, volume):
                return
            await self._worker.delete(PVCS, copy.key, uid=copy.metadata.uid)
        text = f"an earlier copy of PersistentVolumeClaim {key} is still being deleted in the worker cluster"
        raise Unavailable(text, retry_after=_DELETED_SOON, event="FailedMount", waiting="ContainerCreating")

    async def _restore_marks(self, copy: Unknown, desired: Json) -> None:
        """Restores the marks that another client removed, or that Kubeocean (Go) never set."""
        metadata = missing_marks(copy.metadata, desired)
        if metadata:
            change = {"metadata": {"uid": copy.metadata.uid, **metadata}}
            self._copies.adopt(await self._worker.patch(PVCS, copy.key, change, kind=PatchKind.MERGE))

    async def _delete_copy(self, key: Key, original: Unknown | None) -> float | None:
        copy = await self._copy(self.copy_key(key))
        if copy is not None and self._is_copy(copy, key):
            if not copy.metadata.deletion_timestamp:
                await self._worker.delete(PVCS, copy.key, uid=copy.metadata.uid)
                log.debug("unused copy of a claim is deleted")
            # A pod may use it until it terminates; the deletion of the claim triggers a reconcile.
            return _DELETED_SOON
        self._unused.pop(key, None)
        bound_to = str((original.body.get("spec") or {}).get("volumeName") or "") if original is not None else ""
        await self._unmark(original)
        for volume in {self._volume_names.pop(key, bound_to), bound_to} - {""}:
            self._volumes.released(volume, self.copy_key(key))
        return None

    def _concerns(self, change: Change[Unknown]) -> bool:
        return _matters(change)

    def _own_copy_changed(self, key: Key, change: Change[Unknown]) -> None:
        if _matters(change):
            self._enqueue(key, change)
        volume = change.old.metadata.annotations.get(keys.VIRTUAL_VOLUME, "") if change.new is None and change.old is not None else ""
        if volume:
            self._volumes.released(volume, self.copy_key(key))


def _matters(change: Change[Unknown]) -> bool:
    """Checks whether a claim was created or deleted, or one of its cached fields changed."""
    return change.more_than_status or change.old is None or change.new is None or change.old.raw != change.new.raw
