"""What the agent knows of its worker: version, resources of its nodes, what pods have requested, claims.

Invariant: of a Node only its share is retained, and of a Pod its requests, so that memory does not grow with specs. What could not be read
is unknown, which is not the same as absent.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from fleet.agent.providers import COLLECTED, STARTED, Outcome, PropertyProviders
from fleet.api import keys
from fleet.api.clusters import ClusterClaim
from fleet.api.resources import CLUSTERCLAIMS
from fleet.core.properties import Inventory, NodeShare, requests
from vkubelet.api.codec import decode_json, encode_json
from vkubelet.api.names import BETA_INSTANCE_TYPE, INSTANCE_TYPE, REGION, ZONE
from vkubelet.api.objects import NAMESPACES, NODES, PODS, Json, Node, ObjectMeta, Pod, Resource, Unknown
from vkubelet.api.quantity import format_resources
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock
from vkubelet.control.informer import Informer
from vkubelet.control.store import Store
from vkubelet.errors import Forbidden, NotFound, VKubeletError
from vkubelet.metrics import Metrics

CLUSTERPROPERTIES: Final = Resource("about.k8s.io", "v1", "clusterproperties", "ClusterProperty", False, Unknown)
_RUNNING: Final = Selection(fields="status.phase!=Succeeded,status.phase!=Failed")
_LABELS: Final = (INSTANCE_TYPE, BETA_INSTANCE_TYPE, REGION, ZONE)


@frozen(kw_only=True)
class WorkerFacts:
    """The state of a worker; None is unknown."""

    version: str | None = None
    inventory: Inventory | None = None
    claims: Mapping[str, str] | None = None
    """ClusterClaims that are reported to the hub, and what is known without them."""
    cluster_properties: Mapping[str, str] = field(factory=dict)
    """ClusterProperty objects; they win over claims."""
    provided: Mapping[str, str] = field(factory=dict)
    """Properties of property providers; claims of the same name win over them."""
    started: Outcome = STARTED
    collected: Outcome = COLLECTED
    """State of the property providers."""
    missing: Sequence[str] = ()
    """What the agent may not read, each with the rule to add."""


class WorkerInventory:
    """Watches nodes and pods. `run` it in a task group."""

    def __init__(
        self, worker: Client, *, cluster_properties: bool, clock: Clock, metrics: Metrics, providers: PropertyProviders | None = None
    ) -> None:
        self.nodes = Informer(worker, NODES, store=Store(keep=node_head), clock=clock, metrics=metrics)
        self.pods = Informer(worker, PODS, where=_RUNNING, store=Store(keep=pod_head), clock=clock, metrics=metrics)
        self._worker = worker
        self._providers = providers if providers is not None else PropertyProviders(clock)
        self._cluster_properties = cluster_properties
        self._claims: dict[str, str] | None = None
        self._properties: dict[str, str] = {}
        self._id = ""

    async def run(self) -> None:
        """Watches until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.nodes.run(), name="nodes")
            group.create_task(self.pods.run(), name="pods")
            group.create_task(self._providers.run(), name="property providers")

    async def wait_synced(self) -> None:
        """Waits until nodes and pods were listed completely."""
        await self.nodes.wait_synced()
        await self.pods.wait_synced()

    async def read(self) -> WorkerFacts:
        """Reads what is not watched; returns all that is known. What cannot be read now is as it was read last."""
        missing = [_rule_for(each.resource) for each in (self.nodes, self.pods) if isinstance(each.last_error, Forbidden)]
        version = await self._read_version()
        read = {keys.VERSION_CLAIM: version, keys.CLUSTER_ID_CLAIM: await self._read_id()}
        known = {name: value for name, value in read.items() if value}
        try:
            self._claims = known | await self._read_claims()
            if self._cluster_properties:
                self._properties = await self._read_properties()
        except Forbidden as error:
            self._claims = self._claims or known
            missing.append(_rule_for(CLUSTERPROPERTIES if CLUSTERPROPERTIES.plural in error.attempt else CLUSTERCLAIMS))
        except VKubeletError:
            pass
        return WorkerFacts(
            version=version or None,
            inventory=self.inventory(),
            claims=self._claims,
            cluster_properties=self._properties,
            provided=self._providers.properties,
            started=self._providers.started,
            collected=self._providers.collected,
            missing=missing,
        )

    def inventory(self) -> Inventory | None:
        """Adds up nodes and pods; None until both were listed. Without the right to read pods, nothing counts as requested."""
        if not self.nodes.ever_synced or not (self.pods.ever_synced or isinstance(self.pods.last_error, Forbidden)):
            return None
        return Inventory.of(map(NodeShare.of, self.nodes.store), map(requests, self.pods.store))

    async def _read_version(self) -> str:
        try:
            return str(decode_json(await self._worker.request("GET", "/version")).get("gitVersion", ""))
        except (VKubeletError, ValueError):
            return ""

    async def _read_id(self) -> str:
        """Returns the UID that identifies the cluster; "" when it cannot be read."""
        if not self._id:
            try:
                self._id = (await self._worker.get(NAMESPACES, "kube-system")).metadata.uid
            except VKubeletError:
                return ""
        return self._id

    async def _read_claims(self) -> dict[str, str]:
        """Returns the claims that are reported. Raises ApiError."""
        found = map(ClusterClaim.parse, await self._listed(CLUSTERCLAIMS))
        return {each.meta.name: each.value for each in found if each.value and not each.stays_local}

    async def _read_properties(self) -> dict[str, str]:
        found = {each.metadata.name: (each.body.get("spec") or {}).get("value") for each in await self._listed(CLUSTERPROPERTIES)}
        return {name: value for name, value in found.items() if isinstance(value, str) and value}

    async def _listed(self, resource: Resource[Unknown]) -> Iterable[Unknown]:
        """Lists objects; none of a kind that the worker does not serve. Raises ApiError."""
        try:
            return (await self._worker.list(resource)).items
        except NotFound:
            return ()


def node_head(node: Node) -> Node:
    """Returns what is retained of a Node."""
    spec, status = node.spec, node.status
    kept = {name: status[name] for name in ("capacity", "allocatable") if name in status}
    return Node(_head(node.metadata), encode_json({"unschedulable": True} if spec.get("unschedulable") else {}), encode_json(kept))


def pod_head(pod: Pod) -> Pod | None:
    """Returns what is retained of a Pod: one container with its requests; None for one that takes nothing."""
    taken = requests(pod)
    if not taken:
        return None
    spec: Json = {"containers": [{"name": "all", "resources": {"requests": format_resources(taken)}}]}
    return Pod(_head(pod.metadata), pod.node, pod.phase, encode_json(spec), b"{}")


def _head(meta: ObjectMeta) -> ObjectMeta:
    labels = {name: meta.labels[name] for name in _LABELS if name in meta.labels}
    return ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version, labels=labels)


def _rule_for(resource: Resource[Node] | Resource[Pod] | Resource[Unknown]) -> str:
    rule = f'{{apiGroups: ["{resource.group}"], resources: [{resource.plural}], verbs: [list, watch]}}'
    return f"{resource.plural}, which the agent may not list; add to its ClusterRole the rule {rule}"
