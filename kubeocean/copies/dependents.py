"""Objects that pods refer to: created in the worker before the physical pod, and released when the last pod that names them is deleted.

Invariant: an object is released only when no virtual pod of this process names it by its spec, and no physical pod its copy. The objects
that a pod of the store names by its spec count as used, whether this process has synced the pod or not; a deleted pod uses none. So an
object is never considered unused because a process, or a connection to the worker, is new.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from attrs import frozen

from kubeocean.copies.bodies import bundle_for, physical_configmap, physical_secret
from kubeocean.copies.copy_reconciler import CopyKind, CopyReconciler
from kubeocean.copies.mirrored import Naming, OriginalMissing
from kubeocean.copies.pvcs import ClaimReconciler
from kubeocean.copies.pvs import VolumeReconciler
from kubeocean.copies.tenants import Tenants
from kubeocean.copies.tokens import TokenReconciler
from kubeocean.model.identity import daemonset_allowed, leaves_home
from kubeocean.model.references import References, references
from kubeocean.scope import WorkerScope
from kubeocean.worker.cluster import heads
from vkubelet.api.compact import shared
from vkubelet.api.objects import CONFIGMAPS, PODS, SECRETS, Json, Key, Pod, PodRef, Resource, Unknown
from vkubelet.api.podspec import Kind, Reference
from vkubelet.client.rest import Selection
from vkubelet.clock import Clock, in_batches
from vkubelet.control.informer import Informer
from vkubelet.control.recorder import ObjectReference
from vkubelet.errors import PodRejected, Unavailable
from vkubelet.provider import PodStore

_RETRY_MISSING = 5.0

Named = tuple[Kind, Key]
_AT_ONCE: Final = 50
"""Pods whose specs are read without a pause: about 10 ms."""


class Dependents:
    """Manages ConfigMaps, Secrets, claims with their volumes, and tokens of all pods."""

    def __init__(self, scope: WorkerScope) -> None:
        self._scope = scope
        self.users = Users(scope.host.pods, concerns=self._goes_to_the_worker)
        self.tokens = TokenReconciler(scope.host, scope.worker, shard=scope.shard)
        self.tenants = Tenants(scope.worker, scope.host.clock)
        self.entering: Callable[[str], Awaitable[None]] | None = None
        """Waits until the NetworkPolicies of a hub namespace apply in the worker."""
        self.copies = {
            Kind.CONFIGMAP: self._reconciler(
                CopyKind(self._configmap, made_with=self._bundle), Kind.CONFIGMAP, CONFIGMAPS, scope.worker.configmaps
            ),
            Kind.SECRET: self._reconciler(CopyKind(self._secret), Kind.SECRET, SECRETS, scope.worker.secrets),
        }
        self._volumes = VolumeReconciler(
            scope,
            secret=self._ensure_secret,
            secret_released=self.copies[Kind.SECRET].released,
            named_elsewhere=self._named_elsewhere(Kind.CLAIM),
        )
        self._claims = ClaimReconciler(
            scope,
            volumes=self._volumes,
            naming=self._naming(Kind.CLAIM),
        )

    async def run(self) -> None:
        """Keeps copies and tokens up to date until cancelled."""
        await self.seed()
        async with asyncio.TaskGroup() as group:
            for mirrored in (*self.copies.values(), self._claims, self._volumes):
                group.create_task(mirrored.originals.run())
                group.create_task(mirrored.controller.run())
            group.create_task(self._volumes.copies.run())
            group.create_task(self.tokens.controller.run())

    async def seed(self) -> None:
        """Indexes the objects named by pods that an earlier connection or process synced.

        Before the originals are listed: only that list reports objects that were created while there was no connection.
        """
        await self.users.seed(self._scope.host.clock)

    async def enter(self, namespace: str) -> None:
        """Returns when a pod of a hub namespace may be created. Raises Unavailable with the reason, ApiError."""
        await self.tenants.ensure(namespace)
        if self.entering is not None:
            await self.entering(namespace)

    async def ensure(self, pod: Pod, named: References) -> None:
        """Creates or updates all objects in the worker that the pod needs.

        Raises Unavailable with a message for the user when a mandatory object is missing, ApiError when a cluster rejects a request.
        """
        self.users.note(pod)
        await self.tenants.ensure(pod.metadata.namespace)
        for reference in named.objects:
            await self._ensure_one(pod, reference)
        await self.tokens.ensure(pod, named.tokens)

    def binding_changed(self) -> None:
        """Updates the copies with content from the binding that has changed."""
        for copies in self.copies.values():
            copies.recheck()

    def release(self, ref: PodRef) -> None:
        """Releases the objects of a pod whose physical pod is deleted, with its containers."""
        for kind, key in self.users.drop(ref.uid):
            owner = self._claims if kind is Kind.CLAIM else self.copies[kind]
            owner.released(key)
        self.tokens.released(ref)

    async def _ensure_one(self, pod: Pod, reference: Reference) -> None:
        key = Key(pod.metadata.namespace, reference.name)
        if reference.kind is Kind.CLAIM:
            await self._ensure_claim(key)
            return
        try:
            await self.copies[reference.kind].ensure(key)
        except OriginalMissing as error:
            text = f"{reference.kind.value} {key} does not exist"
            if reference.optional:
                self._scope.host.events.event(
                    ObjectReference.of(PODS, pod), f"Optional{reference.kind.value}NotFound", f"{text}; the pod starts without it"
                )
                return
            event = f"Mandatory{reference.kind.value}NotFound"
            text = f"{text}; create it, or mark it optional"
            raise Unavailable(text, retry_after=_RETRY_MISSING, event=event, waiting="CreateContainerConfigError") from error

    async def _ensure_claim(self, key: Key) -> None:
        try:
            await self._claims.ensure(key)
        except OriginalMissing as error:
            raise _unmountable(f"PersistentVolumeClaim {key} does not exist; create it") from error

    async def _ensure_secret(self, key: Key) -> None:
        """Creates the copy of a Secret for a volume, which may name Secrets of any namespace."""
        await self.tenants.ensure(key.namespace)
        try:
            await self.copies[Kind.SECRET].ensure(key)
        except OriginalMissing as error:
            raise _unmountable(f"Secret {key}, which a volume of the pod names, does not exist; create it") from error

    def _goes_to_the_worker(self, pod: Pod) -> bool:
        binding = self._scope.binding.current
        return leaves_home(pod.metadata) and (binding is None or daemonset_allowed(pod.metadata, binding))

    def _naming(self, kind: Kind) -> Naming:
        return Naming(needed=self._needed(kind), by_a_pod=self._named_by_a_pod(kind), elsewhere=self._named_elsewhere(kind))

    def _needed(self, kind: Kind) -> Callable[[Key], bool]:
        return lambda key: self.users.needs(kind, key)

    def _named_by_a_pod(self, kind: Kind) -> Callable[[Key], bool]:
        """Returns a check of the pods themselves, in both clusters; unknown counts as named."""

        def named(key: Key) -> bool:
            if not self._scope.virtual.is_complete or self._scope.worker.is_used(key):
                return True
            return kind is Kind.SECRET and self._volumes.needs_secret(key) or self.users.is_named(kind, key)

        return named

    def _named_elsewhere(self, kind: Kind) -> Callable[[Key], Awaitable[bool]]:
        """Returns a check of the pods of other shards, by a live list: the caches have only our own."""

        async def named(key: Key) -> bool:
            if self._scope.shard.is_only:
                return False
            listed = await self._scope.host.client.list(PODS, Selection(namespace=key.namespace, fields="spec.nodeName!="))
            return any(not pod.terminal and (kind, key) in names_of(pod) for pod in listed.items)

        return named

    def _reconciler(self, copied: CopyKind, kind: Kind, resource: Resource[Unknown], copies: Informer[Unknown]) -> CopyReconciler:
        host = self._scope.host
        return CopyReconciler(
            copied,
            self._scope,
            originals=heads(host.client, resource, clock=host.clock, metrics=host.metrics),
            copies=copies,
            naming=self._naming(kind),
        )

    def _configmap(self, original: Unknown) -> Json:
        mount = self._scope.worker.mount
        space = mount.namespace_of(original.metadata.namespace)
        return physical_configmap(original, owner=mount.owner, namespace=space, ca_bundle=self._bundle(original.key))

    def _bundle(self, key: Key) -> str:
        binding = self._scope.binding.current
        return bundle_for(key, binding.api_server if binding is not None else None)

    def _secret(self, original: Unknown) -> Json:
        mount = self._scope.worker.mount
        return physical_secret(original, owner=mount.owner, namespace=mount.namespace_of(original.metadata.namespace))


def _unmountable(text: str) -> Unavailable:
    return Unavailable(text, retry_after=_RETRY_MISSING, event="FailedMount", waiting="ContainerCreating")


@frozen
class _Noted:
    """Objects that a pod names, and the hash of the spec they were read from."""

    spec: int
    names: frozenset[Named]


class Users:
    """Index of the objects in use; `concerns` selects the pods that run in the worker, which needs no objects of other pods."""

    def __init__(self, pods: PodStore, *, concerns: Callable[[Pod], bool]) -> None:
        self._pods = pods
        self._concerns = concerns
        self._users: dict[Named, set[str]] = {}
        self._noted: dict[str, _Noted] = {}

    async def seed(self, clock: Clock) -> None:
        """Notes every pod of the store: those that an earlier connection or process synced are not synced again."""
        async for pod in in_batches(clock, self._pods, size=_AT_ONCE):
            if self._concerns(pod) and not pod.terminal:
                self.note(pod)

    def note(self, pod: Pod) -> None:
        """Notes the objects that a pod names; a pod that can never run names none."""
        uid = pod.metadata.uid
        before = self._noted.get(uid)
        if before is not None and before.spec == pod.spec_hash:
            return
        names = names_of(pod)
        if before is not None:
            self._remove(uid, before.names - names)
        for name in names:
            self._users.setdefault(name, set()).add(uid)
        self._noted[uid] = _Noted(pod.spec_hash, names)

    def drop(self, uid: str) -> frozenset[Named]:
        """Removes a pod; returns the objects that no other pod names."""
        noted = self._noted.pop(uid, None)
        return self._remove(uid, noted.names) if noted is not None else frozenset()

    def needs(self, kind: Kind, key: Key) -> bool:
        """Checks whether a noted pod that still exists names the object."""
        return any(self._pods.by_uid(uid) is not None for uid in self._users.get((kind, key), ()))

    def is_named(self, kind: Kind, key: Key) -> bool:
        """Checks whether a pod names the object, noted or not."""
        return self.needs(kind, key) or any((kind, key) in names_of(pod) for pod in self._unnoted(key.namespace))

    def _unnoted(self, namespace: str) -> Iterator[Pod]:
        """Yields pods that were just created, and those whose physical pod was deleted before them: few."""
        for pod in self._pods.in_namespace(namespace):
            if pod.metadata.uid not in self._noted and not pod.terminal and self._concerns(pod):
                yield pod

    def _remove(self, uid: str, names: frozenset[Named]) -> frozenset[Named]:
        unused = set()
        for name in names:
            users = self._users.get(name, set())
            users.discard(uid)
            if not users:
                self._users.pop(name, None)
                unused.add(name)
        return frozenset(unused)


def names_of(pod: Pod) -> frozenset[Named]:
    """Returns the objects that the pod names by its spec; none if it cannot be translated."""
    try:
        named = references(pod).objects
    except PodRejected:
        return frozenset()
    return shared(frozenset((reference.kind, Key(pod.metadata.namespace, reference.name)) for reference in named))
