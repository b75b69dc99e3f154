"""What pods refer to: made in the worker before a pod is, and released when the last pod that names it is gone.

Invariant: an object is released only when no virtual pod of this process names it by its spec, whatever the index remembers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from attrs import frozen

from kubeocean.crds import ClusterBinding
from kubeocean.topdown.copies import physical_configmap, physical_secret
from kubeocean.topdown.copy_reconciler import CopyKind, CopyParts, CopyReconciler
from kubeocean.topdown.pvcs import ClaimParts, ClaimReconciler
from kubeocean.topdown.pvs import VolumeParts, VolumeReconciler
from kubeocean.topdown.references import Kind, Reference, References, references
from kubeocean.topdown.tokens import TokenReconciler
from kubeocean.worker import WorkerCluster, heads
from vkubelet.api.objects import Key, Pod, PodRef, Unknown
from vkubelet.client.resources import CONFIGMAPS, PODS, SECRETS
from vkubelet.control.informer import Informer
from vkubelet.control.recorder import ObjectReference
from vkubelet.errors import NotFound, PodRejected, Unavailable
from vkubelet.provider import Host

_Named = tuple[Kind, Key]

_RETRY_MISSING = 5.0


@frozen(kw_only=True)
class DependentParts:
    """What the dependents work with; `settled` says that every pod of ours is known."""

    host: Host
    worker: WorkerCluster
    binding: Callable[[], ClusterBinding | None]
    settled: Callable[[], bool]
    unused_after: float


class Dependents:
    """ConfigMaps, Secrets, claims with their volumes, and tokens of all pods."""

    def __init__(self, parts: DependentParts) -> None:
        self._parts = parts
        self._users: dict[_Named, set[str]] = {}
        self._names: dict[str, frozenset[_Named]] = {}
        self.tokens = TokenReconciler(parts.host, parts.worker)
        hub, worker = parts.host.client, parts.worker
        self._originals = {resource.kind: self._heads(resource.kind) for resource in (CONFIGMAPS, SECRETS)}
        self._copies = {
            Kind.CONFIGMAP: self._reconciler(CopyKind(CONFIGMAPS, self._configmap), Kind.CONFIGMAP, worker.configmaps),
            Kind.SECRET: self._reconciler(CopyKind(SECRETS, self._secret), Kind.SECRET, worker.secrets),
        }
        self._hub = hub
        secrets = self._copies[Kind.SECRET]
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
        """Keep copies and tokens current until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._originals.values():
                group.create_task(informer.run())
            for informer in (self._claims.originals, self._volumes.originals, self._volumes.copies):
                group.create_task(informer.run())
            for copy in self._copies.values():
                group.create_task(copy.controller.run())
            group.create_task(self._claims.controller.run())
            group.create_task(self._volumes.controller.run())
            group.create_task(self.tokens.controller.run())

    async def ensure(self, pod: Pod, named: References) -> None:
        """Everything the pod needs is in the worker.

        Raises Unavailable with a sentence for the user when a mandatory object is missing, ApiError when a cluster refuses.
        """
        self._note(pod, named)
        for reference in named.objects:
            await self._ensure_one(pod, reference)
        await self.tokens.ensure(pod, named.tokens)

    def note(self, pod: Pod) -> None:
        """Remember what a pod names that needs nothing made for it now."""
        try:
            self._note(pod, references(pod))
        except PodRejected:
            return

    def release(self, ref: PodRef) -> None:
        """The physical pod is gone, with its containers."""
        for kind, key in self._names.pop(ref.uid, frozenset()):
            users = self._users.get((kind, key), set())
            users.discard(ref.uid)
            if not users:
                self._users.pop((kind, key), None)
                owner = self._claims if kind is Kind.CLAIM else self._copies[kind]
                owner.released(key)
        self.tokens.released(ref)

    async def _ensure_one(self, pod: Pod, reference: Reference) -> None:
        if reference.kind is Kind.CLAIM:
            await self._ensure_claim(Key(pod.metadata.namespace, reference.name))
            return
        try:
            await self._copies[reference.kind].ensure(Key(pod.metadata.namespace, reference.name))
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
        """For a volume, which names Secrets of any namespace."""
        try:
            await self._copies[Kind.SECRET].ensure(key)
        except NotFound as error:
            if not error.attempt.startswith("get "):
                raise
            text = f"Secret {key}, which a volume of the pod names, does not exist; create it"
            raise Unavailable(text, retry_after=_RETRY_MISSING, event="FailedMount", waiting="ContainerCreating") from error

    def _note(self, pod: Pod, named: References) -> None:
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        wanted = frozenset((reference.kind, Key(namespace, reference.name)) for reference in named.objects)
        for each in self._names.get(uid, frozenset()) - wanted:
            self._users.get(each, set()).discard(uid)
        for each in wanted:
            self._users.setdefault(each, set()).add(uid)
        self._names[uid] = wanted

    def _needed(self, kind: Kind) -> Callable[[Key], bool]:
        return lambda key: bool(self._users.get((kind, key)))

    def _named_by_a_pod(self, kind: Kind) -> Callable[[Key], bool]:
        """Ask the pods themselves, of both clusters; unknown counts as named."""

        def named(key: Key) -> bool:
            if not self._parts.settled() or self._parts.worker.is_used(key):
                return True
            if kind is Kind.SECRET and self._volumes.needs_secret(key):
                return True
            # The name of a claim may follow from the pod's own; of others the bytes of the spec tell at once that they are not named.
            literal = b"" if kind is Kind.CLAIM else key.name.encode()
            pods = (pod for pod in self._parts.host.pods if pod.metadata.namespace == key.namespace and literal in pod.spec_json)
            return any((kind, key) in _names_of(pod) for pod in pods)

        return named

    def _heads(self, kind: str) -> Informer[Unknown]:
        resource = CONFIGMAPS if kind == CONFIGMAPS.kind else SECRETS
        return heads(self._parts.host.client, resource, clock=self._parts.host.clock, metrics=self._parts.host.metrics)

    def _reconciler(self, kind: CopyKind, named: Kind, there: Informer[Unknown]) -> CopyReconciler:
        parts = CopyParts(
            hub=self._parts.host.client,
            worker=self._parts.worker.client,
            originals=self._originals[kind.resource.kind],
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
        binding = self._parts.binding()
        bundle = binding.api_server.ca_bundle if binding is not None and binding.api_server is not None else ""
        mount = self._parts.worker.mount
        return physical_configmap(original, owner=mount.owner, namespace=mount.namespace, ca_bundle=bundle)

    def _secret(self, original: Unknown) -> dict[str, object]:
        mount = self._parts.worker.mount
        return physical_secret(original, owner=mount.owner, namespace=mount.namespace)


def _names_of(pod: Pod) -> frozenset[_Named]:
    try:
        named: Sequence[Reference] = references(pod).objects
    except PodRejected:
        return frozenset()
    return frozenset((reference.kind, Key(pod.metadata.namespace, reference.name)) for reference in named)
