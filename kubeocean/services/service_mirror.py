"""Reconciles the mirrors of Services: of the namespaces that the binding names, and of those that have leased pods.

Invariant: that of `kubeocean.mirrors.engine`; an EndpointSlice is mirrored with its Service, under the key of that.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from kubeocean.binding.conditions import SERVICES_MIRRORED, Lists
from kubeocean.mirrors.engine import BY_NAMESPACE, COALESCED, Mirrors, failures, priority_of, refusals
from kubeocean.mirrors.entrance import Entrance
from kubeocean.mirrors.namespaces import MirroredNamespaces
from kubeocean.scope import WorkerScope
from kubeocean.services import mirror as forms
from kubeocean.services.report import mirroring
from kubeocean.worker.cluster import BY_SERVICE, REFUSED
from vkubelet.api.codec import encode_json
from vkubelet.api.names import HEADLESS, SERVICE_NAME
from vkubelet.api.objects import ENDPOINTSLICES, Json, Key, Pod, Unknown
from vkubelet.client.rest import PatchKind
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.errors import Invalid

log = logging.getLogger(__name__)

_BY_SERVICE: Final = "service"
_REPORTED_EVERY: Final = 1.0


class ServiceMirror(Mirrors[forms.Mirror]):
    """Keeps the mirrors; `services` watches the Services of the hub, `has_dns` returns whether pods in the worker use the hub's DNS."""

    def __init__(
        self,
        scope: WorkerScope,
        services: Informer[Unknown],
        *,
        namespaces: MirroredNamespaces,
        prepare: Callable[[str], Awaitable[None]],
        has_dns: Callable[[], bool],
    ) -> None:
        host = scope.host
        self._has_dns = has_dns
        store: Store[Unknown] = Store(indexes={_BY_SERVICE: lambda each: [str(forms.service_of(each))]}, keep=_kept)
        self.slices: Informer[Unknown] = Informer(host.client, ENDPOINTSLICES, store=store, clock=host.clock, metrics=host.metrics)
        self._done: set[Key] = set()
        """Services that were reconciled since their namespace is in scope."""
        self._entrance = Entrance(is_behind=self._is_behind, is_refused=self._is_refused)
        super().__init__("Services", scope, services, namespaces=namespaces, prepare=prepare)
        self.slices.on_change(self._slice_changed)
        for mirrors in (self._worker.services, self._worker.endpointslices):
            mirrors.on_change(self._mirror_changed)

    async def run(self) -> None:
        """Keeps the mirrors up to date until cancelled."""
        self.binding_changed()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.slices.run())
            group.create_task(self.controller.run())
            group.create_task(self._report())

    async def entering(self, pod: Pod) -> None:
        """Notes a pod that is about to be created, and waits a few seconds for the mirrors of the Services of its namespace."""
        namespace = pod.metadata.namespace
        self._namespaces.entering(pod)
        if not await self._entrance.passed(namespace):
            log.debug("the Services of namespace %s are not mirrored yet", namespace)

    def binding_changed(self) -> None:
        """Reconciles every Service and every mirror: `spec.serviceNamespaces` may have changed."""
        self.controller.add_many(service.key for service in self._originals.store)
        for mirrors in (self._worker.services, self._worker.endpointslices):
            self.controller.add_many(key for mirror in mirrors.store if (key := forms.original_of(mirror)) is not None)

    # --- scope ---

    def _essential(self) -> list[Informer[Unknown]]:
        """Returns the informers without which nothing is mirrored: those of tenants concern one tenant each."""
        worker = self._worker
        of_worker = (worker.services, worker.endpointslices) if worker.mount.is_shared else (worker.namespaces,)
        return [self._originals, self.slices, *of_worker]

    def _lists_for(self, namespace: str) -> Sequence[Informer[Unknown]]:
        return (*self._essential(), *self._worker.mirrors_of(namespace))

    def _desired(self, original: Unknown) -> forms.Mirror | None:
        return forms.desired(original, self.slices.store.by_index(_BY_SERVICE, str(original.key)), self._worker.mount)

    def _original_of(self, mirror: Unknown) -> Key | None:
        return forms.original_of(mirror)

    def _mirrors_of(self, key: Key) -> Sequence[tuple[Informer[Unknown], Unknown]]:
        service = self._worker.services.store.get(self._worker.mount.service_key(key))
        own = [(self._worker.services, service)] if service is not None and self._is_ours(service, key) else []
        return [*own, *((self._worker.endpointslices, each) for each in self._slices_of(key))]

    def _slices_of(self, key: Key) -> list[Unknown]:
        listed = self._worker.endpointslices.store.by_index(BY_SERVICE, str(self._worker.mount.service_key(key)))
        return [each for each in listed if self._is_ours(each, key)]

    def _is_behind(self, namespace: str) -> bool:
        """Checks that Services of a namespace have to be mirrored yet. A tenant's rights may follow the label of its namespace."""
        if any(isinstance(each.last_error, REFUSED) for each in self._essential()):
            return False
        if not all(each.ever_synced for each in self._lists_for(namespace)):
            return True
        return any(each.key not in self._done for each in self._originals.store.by_index(BY_NAMESPACE, namespace))

    def _is_refused(self, namespace: str) -> bool:
        return any(isinstance(each.last_error, REFUSED) for each in self._lists_for(namespace) if not each.ever_synced)

    def _reconciled(self, key: Key, *, exists: bool) -> None:
        self._done.add(key) if exists else self._done.discard(key)
        self._entrance.notify()

    # --- writes ---

    async def _write(self, key: Key, wanted: forms.Mirror) -> float | None:
        await self._prepare(key.namespace)
        await self._write_service(key, wanted.service)
        names = set()
        for body in wanted.slices:
            names.add(body["metadata"]["name"])
            await self._write_slice(key, body)
        for surplus in self._slices_of(key):
            if surplus.metadata.name not in names and self.slices.synced:
                await self._delete(self._worker.endpointslices, surplus)
        return None

    async def _write_service(self, key: Key, body: Json) -> None:
        services = self._worker.services
        live = await self._live(services, body, key)
        if live is None:
            return
        if forms.must_replace(live, body):
            await self._replace(services, live, body)
        elif (change := forms.service_change(live, body)) is not None:
            try:
                services.adopt(await self._worker.client.patch(services.resource, live.key, change, kind=PatchKind.MERGE))
            except Invalid:
                # Address families of a Service, for one, change within limits only.
                await self._replace(services, live, body)

    async def _write_slice(self, key: Key, body: Json) -> None:
        slices = self._worker.endpointslices
        live = await self._live(slices, body, key)
        if live is None:
            return
        if forms.is_immutable_change(live, body):
            await self._replace(slices, live, body)
        elif forms.slice_differs(live, body):
            metadata = {**body["metadata"], "uid": live.metadata.uid, "resourceVersion": live.metadata.resource_version}
            slices.adopt(await self._worker.client.replace(slices.resource, {**body, "metadata": metadata}))

    # --- events ---

    def _use_changed(self, namespace: str, after: float) -> None:
        """Reconciles the Services of a namespace that may have been out of scope until now."""
        if not after:
            self._done = {key for key in self._done if key.namespace != namespace}
        super()._use_changed(namespace, after)

    def _slice_changed(self, change: Change[Unknown]) -> None:
        for each in (change.old, change.new):
            if each is not None and (key := forms.service_of(each)).name:
                self.controller.add(key, after=COALESCED, priority=priority_of(change))

    # --- status ---

    async def _report(self) -> None:
        """Reports on the binding what is mirrored, and what is missing, when that has changed."""
        while True:
            await self._scope.host.clock.sleep(_REPORTED_EVERY)
            essential = self._essential()
            refused, failing = "; ".join(refusals(essential)), "; ".join(failures(essential))
            tenants = () if self._worker.mount.is_shared else (self._worker.services, self._worker.endpointslices)
            are_answered = all(each.ever_synced or each.last_error is not None for each in tenants)
            if refused or failing or (are_answered and all(each.ever_synced for each in essential)):
                state = mirroring(
                    self._namespaces.all,
                    self._originals.store,
                    lists=Lists(refused, failing, self._scope.binding.has_mirrors(SERVICES_MIRRORED)),
                    problems=[*self._problems.values(), *refusals(tenants), *failures(tenants)],
                    has_dns=self._has_dns(),
                    mount=self._worker.mount,
                )
                self._scope.binding.set_services(state)


def _kept(endpointslice: Unknown) -> Unknown:
    """Drops of an EndpointSlice what its mirror does not contain; one of no Service is reduced to its name."""
    meta = endpointslice.metadata
    body: Json = {}
    if forms.service_of(endpointslice).name:
        body = endpointslice.body
    labels = {name: meta.labels[name] for name in (SERVICE_NAME, HEADLESS) if name in meta.labels}
    head: Json = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid, "resourceVersion": meta.resource_version}
    head["labels"] = labels
    if meta.deletion_timestamp:
        head["deletionTimestamp"] = meta.deletion_timestamp
    kept: Json = {name: body[name] for name in ("addressType", "endpoints", "ports") if name in body}
    return Unknown.decode(encode_json({"metadata": head, **kept}))
