"""Unbinding: removes virtual nodes and pods first, then our objects in the worker, then our marks in the hub.

Invariant: only objects with this binding's mark are changed or waited for, and an object that cannot be read does not count as deleted;
a worker is abandoned only when a user or `spec.forceUnbindAfter` demands it, and then an Event names what was left behind.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Final, TypeVar

from attrs import field, frozen

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.copies import marks
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding, ResourceLeasingPolicy
from kubeocean.model.identity import identity
from kubeocean.model.resources import POLICIES
from kubeocean.nodes.legacy_nodes import inherited
from kubeocean.nodes.reclaim import Order, Reclaimer
from kubeocean.nodes.virtual_nodes import VirtualNodes
from kubeocean.policies.claim import released
from kubeocean.worker.cluster import Mount
from vkubelet.api.codec import decode_list
from vkubelet.api.objects import KubeObject, Node, ObjectMeta, PodRef, Unknown
from vkubelet.client.resources import CONFIGMAPS, NAMESPACES, NODES, PODS, PVCS, PVS, SECRETS, Resource
from vkubelet.client.rest import Client, PatchKind, Selection
from vkubelet.clock import parse_rfc3339
from vkubelet.control.informer import Informer
from vkubelet.errors import Conflict, Forbidden, NotFound
from vkubelet.provider import Host

log = logging.getLogger(__name__)

T = TypeVar("T", bound=KubeObject)

KINDS: Final[tuple[Resource[Unknown], ...]] = (CONFIGMAPS, SECRETS, PVCS, PVS)
"""Kinds that are copied to a worker beside pods."""

_PAGE = 500
_NODES_AT_ONCE = 20
"""Nodes whose pods are ordered to terminate before other tasks run again."""
_PATIENCE = 30.0
"""Seconds without progress after which a reachable worker counts as stuck; also the default grace period of pods."""
_UNBINDING = "Unbinding"


@frozen(kw_only=True)
class UnbindingParts:
    """Dependencies of `Unbinding`; `hub_nodes` are the Nodes of this binding, `reclaimer` terminates pods without the worker."""

    host: Host
    binding: BindingReconciler
    virtual: VirtualNodes
    hub_nodes: Informer[Node]
    reclaimer: Reclaimer


@frozen
class _GivenUp:
    """Objects left in an abandoned worker, as far as they are known here."""

    pods: set[str] = field(factory=set)
    copies: Counter[str] = field(factory=Counter)


class Unbinding:
    """Steps that each return a description of what is left, "" for nothing. Each reads the state of the clusters; any may be the first."""

    def __init__(self, parts: UnbindingParts) -> None:
        self._parts = parts
        self._announced: set[tuple[str, str]] = set()
        self._given_up = _GivenUp()
        self._seen = ("", "", 0.0)

    def forced(self, binding: ClusterBinding) -> bool:
        """Checks that the worker is to be abandoned: by annotation, or because `spec.forceUnbindAfter` has expired."""
        if binding.annotations.get(keys.FORCE_UNBIND) == "true":
            return True
        if binding.force_unbind_after is None or not binding.deleted_at:
            return False
        waited = (self._parts.host.clock.now() - parse_rfc3339(binding.deleted_at)).total_seconds()
        return waited >= binding.force_unbind_after

    def stuck(self, binding: ClusterBinding, left: str) -> bool:
        """Checks that nothing has changed for long although the worker responds: only then is a reachable worker abandoned."""
        now = self._parts.host.clock.monotonic()
        if (binding.uid, left) != self._seen[:2]:
            self._seen = (binding.uid, left, now)
        return now - self._seen[2] >= max(_PATIENCE, binding.force_unbind_after or 0.0)

    def blocked(self, binding: ClusterBinding, why: str) -> str:
        """Records that the worker is unavailable, in an Event; returns what is left."""
        remedy = f"mend it, or give up what is there: annotate the binding {keys.FORCE_UNBIND}=true"
        text = f"the worker cluster can not be cleaned up: {why}; {remedy}"
        self._tell(binding, "UnbindingBlocked", text, warning=True)
        return f"{text}; left: {self._nodes_left() or 'marks on ConfigMaps, Secrets and volumes'}"

    async def step(self, binding: ClusterBinding, worker: Client, mount: Mount) -> str:
        """Performs one step with a reachable worker; returns what is left. Raises ApiError."""
        self._tell(binding, _UNBINDING, "virtual nodes and pods end, then everything of this binding is removed from the worker cluster")
        if await self._has_nodes():
            return self._nodes_left() or "virtual nodes are left"
        left = await self._end_pods(worker, mount)
        left = left or await self._delete_copies(worker, mount)
        if left:
            words = ", ".join(f"{count} {kind}" for kind, count in sorted(left.items()))
            return f"in namespace {mount.namespace} of the worker cluster there are still: {words}"
        await self._unmark(mount, freed=Counter())
        await _release_policies(worker, binding.name, mount.owner)
        await _release_namespace(worker, mount)
        self._tell(binding, "Unbound", "nothing of this binding is left in either cluster")
        return ""

    async def abandon(self, binding: ClusterBinding, mount: Mount) -> str:
        """Performs one step without the worker; returns what is left. Raises ApiError."""
        live = await self._parts.binding.live()
        if live is not None and not live.deleting:
            return "the binding was not deleted"
        await self.give_up_nodes(since=parse_rfc3339(binding.deleted_at))
        if await self._has_nodes():
            return self._nodes_left() or "virtual nodes are left"
        await self._unmark(mount, freed=self._given_up.copies)
        self._tell(binding, "UnboundByForce", self._left_behind(binding.name, mount), warning=True)
        return ""

    async def give_up_nodes(self, *, since: datetime) -> None:
        """Withdraws every node and orders the termination of its pods, without the worker. Raises ApiError."""
        for position, node in enumerate(self._parts.hub_nodes.store):
            if position % _NODES_AT_ONCE == 0:
                await self._parts.host.clock.sleep(0)
            change = inherited(node)
            if change is not None:
                await _patch(self._parts.host.client, NODES, node.metadata, change["metadata"])
            self._give_up(node.metadata.name, since=since)

    async def _has_nodes(self) -> bool:
        """Checks for Nodes of the binding; reads live only when the cache has none, as a drain runs this every second. Raises ApiError."""
        return len(self._parts.hub_nodes.store) > 0 or bool((await self._parts.host.client.list(NODES, self._ours())).items)

    def _give_up(self, node: str, *, since: datetime) -> None:
        parts = self._parts
        parts.virtual.retire(node)
        pods = parts.host.pods.on_node(node)
        self._given_up.pods.update(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods if not pod.terminal)
        why = "its binding is deleted, and the worker cluster is given up"
        parts.reclaimer.order(node, [Order(pod.ref, since, why, _UNBINDING) for pod in pods if not pod.terminating])

    def _left_behind(self, name: str, mount: Mount) -> str:
        given = self._given_up
        pods = f"{len(given.pods)} pods ({', '.join(sorted(given.pods)[:3])} …)" if len(given.pods) > 3 else ", ".join(sorted(given.pods))
        copies = ", ".join(f"{count} {kind}" for kind, count in sorted(given.copies.items()))
        what = f"pods: {pods or 'none known'}; copies: {copies or 'none known'}"
        where = f"delete there what bears the label {keys.OWNER}={mount.owner.mark} in namespace {mount.namespace}, and PersistentVolumes"
        rest = f"the namespace's annotation {keys.MOUNT_OWNER} and the finalizer {keys.policy_finalizer(mount.owner)} of policies of {name}"
        return f"the worker cluster was given up and not cleaned up ({what}); {where}; take off {rest}"

    def _nodes_left(self) -> str:
        names = [node.metadata.name for node in self._parts.hub_nodes.store]
        if not names:
            return ""
        pods = sum(len(self._parts.host.pods.on_node(name)) for name in names)
        return f"{len(names)} virtual nodes with {pods} pods"

    def _ours(self) -> Selection:
        return Selection(labels=f"{keys.CLUSTER_BINDING}={keys.label_value(self._parts.binding.name)}")

    # --- in the worker ---

    async def _end_pods(self, worker: Client, mount: Mount) -> Counter[str]:
        """Deletes orphans, pods without a virtual node, after a live check in the hub (rule 2); returns what is left. Raises ApiError."""
        found = await _marked(worker, PODS, mount)
        for pod in found:
            ref = identity(pod.metadata)
            if pod.terminating or ref is not None and await self._lives(ref):
                continue
            await _delete(worker, PODS, pod.metadata)
        return Counter({PODS.plural: len(found)} if found else {})

    async def _lives(self, ref: PodRef) -> bool:
        try:
            return (await self._parts.host.client.get(PODS, ref)).metadata.uid == ref.uid
        except NotFound:
            return False

    async def _delete_copies(self, worker: Client, mount: Mount) -> Counter[str]:
        left: Counter[str] = Counter()
        for kind in KINDS:
            try:
                for copy in await _marked(worker, kind, mount):
                    if not copy.metadata.deletion_timestamp:
                        await _delete(worker, kind, copy.metadata)
                left[kind.plural] = len(await _marked(worker, kind, mount))
            except Forbidden:
                # Originals are marked before they are copied: where none is, there are no copies.
                if await self._has_marked(kind, mount):
                    raise
        return +left

    # --- in the hub ---

    async def _has_marked(self, kind: Resource[Unknown], mount: Mount) -> bool:
        async for meta in _pages(self._parts.host.client, kind):
            if marks.removed(meta, mount) is not None:
                return True
        return False

    async def _unmark(self, mount: Mount, *, freed: Counter[str]) -> None:
        """Removes our finalizers, labels and annotations from all objects of the hub, and counts them; labels may have been stripped."""
        client = self._parts.host.client
        for kind in KINDS:
            async for meta in _pages(client, kind):
                change = marks.removed(meta, mount)
                if change is None:
                    continue
                try:
                    await client.patch(kind, meta, change, kind=PatchKind.MERGE)
                except NotFound:
                    log.debug("original is gone")
                freed[kind.plural] += 1

    def _tell(self, binding: ClusterBinding, reason: str, message: str, *, warning: bool = False) -> None:
        if (binding.uid, reason) not in self._announced:
            self._announced.add((binding.uid, reason))
            self._parts.binding.event(reason, message, warning=warning)


async def _pages(client: Client, kind: Resource[Unknown]) -> AsyncIterator[ObjectMeta]:
    """Yields the metadata of all objects of a kind, page by page: they may be many and large. Raises ApiError."""
    token = ""
    while True:
        params = [("limit", str(_PAGE)), *([("continue", token)] if token else [])]
        page = decode_list(Unknown, await client.request("GET", kind.path(""), params=params))
        for obj in page.items:
            yield obj.metadata
        token = page.continue_
        if not token:
            return


async def _marked(worker: Client, kind: Resource[T], mount: Mount) -> list[T]:
    """Returns the objects of a kind that this binding owns, found by either label and checked by the owner's mark. Raises ApiError."""
    found: dict[str, T] = {}
    for label in (f"{keys.MANAGED_BY}={keys.MANAGED}", f"{keys.OWNER}={mount.owner.mark}"):
        where = Selection(namespace=mount.namespace if kind.namespaced else "", labels=label)
        found |= {obj.metadata.uid: obj for obj in (await worker.list(kind, where)).items}
    return [obj for obj in found.values() if mount.owner.owns(obj.metadata)]


async def _delete(worker: Client, kind: Resource[T], meta: ObjectMeta) -> None:
    try:
        await worker.delete(kind, meta, uid=meta.uid)
    except (NotFound, Conflict):
        log.debug("object is gone already")


async def _release_policies(worker: Client, binding: str, owner: keys.Owner) -> None:
    """Removes our claim from every policy, also from one that names another binding by now. Raises ApiError."""
    for obj in (await worker.list(POLICIES)).items:
        finalizers = obj.metadata.finalizers
        left = released(finalizers, owner, meant=ResourceLeasingPolicy.parse(obj).cluster == binding)
        if list(left) != list(finalizers):
            await _patch(worker, POLICIES, obj.metadata, {"finalizers": left})


async def _release_namespace(worker: Client, mount: Mount) -> None:
    try:
        namespace = await worker.get(NAMESPACES, mount.namespace)
    except (NotFound, Forbidden):
        return
    if namespace.metadata.annotations.get(keys.MOUNT_OWNER) == mount.owner.mark:
        await _patch(worker, NAMESPACES, namespace.metadata, {"annotations": {keys.MOUNT_OWNER: None}})


async def _patch(client: Client, kind: Resource[T], meta: ObjectMeta, change: Mapping[str, object]) -> None:
    body = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, **change}}
    try:
        await client.patch(kind, meta, body, kind=PatchKind.MERGE)
    except NotFound:
        log.debug("object is gone")
