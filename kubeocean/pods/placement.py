"""Places a pod: the physical node it runs on, and what its physical pod has to know of the hub and of the worker.

Of the hub these are the addresses of its API server and DNS, from the binding or from Kubeocean's two LoadBalancer Services, and the
environment variables of the Services in the pod's namespace (FOO_SERVICE_HOST …), as a kubelet of the hub sets them when
`enableServiceLinks` is on.

Invariant: a pod is placed on the physical node behind the virtual node its scheduler chose, and on no other. No address of the hub is
needed for a pod to start; a missing one is reported once on the binding. When a Service is created, moved or deleted, this affects the
pods created from then on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from attrs import Factory, define, evolve, field, frozen

from kubeocean.model import keys
from kubeocean.model.crds import ApiServerAccess, ClusterBinding, DnsAccess
from kubeocean.model.dns import services_zone
from kubeocean.model.identity import Target, replicaset_name, workload, workload_of
from kubeocean.model.ownership import Ownership, classify
from kubeocean.scope import Scope, WorkerScope
from kubeocean.worker.cluster import WorkerCluster
from vkubelet.api.codec import encode_json
from vkubelet.api.objects import PRIORITYCLASSES, REPLICASETS, SERVICES, Json, Key, ObjectMeta, Pod, Unknown
from vkubelet.client.rest import Selection
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.errors import AlreadyExists, Forbidden, NotFound, Unavailable
from vkubelet.provider import Host
from vkubelet.resolve.environment import MASTER, MASTER_NAMESPACE, service_variables

log = logging.getLogger(__name__)

API_SERVER: Final = Key("default", "kubernetes-intranet")
DNS: Final = Key("kube-system", "kube-dns-intranet")

_FIRST_LIST: Final = 5.0
_REMEMBERED: Final = 2000
"""ReplicaSets whose Deployment is remembered."""
_BINDING_RETRIED_AFTER: Final = 10.0
_BY_NAMESPACE: Final = "namespace"
_ADDRESSING: Final = (
    "type",
    "clusterIP",
    "externalName",
    "ports",
    "ipFamilies",
    "sessionAffinity",
    "sessionAffinityConfig",
    "publishNotReadyAddresses",
)


@frozen
class Access:
    """Addresses that were found, each None when there is none."""

    api_server: ApiServerAccess | None = None
    dns: DnsAccess | None = None


class HubAccess:
    """Watches the two Services by which pods in the worker reach the hub's API server and DNS."""

    def __init__(self, scope: Scope) -> None:
        self._binding = scope.binding
        self._domain = scope.settings.cluster_domain
        self._services = {key: _one_service(scope.host, key) for key in (API_SERVER, DNS)}
        self._reported = False

    async def run(self) -> None:
        """Watches them until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._services.values():
                group.create_task(informer.run())

    @property
    def known(self) -> Access:
        """Addresses that the Services have now."""
        api_server, dns = (informer.store.get(key) for key, informer in self._services.items())
        servers = DnsAccess((_address(dns),), self._domain) if dns is not None and _address(dns) else None
        return Access(_access(api_server), servers)

    async def find(self, binding: ClusterBinding) -> Access:
        """Returns the addresses that the binding does not specify itself. Raises Unavailable while the Services were never listed."""
        if binding.api_server is not None and binding.dns is not None:
            return Access()
        for informer in self._services.values():
            await listed(informer)
        found = self.known
        is_missing = binding.api_server is None and found.api_server is None
        if is_missing and not self._reported:
            text = f"pods in the worker cannot reach this cluster's API server: set spec.apiServerAccess, or create Service {API_SERVER}"
            self._binding.event("NoApiServerAccess", text)
        self._reported = is_missing
        return found


class ServiceLinks:
    """Watches the Services of the hub; variables contain the address of a Service's mirror in the worker, where it has one.

    The variables of the API server's own are omitted: `spec.apiServerAccess` defines how pods in the worker reach it.
    """

    def __init__(self, host: Host, worker: WorkerCluster) -> None:
        self._worker = worker
        self.entering: Callable[[Pod], Awaitable[None]] | None = None
        """Waits until the Services of a pod's namespace are mirrored."""
        store: Store[Unknown] = Store(indexes={_BY_NAMESPACE: lambda service: [service.metadata.namespace]}, keep=addresses_of)
        self.informer: Informer[Unknown] = Informer(host.client, SERVICES, store=store, clock=host.clock, metrics=host.metrics)
        self._variables: dict[str, Mapping[str, str]] = {}
        """By namespace, until one of its Services changes, or a mirror of one; the pods of a namespace have the same."""
        self._mirrored: dict[Key, str] = {}
        """Namespaces in `_variables` by the keys of the mirrors of their Services, whether these exist or not."""
        self.informer.on_change(self._service_changed)
        worker.services.on_change(lambda change: self._drop(self._mirrored.get(change.key, "")))

    async def find(self, pod: Pod) -> Mapping[str, str]:
        """Returns the variables for a pod that is about to be created. Raises Unavailable while the Services were never listed."""
        await listed(self.informer)
        if self.entering is not None:
            await self.entering(pod)
        return self.known(pod)

    def known(self, pod: Pod) -> Mapping[str, str]:
        """Returns the variables of the Services in the pod's namespace as they are in the cache; the caller must not change them."""
        namespace = pod.metadata.namespace
        if pod.spec.get("enableServiceLinks") is False or not self.informer.store.has(_BY_NAMESPACE, namespace):
            return {}
        if namespace not in self._variables:
            services = [each for each in self.informer.store.by_index(_BY_NAMESPACE, namespace) if each.key != (MASTER_NAMESPACE, MASTER)]
            self._mirrored |= {self._worker.mount.service_key(each.key): namespace for each in services}
            self._variables[namespace] = service_variables(map(self._reachable, services), namespace=namespace, links=True)
        return self._variables[namespace]

    def _service_changed(self, change: Change[Unknown]) -> None:
        self._drop(change.key.namespace)
        if change.new is None:
            self._mirrored.pop(self._worker.mount.service_key(change.key), None)

    def _drop(self, namespace: str) -> None:
        self._variables.pop(namespace, None)

    def _reachable(self, service: Unknown) -> Json:
        body, mirror = service.body, self._worker.services.store.get(self._worker.mount.service_key(service.key))
        if mirror is not None and classify(mirror.metadata, self._worker.mount.owner) is Ownership.OURS:
            address = (mirror.body.get("spec") or {}).get("clusterIP") or ""
            body["spec"] = {**(body.get("spec") or {}), "clusterIP": address}
        return body


@define(kw_only=True, eq=False)
class Placement:
    """Builds the Target of a pod."""

    scope: WorkerScope
    access: HubAccess = Factory(lambda self: HubAccess(self.scope), takes_self=True)
    services: ServiceLinks = Factory(lambda self: ServiceLinks(self.scope.host, self.scope.worker), takes_self=True)
    _replicasets: dict[str, ObjectMeta] = field(factory=dict, init=False)
    _has_priority_class: bool = field(default=False, init=False)

    def uses_hub_dns(self) -> bool:
        """Returns whether pods in the worker use the DNS of the hub."""
        binding = self.scope.binding.current
        return (binding is not None and binding.dns is not None) or self.access.known.dns is not None

    async def run(self) -> None:
        """Watches the Services of the hub until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.access.run())
            group.create_task(self.services.informer.run())

    async def target(self, pod: Pod, binding: ClusterBinding) -> Target:
        """Returns the Target of a pod that is about to be created. Raises Unavailable when its node is not declared, ApiError."""
        if problems := binding.overrides.problems():
            raise Unavailable(f"ClusterBinding {binding.name} is not valid: {problems[0]}", retry_after=_BINDING_RETRIED_AFTER)
        node = self.scope.virtual.physical_name(pod.node)
        if not node:
            raise Unavailable(f"node {pod.node} is not declared yet; pod {pod.key} is started once it is", retry_after=2.0)
        replicaset = await self._replicaset(pod)
        access = await self.access.find(binding)
        target = Target.of(
            binding,
            owner=self.scope.worker.mount.owner,
            node=node,
            workload=workload(pod.metadata, replicaset=replicaset),
            api_server=access.api_server,
            dns=access.dns,
        )
        services = await self.services.find(pod)
        return evolve(target, namespace=self._namespace_of(pod), services=services, services_zone=self._zone(pod))

    def known_target(self, pod: Pod, physical: Pod, binding: ClusterBinding) -> Target:
        """Returns the Target of a pod that exists in the worker; its labels record the workload that created it."""
        access = self.access.known
        target = Target.of(
            binding,
            owner=self.scope.worker.mount.owner,
            node=physical.node,
            workload=workload_of(physical, pod),
            api_server=access.api_server,
            dns=access.dns,
        )
        return evolve(target, namespace=self._namespace_of(pod), services=self.services.known(pod))

    def _namespace_of(self, pod: Pod) -> str:
        return self.scope.worker.mount.namespace_of(pod.metadata.namespace)

    def _zone(self, pod: Pod) -> str:
        worker = self.scope.worker
        is_mirrored = all(each.ever_synced for each in worker.mirrors_of(pod.metadata.namespace))
        return services_zone(worker.mount.namespace) if is_mirrored else ""

    async def ensure_priority_class(self, target: Target) -> None:
        """Creates Kubeocean's own class in the worker unless it exists; a class that the binding names is left to its owner."""
        if self._has_priority_class or target.priority_class != keys.DEFAULT_PRIORITY_CLASS:
            return
        body = {
            "metadata": {"name": keys.DEFAULT_PRIORITY_CLASS, "labels": {keys.MANAGED_BY: keys.MANAGED}},
            "value": keys.DEFAULT_PRIORITY,
            "globalDefault": False,
            "preemptionPolicy": "PreemptLowerPriority",
            "description": "Pods leased to a computing cluster; they give way to local ones.",
        }
        try:
            await self.scope.worker.client.create(PRIORITYCLASSES, body)
            log.info("priority class created")
        except (AlreadyExists, Forbidden):
            log.debug("priority class exists, or is left to the worker's owner")
        self._has_priority_class = True

    def recheck_priority_class(self) -> None:
        """Makes the next call create the class again if it was deleted, which is one reason why the worker forbids to create a pod."""
        self._has_priority_class = False

    async def _replicaset(self, pod: Pod) -> ObjectMeta | None:
        name = replicaset_name(pod.metadata)
        if not name:
            return None
        uid = pod.metadata.owner_references[0].uid
        if uid not in self._replicasets:
            try:
                found = await self.scope.host.client.get(REPLICASETS, Key(pod.metadata.namespace, name))
            except NotFound:
                return None
            if len(self._replicasets) >= _REMEMBERED:
                self._replicasets.pop(next(iter(self._replicasets)))
            self._replicasets[uid] = found.metadata
        return self._replicasets[uid]


def _one_service(host: Host, key: Key) -> Informer[Unknown]:
    where = Selection(namespace=key.namespace, fields=f"metadata.name={key.name}")
    return Informer(host.client, SERVICES, where=where, clock=host.clock)


async def listed(informer: Informer[Unknown]) -> None:
    """Waits at most five seconds for the first list; Services that may not be read count as none. Raises Unavailable on timeout."""
    if informer.ever_synced or isinstance(informer.last_error, Forbidden):
        return
    try:
        async with asyncio.timeout(_FIRST_LIST):
            await informer.wait_synced()
    except TimeoutError:
        if not isinstance(informer.last_error, Forbidden):
            text = f"the Services of this cluster cannot be listed: {informer.last_error or 'there is no response yet'}"
            raise Unavailable(text, retry_after=1.0) from None


def _access(service: Unknown | None) -> ApiServerAccess | None:
    if service is None or not _address(service):
        return None
    ports = (service.body.get("spec") or {}).get("ports") or ()
    return ApiServerAccess(_address(service), ports[0]["port"]) if ports else None


def _address(service: Unknown) -> str:
    ingress = ((service.body.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    return next((each["ip"] for each in ingress if each.get("ip")), "")


def addresses_of(service: Unknown) -> Unknown:
    """Returns the Service with only its name, and the fields by which clients reach it."""
    meta, spec = service.metadata, service.body.get("spec") or {}
    head = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid, "resourceVersion": meta.resource_version}
    if meta.deletion_timestamp:
        head["deletionTimestamp"] = meta.deletion_timestamp
    kept = {name: spec[name] for name in _ADDRESSING if spec.get(name)}
    return Unknown.decode(encode_json({"metadata": head, "spec": kept}))
