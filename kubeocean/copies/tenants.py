"""Namespaces of the worker for single hub namespaces: found by the label of their owner, or created where the worker's owner allows it.

Invariant: a namespace without the label TENANT_OF is never used, whatever its name, and none is created while the worker would also accept
one outside the names whose prefix is the mount namespace.
"""

import asyncio
from typing import Final

from kubeocean.model import keys
from kubeocean.model.ownership import Ownership, classify
from kubeocean.rbac.guards import Trial
from kubeocean.rbac.tenants import (
    NAME,
    POD_SECURITY,
    binding_of_tenant,
    isolation,
    namespace_of_tenant,
    trials_of_tenants,
)
from kubeocean.worker.cluster import WorkerCluster
from vkubelet.api.objects import NAMESPACES, NETWORKPOLICIES, ROLEBINDINGS, Json, Key, Unknown
from vkubelet.clock import Clock
from vkubelet.control.rights import may
from vkubelet.errors import AlreadyExists, Forbidden, NotFound, Unavailable

_RETRY_AFTER: Final = 10.0
_REFUSED_FOR: Final = 5.0
"""Seconds; less than until a refused pod is retried."""
NOT_PREPARED: Final = "NamespaceNotPrepared"
"""Event of a pod whose worker namespace is missing or may not be used."""


class Tenants:
    """Ensures the namespaces of one connection."""

    def __init__(self, worker: WorkerCluster, clock: Clock) -> None:
        self._worker = worker
        self._mount = worker.mount
        self._locks: dict[str, asyncio.Lock] = {}
        self._clock = clock
        self._refusals: dict[str, tuple[float, str]] = {}
        """When a namespace may be tried again, and why it was refused: many pods and Services ask for one."""
        self._granted: set[str] = set()
        """UIDs of namespaces of ours whose other objects exist."""

    async def ensure(self, namespace: str) -> None:
        """Returns when objects of a hub namespace may be created. Raises Unavailable with the remedy, ApiError."""
        if self._mount.is_shared:
            return
        space = self._mount.namespace_of(namespace)
        async with self._locks.setdefault(space, asyncio.Lock()):
            found = self._worker.namespaces.store.get(Key("", space))
            if found is None:
                found = await self._make_unless_refused(namespace, space)
            if found.metadata.deletion_timestamp:
                raise _refused(f"namespace {space} of the worker cluster is being deleted")
            home = found.metadata.annotations.get(keys.VIRTUAL_NAMESPACE, namespace)
            if home != namespace:
                raise _refused(f"namespace {space} of the worker cluster is for namespace {home}; correct its {keys.VIRTUAL_NAMESPACE}")
            if classify(found.metadata, self._mount.owner) is Ownership.OURS and found.metadata.uid not in self._granted:
                await self._grant(space)
                self._granted.add(found.metadata.uid)

    async def _make_unless_refused(self, namespace: str, space: str) -> Unknown:
        until, why = self._refusals.pop(space, (0.0, ""))
        if self._clock.monotonic() < until:
            self._refusals[space] = until, why
            raise _refused(why)
        try:
            return await self._make(namespace, space)
        except Unavailable as error:
            if error.waiting == NOT_PREPARED:
                self._refusals[space] = self._clock.monotonic() + _REFUSED_FOR, str(error)
            raise

    async def _make(self, namespace: str, space: str) -> Unknown:
        """Creates the namespace, unless it exists or may not be created."""
        if not self._worker.namespaces.ever_synced:
            raise Unavailable("the namespaces of the worker cluster have not been listed yet", retry_after=1.0)
        remedy = f"its owner prepares it: kubeocean bind --print=worker --tenant {namespace}"
        try:
            live = await self._worker.client.get(NAMESPACES, space)
        except NotFound:
            live = None
        label = f"{keys.TENANT_OF}={self._mount.namespace}"
        if live is not None:
            if live.metadata.labels.get(keys.TENANT_OF) == self._mount.namespace:
                return self._adopted(live)
            raise _refused(f"namespace {space} of the worker cluster exists without the label {label}; {remedy}")
        if not await may(self._worker.client, {"verb": "create", "resource": "namespaces"}):
            raise _refused(f"the worker cluster has no namespace {space}; {remedy}")
        for trial in trials_of_tenants(self._mount.namespace):
            if await self._accepts(trial):
                text = f"namespace {space} is not created: this hub could also {trial.gains} in the worker cluster"
                raise _refused(f"{text}; its owner installs the admission policies of the chart kubeocean-worker")
        try:
            return self._adopted(await self._worker.client.create(NAMESPACES, await self._body(namespace)))
        except AlreadyExists:
            raise Unavailable(f"namespace {space} was created by another client; retrying", retry_after=0.2) from None
        except Forbidden as error:
            raise _refused(f"the worker cluster refuses namespace {space}: {error.message}; {remedy}") from error

    async def _body(self, namespace: str) -> Json:
        """Builds the namespace with the Pod Security level of the mount namespace, and our marks."""
        mount = (await self._worker.client.get(NAMESPACES, self._mount.namespace)).metadata
        body = namespace_of_tenant(self._mount.namespace, namespace, level=mount.labels.get(POD_SECURITY, ""))
        body["metadata"]["labels"] |= self._mount.owner.labels
        body["metadata"]["annotations"] |= self._mount.owner.annotations
        return body

    async def _grant(self, space: str) -> None:
        """Completes a namespace of ours, also one that an earlier process left incomplete: rights and isolation. Writes what is missing."""
        client = self._worker.client
        if not await may(client, {"verb": "create", "resource": "pods", "namespace": space}):
            try:
                await client.create(ROLEBINDINGS, binding_of_tenant(self._mount.namespace, space))
            except AlreadyExists:
                raise Unavailable(f"the rights in namespace {space} of the worker cluster take effect", retry_after=0.5) from None
        try:
            await client.get(NETWORKPOLICIES, Key(space, NAME))
        except NotFound:
            await client.create(NETWORKPOLICIES, isolation(space))
        except Forbidden:
            raise Unavailable(f"the rights in namespace {space} of the worker cluster take effect", retry_after=0.5) from None

    async def _accepts(self, trial: Trial) -> bool:
        try:
            await self._worker.client.dry_run().create(trial.resource, trial.body)
        except Forbidden:
            return False
        except AlreadyExists:
            return True
        return True

    def _adopted(self, found: Unknown) -> Unknown:
        self._worker.namespaces.adopt(found)
        return found


def _refused(text: str) -> Unavailable:
    return Unavailable(text, retry_after=_RETRY_AFTER, event=NOT_PREPARED, waiting=NOT_PREPARED)
