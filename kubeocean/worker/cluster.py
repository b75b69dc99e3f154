"""The worker cluster of one binding while one kubeconfig is valid: its client, its caches, and the probe of its API server.

Invariant: of pods outside the namespaces of the binding only resources and ports are cached, and contents of Secrets and ConfigMaps never.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar

from attrs import evolve, frozen

from kubeocean.model import keys
from kubeocean.model.crds import POLICIES, ClusterBinding
from kubeocean.model.identity import enters, identity, where
from kubeocean.model.ownership import Ownership, classify
from kubeocean.worker.spread import SpreadInformer
from vkubelet.api import objects
from vkubelet.api.codec import encode_json
from vkubelet.api.names import SERVICE_NAME
from vkubelet.api.objects import Json, JsonView, Key, KubeObject, Node, ObjectMeta, Pod, PodRef, Resource, Unknown
from vkubelet.api.scheduling import reserved_spec
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock
from vkubelet.control.contact import Outcome, outcome_of
from vkubelet.control.informer import Informer
from vkubelet.control.reach import Reach
from vkubelet.control.store import Store
from vkubelet.errors import Forbidden, NotFound, ServerError, Unauthorized, VKubeletError
from vkubelet.metrics import Metrics

log = logging.getLogger(__name__)

T = TypeVar("T", bound=KubeObject)

BY_VIRTUAL_NODE = "virtual-node"
BY_VIRTUAL_NAMESPACE = "virtual-namespace"
BY_SERVICE = "service"
"""Index of mirrored EndpointSlices: the key of the mirror of their Service."""
_BY_HASH = "hash"
"""Index of our physical pods: the hashes of the names in their specs, among them those of the copies that they use."""

REFUSED = (Forbidden, NotFound, Unauthorized)
_MANAGED = f"{keys.MANAGED_BY}={keys.MANAGED}"


@frozen
class Mount:
    """The namespaces of a binding's objects in the worker, and the mark of their owner; `namespace` is the mount namespace."""

    owner: keys.Owner
    namespace: str
    mapping: str = keys.SINGLE

    @classmethod
    def of(cls, binding: ClusterBinding, hub_uid: str) -> Self:
        """Builds that of a binding as it is served."""
        return cls(keys.Owner(hub_uid, binding.cluster_id), binding.mount_namespace, binding.mapping)

    @property
    def identity(self) -> keys.Identity:
        return keys.Identity(self.owner.cluster_id, self.namespace, self.mapping)

    @property
    def is_shared(self) -> bool:
        """Whether all hub namespaces share the mount namespace."""
        return self.mapping == keys.SINGLE

    @property
    def tenants(self) -> Selection:
        """Selects the worker namespaces of single hub namespaces."""
        return Selection(labels=f"{keys.TENANT_OF}={self.namespace}")

    def namespace_of(self, namespace: str) -> str:
        """Returns the worker namespace for objects of a hub namespace."""
        return self.namespace if self.is_shared else self.identity.namespace_of(namespace)

    def includes(self, namespace: str) -> bool:
        """Checks whether a worker namespace may contain physical pods of this binding."""
        return namespace == self.namespace if self.is_shared else self.identity.includes(namespace)

    def copy_key(self, key: Key) -> Key:
        """Returns the key of the physical pod or the copy of a hub object."""
        return Key(self.namespace_of(key.namespace), keys.physical_name(key.namespace, key.name))

    def service_key(self, key: Key) -> Key:
        """Returns the key of the mirror of a Service of the hub, which keeps its name in a namespace of its tenant's own."""
        name = keys.service_name(key.namespace, key.name) if self.is_shared else key.name
        return Key(self.namespace_of(key.namespace), name)

    def mirror_key(self, key: Key, item: str = "") -> Key:
        """Returns the key of the mirror of an object of an extra kind, or of that which one item of it has.

        Objects without a namespace have the owner in the hash of their name: those of several hubs must not share it.
        """
        if not key.namespace:
            return Key("", keys.item_name(self.owner.mark, key.name, item))
        if item:
            return Key(self.namespace_of(key.namespace), keys.item_name(key.namespace, key.name, item))
        return self.copy_key(key) if self.is_shared else Key(self.namespace_of(key.namespace), key.name)

    def is_resolved(self, service: Key) -> bool:
        """Checks that a DNS server can compute the key of the mirror of a Service of the hub: neither name is a hash."""
        if self.is_shared:
            return keys.has_plain_name(service.namespace, service.name)
        return self.namespace_of(service.namespace) == f"{self.namespace}-{service.namespace}"


def cost_of(pod: Pod) -> Pod:
    """Reduces a pod of others to what it takes from its node: resources, as the scheduler counts them, and host ports."""
    spec = reserved_spec(pod.spec, pod.status)
    kept: Json = {"containers": _costs(spec.get("containers", ())), "initContainers": _costs(spec.get("initContainers", ()))}
    kept.update({key: spec[key] for key in ("overhead", "resources", "hostNetwork") if key in spec})
    meta = pod.metadata
    head = ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version)
    return Pod(head, pod.node, pod.phase, encode_json(kept), b"{}")


def _costs(containers: Sequence[JsonView]) -> list[Json]:
    return [
        {
            "name": container["name"],
            "resources": container.get("resources") or {},
            "ports": [port for port in container.get("ports") or () if port.get("hostPort")],
            **({"restartPolicy": container["restartPolicy"]} if container.get("restartPolicy") else {}),
        }
        for container in containers
    ]


PodIndexes = dict[str, Callable[[Pod], Iterable[str]]]
Indexes = dict[str, Callable[[Unknown], Iterable[str]]]
Keep = Callable[[Unknown], Unknown]


def virtual_uid(meta: ObjectMeta) -> str:
    """Returns the UID of the virtual pod that a physical one backs, "" for any other pod."""
    return meta.annotations.get(keys.VIRTUAL_POD_UID, "")


def heads(
    client: Client, resource: Resource[Unknown], *, clock: Clock, where: Selection = Selection(), metrics: Metrics | None = None
) -> Informer[Unknown]:
    """Creates an informer that reads and caches metadata only."""
    return Informer(client, resource, where=evolve(where, metadata_only=True), store=Store(keep=head_of), clock=clock, metrics=metrics)


def head_of(copy: Unknown) -> Unknown:
    """Drops the content of a ConfigMap or Secret, of which annotations of others may have a second copy (kubectl's last-applied)."""
    meta = copy.metadata
    head = ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        labels={key: value for key, value in meta.labels.items() if key.startswith(keys.DOMAIN)},
        annotations={key: value for key, value in meta.annotations.items() if key.startswith(keys.DOMAIN)},
        creation_timestamp=meta.creation_timestamp,
        deletion_timestamp=meta.deletion_timestamp,
    )
    head.compact()
    return Unknown(head, b"{}")


def claim_of(copy: Unknown) -> Unknown:
    """Reduces a claim to its metadata, its bound volume, and the current or pending size of that."""
    volume, status = (copy.body.get("spec") or {}).get("volumeName") or "", copy.body.get("status") or {}
    sizes = {name: status[name] for name in ("capacity", "allocatedResourceStatuses") if status.get(name)}
    sizes["conditions"] = [each["type"] for each in status.get("conditions") or ()]
    return Unknown(head_of(copy).metadata, encode_json({"spec": {"volumeName": volume}, "status": sizes}))


def _services_of(mirror: Unknown) -> Iterable[str]:
    return (str(Key(mirror.metadata.namespace, mirror.metadata.labels.get(SERVICE_NAME, ""))),)


class WorkerCluster:
    """Client and caches of one connection to the worker; `owns` selects the virtual nodes whose pods are kept, None: all."""

    def __init__(
        self, client: Client, mount: Mount, *, clock: Clock, probe_interval: float, owns: Callable[[str], bool] | None = None
    ) -> None:
        self.client = client
        self.mount = mount
        self._owns = owns
        self._clock = clock
        self.probe_interval = probe_interval
        self._backed: tuple[tuple[Pod, PodRef | None], ...] = ()
        self.namespaces: Informer[Unknown] = Informer(client, objects.NAMESPACES, where=mount.tenants, clock=clock)
        """Worker namespaces of single hub namespaces; it runs only where there are such."""
        indexes = {BY_VIRTUAL_NODE: self._virtual_nodes}
        self.nodes: Informer[Node] = Informer(client, objects.NODES, store=Store(indexes=indexes), clock=clock)
        self.pods: Informer[Pod] = Informer(client, objects.PODS, store=Store(indexes=self._pod_indexes(), keep=self._keep), clock=clock)
        self.policies: Informer[Unknown] = Informer(client, POLICIES, clock=clock)
        self.csinodes: Informer[Unknown] = Informer(client, objects.CSINODES, clock=clock)
        self.configmaps = self.copies(objects.CONFIGMAPS, keep=head_of)
        self.secrets = self.copies(objects.SECRETS, keep=head_of)
        self.claims = self.copies(objects.PVCS, keep=claim_of)
        self.services = self.copies(objects.SERVICES)
        self.endpointslices = self.copies(objects.ENDPOINTSLICES, indexes={BY_SERVICE: _services_of})
        self.networkpolicies = self.copies(objects.NETWORKPOLICIES, labels="")
        """Those of the namespaces of tenants, also of others: policies add to one another."""

    @property
    def complete(self) -> bool:
        """Whether nodes, pods and policies have each been listed completely once (rule `unknown-is-not-gone`)."""
        return self.nodes.ever_synced and self.pods.ever_synced and self.policies.ever_synced

    async def wait_complete(self) -> None:
        """Waits until `complete`."""
        for informer in (self.nodes, self.pods, self.policies):
            await informer.wait_synced()

    def stale(self) -> dict[str, float]:
        """Returns the seconds since the last response on each watch, by resource; without refused watches, which `unreadable` reports."""
        return {each.resource.plural: each.stale_for() for each in self._informers() if not isinstance(each.last_error, REFUSED)}

    def _informers(self) -> list[Informer[Any]]:
        idle = (self.namespaces, self.networkpolicies) if self.mount.is_shared else ()
        return [each for each in vars(self).values() if isinstance(each, Informer) and each not in idle]

    def unreadable(self) -> str:
        """Returns which of the worker's lists are refused, and why; empty when none is."""
        spaces = () if self.mount.is_shared else (self.namespaces,)
        lists = (self.nodes, self.pods, self.policies, self.csinodes, self.configmaps, self.secrets, *spaces)
        errors = [informer.last_error for informer in lists]
        return "; ".join(str(error) for error in errors if isinstance(error, REFUSED))

    def physical_pod(self, ref: PodRef) -> Pod | None:
        """Returns the physical pod of exactly this virtual pod from the cache."""
        pod = self.pods.store.get(self.mount.copy_key(ref.key))
        return pod if pod is not None and virtual_uid(pod.metadata) == ref.uid else None

    def pods_of(self, virtual_node: str) -> Sequence[Pod]:
        """Returns our physical pods that back pods of one virtual node."""
        return self.pods.store.by_index(BY_VIRTUAL_NODE, virtual_node)

    def backing_pods(self, owns: Callable[[str], bool] = lambda virtual: True) -> Iterator[Pod]:
        """Yields our physical pods of these virtual nodes, as of the call; they may be read in another thread."""
        return (pod for pod in self.pods.store if (ref := self.backed(pod)) is not None and owns(ref.node))

    def is_used(self, original: Key) -> bool:
        """Checks that a physical pod of ours names the copy of this hub object; unknown counts as used."""
        if not self.pods.ever_synced:
            return True
        name = self.mount.copy_key(original).name
        return any(name.encode() in pod.spec_json for pod in self.pods.store.by_index(_BY_HASH, keys.hash_of(name)))

    def mirrors_of(self, namespace: str) -> list[Informer[Unknown]]:
        """Returns the informers of the mirrors of one hub namespace; none for a tenant without a namespace in the worker."""
        space, both = self.mount.namespace_of(namespace), (self.services, self.endpointslices)
        parts = (each.part(space) if isinstance(each, SpreadInformer) else each for each in both)
        return [part for part in parts if part is not None]

    def node_of(self, virtual_node: str) -> Node | None:
        """Returns the physical node behind a virtual one."""
        found = self.nodes.store.by_index(BY_VIRTUAL_NODE, virtual_node)
        return found[0] if found else None

    async def run(self, reach: Reach) -> None:
        """Runs all informers and the probe until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers():
                group.create_task(informer.run())
            group.create_task(self._probe(reach))

    async def _probe(self, reach: Reach) -> None:
        while True:
            began = reach.now()
            error = await self._failure()
            reach.record(began, outcome_of(error), problem_of(error))
            await self._clock.sleep(self.probe_interval)

    async def _failure(self) -> VKubeletError | None:
        """Probes whether the API server is ready, over a new connection: an existing one does not prove that others can be established."""
        try:
            async with Client(self.client.connection, clock=self._clock) as client:
                await client.request("GET", "/readyz")
        except VKubeletError as error:
            return error
        return None

    def _keep(self, pod: Pod) -> Pod | None:
        if self._owns is not None and not self._owns(self._virtual_node_of(pod)):
            return None
        return pod if self.mount.includes(pod.metadata.namespace) else cost_of(pod)

    def _virtual_node_of(self, pod: Pod) -> str:
        """Returns the virtual node of a pod, by the physical one, or by the virtual pod while it is not scheduled."""
        if pod.node:
            return keys.vnode_name(self.mount.owner.cluster_id, pod.node)
        ref = identity(pod.metadata)
        return ref.node if ref is not None else ""

    def copies(
        self, resource: Resource[Unknown], *, keep: Keep | None = None, indexes: Indexes | None = None, labels: str = _MANAGED
    ) -> Informer[Unknown]:
        """Creates the informer of the copies of one kind: of each tenant's namespace alone, as the rights of the identity are."""
        client, clock = self.client, self._clock

        def of(namespace: str, *, indexes: Indexes | None = None) -> Informer[Unknown]:
            where = Selection(namespace=namespace, labels=labels, metadata_only=keep is head_of)
            return Informer(client, resource, where=where, store=Store(keep=keep, indexes=indexes), clock=clock)

        if self.mount.is_shared or not resource.namespaced:
            return of(self.mount.namespace if resource.namespaced else "", indexes=indexes)
        return SpreadInformer(client, resource, of=of, namespaces=self.namespaces, indexes=indexes)

    def _virtual_nodes(self, node: Node) -> Iterable[str]:
        return (keys.vnode_name(self.mount.owner.cluster_id, node.metadata.name),)

    def _pod_indexes(self) -> PodIndexes:
        def filed_by(value: Callable[[PodRef], str]) -> Callable[[Pod], Iterable[str]]:
            return lambda pod: (value(ref),) if (ref := self.backed(pod)) is not None else ()

        def hashes(pod: Pod) -> Iterable[str]:
            return keys.hashes_in(pod.spec_json) if self.backed(pod) is not None else ()

        indexes = {BY_VIRTUAL_NODE: filed_by(lambda ref: ref.node), BY_VIRTUAL_NAMESPACE: filed_by(lambda ref: ref.namespace)}
        return {**indexes, _BY_HASH: hashes}

    def backed(self, pod: Pod) -> PodRef | None:
        """Returns the virtual pod of one of ours; a pod created from its YAML under another name backs none."""
        # One change is filed by two indexes and passed to some handlers, each with the pod before it and the pod after it.
        for known, ref in self._backed:
            if known is pod:
                return ref
        ref = identity(pod.metadata) if classify(pod.metadata, self.mount.owner) is Ownership.OURS else None
        if ref is not None and pod.key != self.mount.copy_key(ref.key):
            ref = None
        self._backed = ((pod, ref), *self._backed[:1])
        return ref


async def owned(worker: Client, kind: Resource[T], mount: Mount) -> list[T]:
    """Returns the objects of a kind that this binding owns, found by either label and checked by the owner's mark. Raises ApiError."""
    found: dict[str, T] = {}
    spaces = await _spaces(worker, mount) if kind.namespaced else [""]
    # The identity may not read policies of the mount namespace, and has none in it.
    for space in spaces[1:] if kind is objects.NETWORKPOLICIES else spaces:
        for label in (f"{keys.MANAGED_BY}={keys.MANAGED}", f"{keys.OWNER}={mount.owner.mark}"):
            where = Selection(namespace=space, labels=label)
            found |= {obj.metadata.uid: obj for obj in (await worker.list(kind, where)).items}
    return [obj for obj in found.values() if classify(obj.metadata, mount.owner) is Ownership.OURS]


async def _spaces(worker: Client, mount: Mount) -> list[str]:
    """Returns the namespaces of the worker with objects of this binding, first that of the ledger. Raises ApiError."""
    tenants = [] if mount.is_shared else (await worker.list(objects.NAMESPACES, mount.tenants)).items
    return [mount.namespace, *(each.metadata.name for each in tenants)]


def problem_of(error: VKubeletError | None) -> str:
    """Returns the problem and the remedy; the text is stable for as long as the problem is. Empty when the worker works."""
    if outcome_of(error) is Outcome.SERVED:
        return ""
    if outcome_of(error) is Outcome.SILENT:
        return "the worker cluster does not respond; check its API server and the network to it"
    if isinstance(error, Unauthorized):
        return "the worker cluster rejects the credentials of the kubeconfig; put a valid kubeconfig into the Secret of spec.secretRef"
    if isinstance(error, ServerError):
        return f"the worker's API server responds with status {error.status}; check its control plane (GET /readyz?verbose)"
    return f"requests to the worker cluster fail ({error}); check the kubeconfig in the Secret of spec.secretRef, DNS and the network"


def has_entered(pod: Pod, worker: WorkerCluster) -> bool:
    """Checks that a physical pod exists or is recorded. The start time proves nothing: it is published with every reason to wait."""
    return bool(where(pod).name) or worker.physical_pod(pod.ref) is not None


def holds_lease(pod: Pod, worker: WorkerCluster, binding: ClusterBinding | None) -> bool:
    """Checks that the pod uses leased capacity: it is meant for the worker, or exists in it, whatever labels and owners it got since."""
    return enters(pod.metadata, binding) or has_entered(pod, worker)
