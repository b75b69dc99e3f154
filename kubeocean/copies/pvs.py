"""Reconciles volumes that claims of pods are bound to: copies of hub PersistentVolumes in the worker, with the same storage.

Invariant: a copy is bound to nothing but the copy of its claim, never causes data to be deleted, and refers to no path of a machine
unless the worker's owner allows it. A worker's volume that is not ours is neither changed nor deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakValueDictionary

from attrs import frozen

from kubeocean.copies import marks
from kubeocean.copies.bodies import copy_of
from kubeocean.copies.volumes import grown, names_volume, physical_volume, source_of, volume_change, volume_secrets
from kubeocean.model import keys
from kubeocean.model.volume_sources import MACHINES, SECRETS_OF
from kubeocean.worker.cluster import WorkerCluster, heads
from vkubelet.api.names import HOSTNAME
from vkubelet.api.objects import Key, Unknown
from vkubelet.api.shapes import Json
from vkubelet.client.resources import NAMESPACES, PVCS, PVS
from vkubelet.client.rest import PatchKind, Selection
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.workqueue import Priority
from vkubelet.errors import AlreadyExists, NotFound, Unavailable
from vkubelet.logformat import bind
from vkubelet.provider import Host

log = logging.getLogger(__name__)

_ENDS_SOON: Final = 2.0
_LOOK_EVERY: Final = 0.05
_LOOKS: Final = 40


@frozen(kw_only=True)
class VolumeParts:
    """Dependencies: `secret` copies a Secret to the worker, `secret_released` is called when a volume no longer needs it."""

    host: Host
    worker: WorkerCluster
    secret: Callable[[Key], Awaitable[None]]
    secret_released: Callable[[Key], None]


class VolumeReconciler:
    """Controller whose keys are PersistentVolumes of the hub."""

    def __init__(self, parts: VolumeParts) -> None:
        self._parts = parts
        self._claimed: dict[str, set[Key]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        client, clock = parts.host.client, parts.host.clock
        label = keys.synced_by(parts.worker.mount.owner.cluster_id)
        self.originals = heads(client, PVS, where=Selection(labels=f"{label}=true"), clock=clock, metrics=parts.host.metrics)
        self.copies: Informer[Unknown] = Informer(
            parts.worker.client,
            PVS,
            where=Selection(labels=f"{keys.OWNER}={parts.worker.mount.owner.mark}"),
            clock=clock,
            metrics=parts.host.metrics,
        )
        self.controller: Controller[str] = Controller(PVS.plural, self.reconcile, workers=4, clock=clock, metrics=parts.host.metrics)
        self.originals.on_change(self._original_changed)
        self.copies.on_change(self._copy_changed)

    def needs_secret(self, key: Key) -> bool:
        """Checks whether the copy of a volume names the copy of this Secret.

        Unknown counts as needed, but without claims there are no volumes.
        """
        claims = self._parts.worker.claims
        if not self.copies.ever_synced:
            return not claims.ever_synced or len(claims.store) > 0
        name = keys.physical_name(key.namespace, key.name).encode()
        return any(name in copy.raw for copy in self.copies.store)

    async def ensure(self, name: str, claim: Key, *, claim_uid: str) -> str:
        """Creates or updates the copy of a volume for the copy of a claim, which has that uid if it exists; returns its name.

        Raises Unavailable with a message for the user when it cannot be copied to the worker.
        """
        async with self._locks.setdefault(name, asyncio.Lock()):
            original = await self._original(name)
            if original is None or original.metadata.deletion_timestamp:
                raise Unavailable(f"PersistentVolume {name} is gone, or is being deleted", event="FailedMount", waiting="ContainerCreating")
            await self._check(original)
            self._claimed.setdefault(name, set()).add(claim)
            for secret in volume_secrets(original):
                await self._parts.secret(secret)
            change = marks.added(original.metadata, self._parts.worker.mount)
            if change is not None:
                original = await self._parts.host.client.patch(PVS, name, change, kind=PatchKind.MERGE)
            return await self._ensure_copy(original, claim, claim_uid=claim_uid)

    def released(self, name: str, claim: Key) -> None:
        """Enqueues a volume after the copy of this claim was deleted in the worker."""
        claims = self._claimed.get(name, set())
        claims.discard(claim)
        if not claims:
            self._claimed.pop(name, None)
        self.controller.add(name)

    async def reconcile(self, name: str) -> float | None:
        """Expands the copy with its volume, and deletes it when no claim of the worker is for it any more, as the hub does."""
        with bind(object=name):
            async with self._locks.setdefault(name, asyncio.Lock()):
                if not (self._parts.worker.claims.ever_synced and self.copies.ever_synced):
                    raise Unavailable("claims and volumes of the worker cluster have not been listed yet", retry_after=_ENDS_SOON)
                original = await self._original(name)
                if not self._is_claimed(name):
                    return await self._end(name, original)
                await self._follow(name, original)
                return None

    def _is_claimed(self, name: str) -> bool:
        return name in self._claimed or any(names_volume(claim, name) for claim in self._parts.worker.claims.store)

    async def _original(self, name: str) -> Unknown | None:
        try:
            return await self._parts.host.client.get(PVS, name)
        except NotFound:
            return None

    async def _check(self, original: Unknown) -> None:
        """Raises Unavailable for storage that is not copied to the worker."""
        source = source_of(original.body.get("spec") or {})
        if source in SECRETS_OF:
            return
        text = f"PersistentVolume {original.metadata.name}: volumes of kind {source} can not be brought to the worker cluster"
        if source in MACHINES:
            namespace = await self._parts.worker.client.get(NAMESPACES, self._parts.worker.mount.namespace)
            if source in namespace.metadata.annotations.get(keys.ALLOWED_VOLUMES, "").replace(",", " ").split():
                return
            text = f"{text}, unless its owner annotates namespace {namespace.metadata.name} there with {keys.ALLOWED_VOLUMES}: {source}"
        raise Unavailable(text, retry_after=30.0, event="UnsupportedVolume", waiting="ContainerCreating")

    async def _ensure_copy(self, original: Unknown, claim: Key, *, claim_uid: str) -> str:
        """Creates or updates the copy; its name contains our mark if the plain one belongs to another owner: volumes have no namespace."""
        owner, plain = self._parts.worker.mount.owner, original.metadata.name
        for name in (keys.physical_name("", plain), keys.physical_name("", f"{plain}.{owner.mark}")):
            wanted = physical_volume(original, claim, owner=owner, name=name, hostname=self._hostname)
            there = await self._there(name) or await self._create(wanted) or await self._there(name)
            if there is not None and self._is_copy(there, plain):
                await self._bring_up_to_date(there, wanted, claim_uid=claim_uid)
                return name
        raise Unavailable(f"the names of a copy of PersistentVolume {plain} are taken in the worker cluster; delete those there")

    async def _there(self, name: str) -> Unknown | None:
        try:
            return await self._parts.worker.client.get(PVS, name)
        except NotFound:
            return None

    async def _create(self, wanted: Json) -> Unknown | None:
        try:
            made = await self._parts.worker.client.create(PVS, wanted)
        except AlreadyExists:
            return None
        await self._noticed(made)
        return made

    async def _noticed(self, made: Unknown) -> None:
        """Waits a moment for the worker's controller, which retries a claim that it observes before the volume only after 15 s."""
        self.copies.adopt(made)
        for _ in range(_LOOKS):
            copy = self.copies.store.get(made.key)
            if copy is None or (copy.body.get("status") or {}).get("phase", "Pending") != "Pending":
                return
            await self._parts.host.clock.sleep(_LOOK_EVERY)

    async def _bring_up_to_date(self, there: Unknown, wanted: Json, *, claim_uid: str) -> None:
        """Updates the size, the mount options and the marks; the claim reference to a deleted claim is reset for the next one."""
        if there.metadata.deletion_timestamp:
            raise Unavailable(f"an earlier copy of PersistentVolume {there.metadata.name} is still ending", retry_after=_ENDS_SOON)
        change = volume_change(there, wanted, claim_uid=claim_uid)
        if change is not None:
            await self._parts.worker.client.patch(PVS, there.metadata.name, change, kind=PatchKind.MERGE)

    async def _follow(self, name: str, original: Unknown | None) -> None:
        """Expands the copies of a volume, which may grow while it is mounted, without a change of any pod."""
        if original is None or original.metadata.deletion_timestamp:
            return
        for copy in self._copies_of(name):
            change = grown(copy, original) if self._is_copy(copy, name) and not copy.metadata.deletion_timestamp else None
            if change is not None:
                await self._parts.worker.client.patch(PVS, copy.metadata.name, change, kind=PatchKind.MERGE)

    def _copies_of(self, name: str) -> list[Unknown]:
        return [copy for copy in self.copies.store if (copy_of(copy.metadata) or Key("", "")).name == name]

    async def _end(self, name: str, original: Unknown | None) -> float | None:
        """Deletes the copy if it is ours; after that, removes our marks from the original, whose deletion our finalizer may block."""
        for copy in self._copies_of(name):
            there = await self._there(copy.metadata.name)
            if there is None or there.metadata.uid != copy.metadata.uid or not self._is_copy(there, name):
                continue
            if await self._is_bound(there):
                return _ENDS_SOON
            if not there.metadata.deletion_timestamp:
                await self._parts.worker.client.delete(PVS, there.metadata.name, uid=there.metadata.uid)
                log.debug("unused copy of a volume is deleted")
            # It may stay for a moment, and its deletion triggers a reconcile.
            return _ENDS_SOON
        self._claimed.pop(name, None)
        if original is None:
            return None
        for secret in volume_secrets(original):
            self._parts.secret_released(secret)
        change = marks.removed(original.metadata, self._parts.worker.mount)
        if change is not None:
            await self._parts.host.client.patch(PVS, name, change, kind=PatchKind.MERGE)
        return None

    async def _is_bound(self, there: Unknown) -> bool:
        """Checks with a live GET that the claim that the volume is bound to exists in the worker."""
        bound = (there.body.get("spec") or {}).get("claimRef") or {}
        if not bound.get("uid"):
            return False
        try:
            claim = await self._parts.worker.client.get(PVCS, Key(bound["namespace"], bound["name"]))
        except NotFound:
            return False
        return bool(claim.metadata.uid == bound["uid"])

    def _is_copy(self, there: Unknown, name: str) -> bool:
        meta = there.metadata
        of_go = keys.is_managed(meta) and keys.Owner.of(meta) is None and keys.OWNER not in meta.labels
        return copy_of(meta) == Key("", name) and (self._parts.worker.mount.owner.owns(meta) or of_go)

    def _hostname(self, virtual: str) -> str:
        node = self._parts.worker.node_of(virtual)
        return node.metadata.labels.get(HOSTNAME, node.metadata.name) if node is not None else ""

    def _original_changed(self, change: Change[Unknown]) -> None:
        self.controller.add(change.key.name, priority=Priority.LOW if change.initial else Priority.HIGH)

    def _copy_changed(self, change: Change[Unknown]) -> None:
        copy = change.new or change.old
        key = copy_of(copy.metadata) if copy is not None else None
        if key is not None and (change.new is None or change.more_than_status):
            self.controller.add(key.name, priority=Priority.LOW if change.initial else Priority.HIGH)
