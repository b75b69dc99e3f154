"""Reconciles the mirrors of Services: of the namespaces that the binding names, and of those that have leased pods.

Invariant: a mirror is deleted only if it is ours and its Service is proven to be deleted or out of scope; lists that are not complete, or
refused, delete nothing. Keys are those of the Services in the hub; calls for one never overlap.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from kubeocean.copies.tenants import NOT_PREPARED
from kubeocean.model.ownership import Ownership, classify
from kubeocean.scope import WorkerScope
from kubeocean.services import mirror as forms
from kubeocean.services.leased import LeasedNamespaces
from kubeocean.services.report import mirroring
from kubeocean.worker.cluster import BY_SERVICE, BY_VIRTUAL_NODE, REFUSED
from vkubelet.api.codec import encode_json
from vkubelet.api.names import HEADLESS, SERVICE_NAME
from vkubelet.api.objects import ENDPOINTSLICES, SERVICES, Json, Key, Pod, PodRef, Resource, Unknown
from vkubelet.client.rest import PatchKind
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.control.workqueue import Priority
from vkubelet.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Unavailable
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

_BY_SERVICE: Final = "service"
_BY_NAMESPACE: Final = "namespace"
_COALESCED: Final = 0.3
"""Seconds in which changes of the endpoints of one Service become one reconcile."""
_NOT_LISTED: Final = 1.0
_RECHECK_AFTER: Final = 60.0
"""Seconds until a mirror that the worker does not accept is tried again."""
_FIRST_WAIT: Final = 5.0
"""Seconds that the first pod of a namespace waits for the mirrors of its Services."""
_REPORTED_EVERY: Final = 1.0


class ServiceMirror:
    """Keeps the mirrors; `services` watches the Services of the hub, `has_dns` returns whether pods in the worker use the hub's DNS.

    `prepare` returns when objects of a hub namespace may be created in the worker, or raises Unavailable.
    """

    def __init__(
        self,
        scope: WorkerScope,
        services: Informer[Unknown],
        *,
        prepare: Callable[[str], Awaitable[None]],
        has_dns: Callable[[], bool],
    ) -> None:
        host = scope.host
        self._scope = scope
        self._worker = scope.worker
        self._services = services
        self._prepare = prepare
        self._has_dns = has_dns
        store: Store[Unknown] = Store(indexes={_BY_SERVICE: lambda each: [str(forms.service_of(each))]}, keep=_kept)
        self.slices: Informer[Unknown] = Informer(host.client, ENDPOINTSLICES, store=store, clock=host.clock, metrics=host.metrics)
        self._leased = LeasedNamespaces(host, scope.worker, unused_after=scope.settings.unused_copy_after)
        self._done: set[Key] = set()
        """Services that were reconciled since their namespace is in scope."""
        self._withdrawn = False
        self._progress = asyncio.Event()
        self._problems: dict[Key, str] = {}
        self.controller: Controller[Key] = Controller("services", self.reconcile, workers=8, clock=host.clock, metrics=host.metrics)
        self._services.on_change(self._service_changed)
        self.slices.on_change(self._slice_changed)
        for mirrors in (self._worker.services, self._worker.endpointslices):
            mirrors.on_change(self._mirror_changed)
        self._worker.namespaces.on_change(self._space_changed)
        self._worker.pods.on_change(self._pod_changed)

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
        if self._leased.note(pod):
            self._enter(namespace)
        try:
            async with asyncio.timeout(_FIRST_WAIT):
                while self._is_behind(namespace):
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            log.debug("the Services of namespace %s are not mirrored yet", namespace)

    def released(self, ref: PodRef) -> None:
        """Drops a pod that has nothing in the worker, and maybe never had."""
        self._use_changed(self._leased.released(ref))

    def binding_changed(self) -> None:
        """Reconciles every Service and every mirror: `spec.serviceNamespaces` may have changed."""
        self.controller.add_many(service.key for service in self._services.store)
        for mirrors in (self._worker.services, self._worker.endpointslices):
            self.controller.add_many(key for mirror in mirrors.store if (key := forms.original_of(mirror)) is not None)

    def withdraw(self, *, withdrawn: bool) -> None:
        """Deletes the mirrors of namespaces that only the binding names, as another mapping waits for that; or creates them again."""
        if withdrawn != self._withdrawn:
            self._withdrawn = withdrawn
            self.binding_changed()

    async def reconcile(self, key: Key) -> float | None:
        """Creates, updates or deletes the mirrors of one Service; returns the seconds until the next check."""
        with bind(service=str(key)):
            if not all(each.ever_synced for each in (*self._essential(), *self._worker.mirrors_of(key.namespace))):
                return _NOT_LISTED
            service = self._services.store.get(key)
            wanted = None
            if service is not None and self._in_scope(key.namespace):
                wanted = forms.desired(service, self.slices.store.by_index(_BY_SERVICE, str(key)), self._worker.mount)
            try:
                wait = await (self._remove(key) if wanted is None else self._write(key, wanted))
                self._problems.pop(key, None)
            except _Foreign as error:
                self._problems[key] = str(error)
                wait = _RECHECK_AFTER
            except (Invalid, Forbidden) as error:
                self._problems[key] = f"the worker refuses the mirror of Service {key}: {error.message}"
                wait = _RECHECK_AFTER
            except Unavailable as error:
                wait = error.retry_after
                if error.waiting == NOT_PREPARED:
                    self._problems[key] = f"Services of namespace {key.namespace} are not mirrored: {error}"
                    wait = _RECHECK_AFTER
            except (NotFound, Conflict):
                wait = _COALESCED
            self._done.add(key) if service is not None else self._done.discard(key)
            self._progress.set()
            if wait is None and wanted is not None and key.namespace not in self._named():
                return self._leased.left(key.namespace)
            return wait

    # --- scope ---

    def _in_scope(self, namespace: str) -> bool:
        # Pods of a binding that is deleted call Services until they are gone; then the mirrors are deleted, and must not be created again.
        if self._scope.binding.ending and not self._worker.pods.store.index_values(BY_VIRTUAL_NODE):
            return False
        return namespace in self._named() or self._leased.uses(namespace)

    def _named(self) -> frozenset[str]:
        binding = self._scope.binding.current
        return frozenset(binding.service_namespaces if binding is not None and not self._withdrawn else ())

    def _essential(self) -> list[Informer[Unknown]]:
        """Returns the informers without which nothing is mirrored: those of tenants concern one tenant each."""
        worker = self._worker
        of_worker = (worker.services, worker.endpointslices) if worker.mount.is_shared else (worker.namespaces,)
        return [self._services, self.slices, *of_worker]

    def _is_behind(self, namespace: str) -> bool:
        """Checks that Services of a namespace have to be mirrored yet. A tenant's rights may follow the label of its namespace."""
        if any(isinstance(each.last_error, REFUSED) for each in self._essential()):
            return False
        if not all(each.ever_synced for each in (*self._essential(), *self._worker.mirrors_of(namespace))):
            return True
        return any(each.metadata.namespace == namespace and each.key not in self._done for each in self._services.store)

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
                await self._delete(ENDPOINTSLICES, surplus)
        return None

    async def _write_service(self, key: Key, body: Json) -> None:
        live = self._worker.services.store.get(self._worker.mount.service_key(key))
        if live is None or not self._is_ours(live, key):
            live = await self._create(SERVICES, body, key)
            if live is None:
                return
        if forms.must_replace(live, body):
            await self._replace(SERVICES, live, body)
        elif (change := forms.service_change(live, body)) is not None:
            try:
                self._worker.services.adopt(await self._worker.client.patch(SERVICES, live.key, change, kind=PatchKind.MERGE))
            except Invalid:
                # Address families of a Service, for one, change within limits only.
                await self._replace(SERVICES, live, body)

    async def _write_slice(self, key: Key, body: Json) -> None:
        live = self._worker.endpointslices.store.get(Key(body["metadata"]["namespace"], body["metadata"]["name"]))
        if live is None or not self._is_ours(live, key):
            live = await self._create(ENDPOINTSLICES, body, key)
            if live is None:
                return
        if forms.is_immutable_change(live, body):
            await self._replace(ENDPOINTSLICES, live, body)
        elif forms.slice_differs(live, body):
            metadata = {**body["metadata"], "uid": live.metadata.uid, "resourceVersion": live.metadata.resource_version}
            self._worker.endpointslices.adopt(await self._worker.client.replace(ENDPOINTSLICES, {**body, "metadata": metadata}))

    async def _create(self, resource: Resource[Unknown], body: Json, key: Key) -> Unknown | None:
        """Creates a mirror; returns that which exists already, if it is ours. Raises _Foreign if it is not."""
        try:
            self._informer(resource).adopt(await self._worker.client.create(resource, body))
            return None
        except AlreadyExists:
            live = await self._worker.client.get(resource, Key(body["metadata"]["namespace"], body["metadata"]["name"]))
        if not self._is_ours(live, key):
            text = f"{resource.kind} {live.key} of the worker has another owner and the name that the mirror of Service {key} needs"
            raise _Foreign(f"{text}; rename or delete it there")
        return live

    async def _replace(self, resource: Resource[Unknown], live: Unknown, body: Json) -> None:
        await self._delete(resource, live)
        self._informer(resource).adopt(await self._worker.client.create(resource, body))

    async def _remove(self, key: Key) -> float | None:
        """Deletes the mirrors of a Service that does not exist or is out of scope, after a live read of the Service."""
        service = self._worker.services.store.get(self._worker.mount.service_key(key))
        mirrors = [service] if service is not None and self._is_ours(service, key) else []
        slices = self._slices_of(key)
        if not (mirrors or slices):
            return None
        if not (self._scope.virtual.is_complete and self._services.synced and self._worker.pods.synced):
            return _NOT_LISTED
        if self._in_scope(key.namespace) and await self._exists(key):
            return _NOT_LISTED
        for mirror in mirrors:
            await self._delete(SERVICES, mirror)
        for each in slices:
            await self._delete(ENDPOINTSLICES, each)
        return None

    async def _exists(self, key: Key) -> bool:
        """Checks that the Service exists in the hub and has a mirror."""
        try:
            return forms.desired(await self._scope.host.client.get(SERVICES, key), (), self._worker.mount) is not None
        except NotFound:
            return False

    async def _delete(self, resource: Resource[Unknown], mirror: Unknown) -> None:
        try:
            await self._worker.client.delete(resource, mirror.key, uid=mirror.metadata.uid)
        except NotFound:
            log.debug("mirror is deleted already")

    def _informer(self, resource: Resource[Unknown]) -> Informer[Unknown]:
        return self._worker.services if resource is SERVICES else self._worker.endpointslices

    def _slices_of(self, key: Key) -> list[Unknown]:
        listed = self._worker.endpointslices.store.by_index(BY_SERVICE, str(self._worker.mount.service_key(key)))
        return [each for each in listed if self._is_ours(each, key)]

    def _is_ours(self, mirror: Unknown, key: Key) -> bool:
        return classify(mirror.metadata, self._worker.mount.owner) is Ownership.OURS and forms.original_of(mirror) == key

    # --- events ---

    def _enter(self, namespace: str) -> None:
        """Reconciles the Services of a namespace that may have been out of scope until now."""
        self._done = {key for key in self._done if key.namespace != namespace}
        self._enqueue_namespace(namespace)

    def _pod_changed(self, change: Change[Pod]) -> None:
        self._use_changed(self._leased.observe(change))

    def _use_changed(self, used: tuple[str, float] | None) -> None:
        if used is None:
            return
        namespace, wait = used
        if wait:
            self._enqueue_namespace(namespace, after=wait)
        else:
            self._enter(namespace)

    def _enqueue_namespace(self, namespace: str, *, after: float = 0.0) -> None:
        for service in self._services.store.by_index(_BY_NAMESPACE, namespace):
            self.controller.add(service.key, after=after)

    def _space_changed(self, change: Change[Unknown]) -> None:
        for namespace in self._leased.namespaces() | self._named():
            if self._worker.mount.namespace_of(namespace) == change.key.name:
                self._enqueue_namespace(namespace)

    def _service_changed(self, change: Change[Unknown]) -> None:
        self.controller.add(change.key, priority=_priority(change))

    def _slice_changed(self, change: Change[Unknown]) -> None:
        for each in (change.old, change.new):
            if each is not None and (key := forms.service_of(each)).name:
                self.controller.add(key, after=_COALESCED, priority=_priority(change))

    def _mirror_changed(self, change: Change[Unknown]) -> None:
        mirror = change.new or change.old
        key = forms.original_of(mirror) if mirror is not None else None
        if mirror is not None and key is not None and self._is_ours(mirror, key):
            self.controller.add(key, after=_COALESCED, priority=_priority(change))

    # --- status ---

    async def _report(self) -> None:
        """Reports on the binding what is mirrored, and what is missing, when that has changed."""
        while True:
            await self._scope.host.clock.sleep(_REPORTED_EVERY)
            refused = "; ".join(_refusals(self._essential()))
            if refused or all(each.ever_synced for each in self._essential()):
                tenants = () if self._worker.mount.is_shared else (self._worker.services, self._worker.endpointslices)
                state = mirroring(
                    self._leased.namespaces() | self._named(),
                    self._services.store,
                    refused=refused,
                    problems=[*self._problems.values(), *_refusals(tenants)],
                    has_dns=self._has_dns(),
                    mount=self._worker.mount,
                )
                self._scope.binding.set_services(state)


class _Foreign(Exception):
    """An object of another owner has the name that a mirror needs."""


def _refusals(informers: Iterable[Informer[Unknown]]) -> list[str]:
    return [str(each.last_error) for each in informers if isinstance(each.last_error, REFUSED)]


def _priority(change: Change[Unknown]) -> Priority:
    return Priority.LOW if change.initial else Priority.HIGH


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
