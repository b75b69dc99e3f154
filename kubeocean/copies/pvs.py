"""Reconciles volumes that claims of pods are bound to: copies of hub PersistentVolumes in the worker, with the same storage.

Invariant: a copy is bound to nothing but the copy of its claim, never causes data to be deleted, and refers to no path of a machine
unless the worker's owner allows it. A worker's volume that is not ours is neither changed nor deleted.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from kubeocean.copies.bodies import copy_of
from kubeocean.copies.mirrored import Mirrored
from kubeocean.copies.volumes import grown, names_volume, physical_volume, source_of, volume_change, volume_secrets
from kubeocean.model import keys
from kubeocean.model.references import MACHINES, SECRETS_OF
from kubeocean.scope import WorkerScope
from kubeocean.worker.cluster import heads
from vkubelet.api.names import HOSTNAME
from vkubelet.api.objects import NAMESPACES, PVCS, PVS, Json, Key, Unknown
from vkubelet.client.rest import PatchKind, Selection
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.errors import AlreadyExists, NotFound, Unavailable
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

_BY_HASH: Final = "hash"
"""Index of the copies: the hashes of the names in them, among them those of the Secrets that they use."""
_DELETED_SOON: Final = 2.0
_NAMED_AGAIN: Final = 30.0
_POLL_EVERY: Final = 0.05
_POLLS: Final = 40


class VolumeReconciler(Mirrored):
    """Controller whose keys are PersistentVolumes of the hub.

    `secret` copies a Secret to the worker, `secret_released` is called when a volume no longer needs it.
    """

    def __init__(
        self,
        scope: WorkerScope,
        *,
        secret: Callable[[Key], Awaitable[None]],
        secret_released: Callable[[Key], None],
        named_elsewhere: Callable[[Key], Awaitable[bool]],
    ) -> None:
        host, owner = scope.host, scope.worker.mount.owner
        copied = Selection(labels=f"{keys.synced_by(owner.cluster_id)}=true")
        originals = heads(host.client, PVS, where=copied, clock=host.clock, metrics=host.metrics)
        ours = Selection(labels=f"{keys.OWNER}={owner.mark}")
        store: Store[Unknown] = Store(indexes={_BY_HASH: lambda copy: keys.hashes_in(copy.raw)})
        self.copies: Informer[Unknown] = Informer(scope.worker.client, PVS, where=ours, store=store, clock=host.clock, metrics=host.metrics)
        self._claims = scope.worker.claims
        self._node_of = scope.worker.node_of
        self._copy_secret = secret
        self._secret_released = secret_released
        self._named_elsewhere = named_elsewhere
        self._claimed: dict[str, set[Key]] = {}
        super().__init__(scope, originals=originals, copies=self.copies, workers=4)

    def needs_secret(self, key: Key) -> bool:
        """Checks whether the copy of a volume names the copy of this Secret.

        Unknown counts as needed, but without claims there are no volumes.
        """
        if not self.copies.ever_synced:
            return not self._claims.ever_synced or len(self._claims.store) > 0
        name = keys.physical_name(key.namespace, key.name)
        return any(name.encode() in copy.raw for copy in self.copies.store.by_index(_BY_HASH, keys.hash_of(name)))

    async def ensure(self, name: str, claim: Key, *, claim_uid: str) -> str:
        """Creates or updates the copy of a volume for the copy of a claim, which has that uid if it exists; returns its name.

        Raises Unavailable with a message for the user when it cannot be copied to the worker.
        """
        key = Key("", name)
        async with self._lock(key):
            original = await self._original(key)
            if original is None or original.metadata.deletion_timestamp:
                text = f"PersistentVolume {name} does not exist, or is being deleted; bind the claim to another volume"
                raise Unavailable(text, event="FailedMount", waiting="ContainerCreating")
            await self._check(original)
            self._claimed.setdefault(name, set()).add(claim)
            for secret in volume_secrets(original):
                await self._copy_secret(secret)
            return await self._ensure_copy(await self._mark(original), claim, claim_uid=claim_uid)

    def released(self, name: str, claim: Key) -> None:
        """Enqueues a volume after the copy of this claim was deleted in the worker."""
        claims = self._claimed.get(name, set())
        claims.discard(claim)
        if not claims:
            self._claimed.pop(name, None)
        self.controller.add(Key("", name))

    async def reconcile(self, key: Key) -> float | None:
        """Expands the copy with its volume, and deletes it when no claim of the worker is for it any more, as the hub does."""
        with bind(object=str(key)):
            async with self._lock(key):
                if not (self._claims.ever_synced and self.copies.ever_synced):
                    raise Unavailable("claims and volumes of the worker cluster have not been listed yet", retry_after=_DELETED_SOON)
                original = await self._original(key)
                if not self._is_claimed(key.name):
                    return await self._release(key, original)
                await self._expand(key, original)
                return None

    async def _release(self, key: Key, original: Unknown | None) -> float | None:
        """Deletes the copy, unless a pod of another shard needs it, which may be about to create its claim; the first shard decides."""
        if not self._shard.is_first:
            return None
        claim = (original.body.get("spec") or {}).get("claimRef") if original is not None else None
        if claim and await self._named_elsewhere(Key(claim.get("namespace") or "", claim.get("name") or "")):
            return _NAMED_AGAIN
        return await self._delete_copy(key, original)

    def _is_claimed(self, name: str) -> bool:
        return name in self._claimed or any(names_volume(claim, name) for claim in self._claims.store)

    async def _check(self, original: Unknown) -> None:
        """Raises Unavailable for storage that is not copied to the worker."""
        source = source_of(original.body.get("spec") or {})
        if source in SECRETS_OF:
            return
        text = f"PersistentVolume {original.metadata.name}: volumes of kind {source} cannot be copied to the worker cluster"
        if source in MACHINES:
            namespace = await self._worker.get(NAMESPACES, self._mount.namespace)
            if source in namespace.metadata.annotations.get(keys.ALLOWED_VOLUMES, "").replace(",", " ").split():
                return
            text = f"{text}, unless its owner annotates namespace {namespace.metadata.name} there with {keys.ALLOWED_VOLUMES}: {source}"
        raise Unavailable(text, retry_after=30.0, event="UnsupportedVolume", waiting="ContainerCreating")

    async def _ensure_copy(self, original: Unknown, claim: Key, *, claim_uid: str) -> str:
        """Creates or updates the copy; its name contains our mark if the plain one belongs to another owner: volumes have no namespace."""
        owner, plain = self._mount.owner, original.metadata.name
        for name in (keys.physical_name("", plain), keys.physical_name("", f"{plain}.{owner.mark}")):
            desired = physical_volume(original, claim, mount=self._mount, name=name, hostname=self._hostname)
            place = Key("", name)
            copy = await self._copy(place) or await self._create(desired) or await self._copy(place)
            if copy is not None and self._is_copy(copy, original.key):
                await self._update(copy, desired, claim_uid=claim_uid)
                return name
        names = f"{keys.physical_name('', plain)} and {keys.physical_name('', f'{plain}.{owner.mark}')}"
        raise Unavailable(f"PersistentVolumes {names} of the worker cluster have other owners; delete one for the copy of {plain}")

    async def _create(self, desired: Json) -> Unknown | None:
        try:
            created = await self._worker.create(PVS, desired)
        except AlreadyExists:
            return None
        await self._wait_until_observed(created)
        return created

    async def _wait_until_observed(self, created: Unknown) -> None:
        """Waits a moment for the worker's controller, which retries a claim that it observes before the volume only after 15 s."""
        self.copies.adopt(created)
        for _ in range(_POLLS):
            copy = self.copies.store.get(created.key)
            if copy is None or (copy.body.get("status") or {}).get("phase", "Pending") != "Pending":
                return
            await self._clock.sleep(_POLL_EVERY)

    async def _update(self, copy: Unknown, desired: Json, *, claim_uid: str) -> None:
        """Updates the size, the mount options and the marks; the claim reference to a deleted claim is reset for the next one."""
        if copy.metadata.deletion_timestamp:
            text = f"an earlier copy of the volume, PersistentVolume {copy.metadata.name}, is still being deleted in the worker cluster"
            raise Unavailable(text, retry_after=_DELETED_SOON)
        change = volume_change(copy, desired, claim_uid=claim_uid)
        if change is not None:
            await self._worker.patch(PVS, copy.key, change, kind=PatchKind.MERGE)

    async def _expand(self, key: Key, original: Unknown | None) -> None:
        """Expands the copies of a volume, which may grow while it is mounted, without a change of any pod."""
        if original is None or original.metadata.deletion_timestamp:
            return
        for copy in self._copies_of(key):
            change = grown(copy, original) if self._is_copy(copy, key) and not copy.metadata.deletion_timestamp else None
            if change is not None:
                await self._worker.patch(PVS, copy.key, change, kind=PatchKind.MERGE)

    def _copies_of(self, key: Key) -> list[Unknown]:
        return [copy for copy in self.copies.store if (copy_of(copy.metadata) or Key("", "")).name == key.name]

    async def _delete_copy(self, key: Key, original: Unknown | None) -> float | None:
        for cached in self._copies_of(key):
            copy = await self._copy(cached.key)
            if copy is None or copy.metadata.uid != cached.metadata.uid or not self._is_copy(copy, key):
                continue
            if await self._is_bound(copy):
                return _DELETED_SOON
            if not copy.metadata.deletion_timestamp:
                await self._worker.delete(PVS, copy.key, uid=copy.metadata.uid)
                log.debug("unused copy of a volume is deleted")
            # It may stay for a moment, and its deletion triggers a reconcile.
            return _DELETED_SOON
        self._claimed.pop(key.name, None)
        for secret in volume_secrets(original) if original is not None else ():
            self._secret_released(secret)
        await self._unmark(original)
        return None

    async def _is_bound(self, copy: Unknown) -> bool:
        """Checks with a live GET that the claim that the volume is bound to exists in the worker."""
        bound = (copy.body.get("spec") or {}).get("claimRef") or {}
        if not bound.get("uid"):
            return False
        try:
            claim = await self._worker.get(PVCS, Key(bound["namespace"], bound["name"]))
        except NotFound:
            return False
        return bool(claim.metadata.uid == bound["uid"])

    def _hostname(self, virtual: str) -> str:
        node = self._node_of(virtual)
        return node.metadata.labels.get(HOSTNAME, node.metadata.name) if node is not None else ""

    def _own_copy_changed(self, key: Key, change: Change[Unknown]) -> None:
        if change.new is None or change.more_than_status:
            self._enqueue(key, change)
