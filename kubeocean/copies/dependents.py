"""Objects that pods refer to: created in the worker before the physical pod, and released when the last pod that names them is deleted.

Invariant: an object is released only when no virtual pod of this process names it by its spec, and no physical pod its copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from attrs import frozen

from kubeocean.copies.bodies import bundle_for, physical_configmap, physical_secret
from kubeocean.copies.copy_reconciler import CopyKind, CopyParts, CopyReconciler
from kubeocean.copies.pvcs import ClaimParts, ClaimReconciler
from kubeocean.copies.pvs import VolumeParts, VolumeReconciler
from kubeocean.copies.tokens import TokenReconciler
from kubeocean.copies.users import Users
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.identity import daemonset_allowed, leaves_home
from kubeocean.model.references import Kind, Reference, References
from kubeocean.worker.cluster import WorkerCluster, heads
from vkubelet.api.objects import Key, Pod, PodRef, Unknown
from vkubelet.client.resources import CONFIGMAPS, PODS, SECRETS
from vkubelet.control.informer import Informer
from vkubelet.control.recorder import ObjectReference
from vkubelet.errors import NotFound, Unavailable
from vkubelet.provider import Host

_RETRY_MISSING = 5.0


@frozen(kw_only=True)
class DependentParts:
    """Dependencies of `Dependents`; `settled` returns whether all our pods are known."""

    host: Host
    worker: WorkerCluster
    binding: Callable[[], ClusterBinding | None]
    settled: Callable[[], bool]
    unused_after: float


class Dependents:
    """Manages ConfigMaps, Secrets, claims with their volumes, and tokens of all pods; `originals` are by kind."""

    def __init__(self, parts: DependentParts) -> None:
        self._parts = parts
        self._users = Users(parts.host.pods, concerns=self._goes_to_the_worker)
        self.tokens = TokenReconciler(parts.host, parts.worker)
        hub, worker = parts.host.client, parts.worker
        self.originals = {resource.kind: self._heads(resource.kind) for resource in (CONFIGMAPS, SECRETS)}
        self.copies = {
            Kind.CONFIGMAP: self._reconciler(
                CopyKind(CONFIGMAPS, self._configmap, made_with=self._bundle), Kind.CONFIGMAP, worker.configmaps
            ),
            Kind.SECRET: self._reconciler(CopyKind(SECRETS, self._secret), Kind.SECRET, worker.secrets),
        }
        self._hub = hub
        secrets = self.copies[Kind.SECRET]
        self._volumes = VolumeReconciler(
            VolumeParts(host=parts.host, worker=worker, secret=self._ensure_secret, secret_released=secrets.released)
        )
        self._claims = ClaimReconciler(
            ClaimParts(
                host=parts.host,
                worker=worker,
                volumes=self._volumes,
                needed=self._needed(Kind.CLAIM),
                named_by_a_pod=self._named_by_a_pod(Kind.CLAIM),
                unused_after=parts.unused_after,
            )
        )

    async def run(self) -> None:
        """Keeps copies and tokens up to date until cancelled."""
        await self.seed()
        async with asyncio.TaskGroup() as group:
            for informer in self.originals.values():
                group.create_task(informer.run())
            for informer in (self._claims.originals, self._volumes.originals, self._volumes.copies):
                group.create_task(informer.run())
            for copy in self.copies.values():
                group.create_task(copy.controller.run())
            group.create_task(self._claims.controller.run())
            group.create_task(self._volumes.controller.run())
            group.create_task(self.tokens.controller.run())

    async def seed(self) -> None:
        """Indexes the objects named by pods that an earlier connection or process synced.

        Before the originals are listed: only that list reports objects that were created while there was no connection.
        """
        await self._users.seed(self._parts.host.clock)

    async def ensure(self, pod: Pod, named: References) -> None:
        """Creates or updates all objects in the worker that the pod needs.

        Raises Unavailable with a message for the user when a mandatory object is missing, ApiError when a cluster rejects a request.
        """
        self._users.note(pod)
        for reference in named.objects:
            await self._ensure_one(pod, reference)
        await self.tokens.ensure(pod, named.tokens)

    def note(self, pod: Pod) -> None:
        """Records the objects that a pod names, without creating any."""
        self._users.note(pod)

    def binding_changed(self) -> None:
        """Updates the copies with content from the binding that has changed."""
        for copies in self.copies.values():
            copies.recheck()

    def release(self, ref: PodRef) -> None:
        """Releases the objects of a pod whose physical pod is deleted, with its containers."""
        for kind, key in self._users.drop(ref.uid):
            owner = self._claims if kind is Kind.CLAIM else self.copies[kind]
            owner.released(key)
        self.tokens.released(ref)

    async def _ensure_one(self, pod: Pod, reference: Reference) -> None:
        if reference.kind is Kind.CLAIM:
            await self._ensure_claim(Key(pod.metadata.namespace, reference.name))
            return
        try:
            await self.copies[reference.kind].ensure(Key(pod.metadata.namespace, reference.name))
        except NotFound as error:
            if not error.attempt.startswith("get "):
                raise
            text = f"{reference.kind.value} {pod.metadata.namespace}/{reference.name} does not exist"
            if reference.optional:
                self._parts.host.events.event(ObjectReference.of(PODS, pod), f"Optional{reference.kind.value}NotFound", text)
                return
            event = f"Mandatory{reference.kind.value}NotFound"
            text = f"{text}; create it, or mark it optional"
            raise Unavailable(text, retry_after=_RETRY_MISSING, event=event, waiting="CreateContainerConfigError") from error

    async def _ensure_claim(self, key: Key) -> None:
        try:
            await self._claims.ensure(key)
        except NotFound as error:
            if not error.attempt.startswith("get "):
                raise
            text = f"PersistentVolumeClaim {key} does not exist; create it"
            raise Unavailable(text, retry_after=_RETRY_MISSING, event="FailedMount", waiting="ContainerCreating") from error

    async def _ensure_secret(self, key: Key) -> None:
        """Creates the copy of a Secret for a volume, which may name Secrets of any namespace."""
        try:
            await self.copies[Kind.SECRET].ensure(key)
        except NotFound as error:
            if not error.attempt.startswith("get "):
                raise
            text = f"Secret {key}, which a volume of the pod names, does not exist; create it"
            raise Unavailable(text, retry_after=_RETRY_MISSING, event="FailedMount", waiting="ContainerCreating") from error

    def _goes_to_the_worker(self, pod: Pod) -> bool:
        binding = self._parts.binding()
        return leaves_home(pod.metadata) and (binding is None or daemonset_allowed(pod.metadata, binding))

    def _needed(self, kind: Kind) -> Callable[[Key], bool]:
        return lambda key: self._users.needs(kind, key)

    def _named_by_a_pod(self, kind: Kind) -> Callable[[Key], bool]:
        """Returns a check of the pods themselves, in both clusters; unknown counts as named."""

        def named(key: Key) -> bool:
            if not self._parts.settled() or self._parts.worker.is_used(key):
                return True
            return kind is Kind.SECRET and self._volumes.needs_secret(key) or self._users.is_named(kind, key)

        return named

    def _heads(self, kind: str) -> Informer[Unknown]:
        resource = CONFIGMAPS if kind == CONFIGMAPS.kind else SECRETS
        return heads(self._parts.host.client, resource, clock=self._parts.host.clock, metrics=self._parts.host.metrics)

    def _reconciler(self, kind: CopyKind, named: Kind, there: Informer[Unknown]) -> CopyReconciler:
        parts = CopyParts(
            hub=self._parts.host.client,
            worker=self._parts.worker.client,
            originals=self.originals[kind.resource.kind],
            copies=there,
            mount=self._parts.worker.mount,
            needed=self._needed(named),
            named_by_a_pod=self._named_by_a_pod(named),
            clock=self._parts.host.clock,
            metrics=self._parts.host.metrics,
            unused_after=self._parts.unused_after,
        )
        return CopyReconciler(kind, parts)

    def _configmap(self, original: Unknown) -> dict[str, object]:
        mount = self._parts.worker.mount
        return physical_configmap(original, owner=mount.owner, namespace=mount.namespace, ca_bundle=self._bundle(original.key))

    def _bundle(self, key: Key) -> str:
        binding = self._parts.binding()
        return bundle_for(key, binding.api_server if binding is not None else None)

    def _secret(self, original: Unknown) -> dict[str, object]:
        mount = self._parts.worker.mount
        return physical_secret(original, owner=mount.owner, namespace=mount.namespace)
