"""Unbinding: removes virtual nodes and pods first, then our objects in the worker, then our marks in the hub.

Invariant: only objects with this binding's mark are changed or waited for, and an object that cannot be read does not count as deleted;
a worker is abandoned only when a user or `spec.forceUnbindAfter` demands it, and then an Event names what was left behind.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

from attrs import evolve, field, frozen

from kubeocean.binding.conditions import NETWORK_POLICIES_MIRRORED, SERVICES_MIRRORED
from kubeocean.copies.bodies import unmark_patch
from kubeocean.leasing.reclaim import Order
from kubeocean.model import keys
from kubeocean.model.crds import POLICIES, ClusterBinding, ResourceLeasingPolicy
from kubeocean.model.identity import identity
from kubeocean.model.kinds import ExtraKind
from kubeocean.model.ownership import Mark, Ownership, classify
from kubeocean.nodes.legacy_nodes import inherited
from kubeocean.nodes.reclaim import Reclaimer
from kubeocean.policies.reconciler import released
from kubeocean.scope import Scope
from kubeocean.service.lifecycle import Awaited, Remaining, blocked
from kubeocean.service.session import Session
from kubeocean.worker.cluster import Mount, owned
from vkubelet.api import objects
from vkubelet.api.codec import decode_list
from vkubelet.api.objects import KubeObject, Node, ObjectMeta, PodRef, Resource, Unknown
from vkubelet.client.rest import Client, PatchKind, Selection
from vkubelet.clock import in_batches, parse_rfc3339
from vkubelet.errors import Conflict, Forbidden, NotFound, VKubeletError

log = logging.getLogger(__name__)

T = TypeVar("T", bound=KubeObject)

KINDS: Final[tuple[Resource[Unknown], ...]] = (objects.CONFIGMAPS, objects.SECRETS, objects.PVCS, objects.PVS)
"""Kinds that are copied to a worker beside pods."""

MIRRORS: Final[Mapping[Resource[Unknown], str]] = {
    objects.SERVICES: SERVICES_MIRRORED,
    objects.ENDPOINTSLICES: SERVICES_MIRRORED,
    objects.NETWORKPOLICIES: NETWORK_POLICIES_MIRRORED,
}
"""Kinds that are mirrored for pods, whose originals get no mark, with the condition that reports it."""

_PAGE = 500
_STUCK_AFTER = 30.0
"""Seconds without progress after which a reachable worker counts as stuck; also the default grace period of pods."""
_UNBINDING = "Unbinding"


@frozen
class _GivenUp:
    """Objects left in an abandoned worker, as far as they are known here."""

    pods: set[str] = field(factory=set)
    copies: Counter[str] = field(factory=Counter)


class Unbinding:
    """Steps that each return what is left. Each reads the state of the clusters; any may be the first.

    `reclaimer` terminates pods without the worker.
    """

    def __init__(self, scope: Scope, *, reclaimer: Reclaimer) -> None:
        self._scope = scope
        self._reclaimer = reclaimer
        self._announced: set[tuple[str, str]] = set()
        self._given_up = _GivenUp()
        self._uid, self._left, self._since = "", Remaining(), 0.0

    def forced(self, binding: ClusterBinding) -> bool:
        """Checks that the worker is to be abandoned: by annotation, or because `spec.forceUnbindAfter` has expired."""
        if binding.annotations.get(keys.FORCE_UNBIND) == "true":
            return True
        if binding.force_unbind_after is None or not binding.deleted_at:
            return False
        waited = (self._scope.host.clock.now() - parse_rfc3339(binding.deleted_at)).total_seconds()
        return waited >= binding.force_unbind_after

    def noted(self, binding: ClusterBinding, left: Remaining) -> Remaining:
        """Notes what is left, as stuck if nothing has changed for long: only then is a worker that responds abandoned."""
        now = self._scope.host.clock.monotonic()
        if (binding.uid, left) != (self._uid, self._left):
            self._uid, self._since = binding.uid, now
        self._left = left
        return evolve(left, stuck=now - self._since >= max(_STUCK_AFTER, binding.force_unbind_after or 0.0))

    async def step(self, binding: ClusterBinding, session: Session, mount: Mount) -> Remaining:
        """Performs one step with a worker that responds; returns what is left, and whether it is stuck."""
        if not self._scope.shard.is_first:
            return await self._step_of_shard(binding)
        if not session.adoption.done:
            refused = session.worker.unreadable()
            return self.noted(binding, Remaining(awaited=Awaited.PERMISSION if refused else Awaited.SCAN, problem=refused))
        try:
            left = await self._step(binding, session.worker.client, mount)
        except VKubeletError as error:
            left = self._failed(binding, error)
        return left if left.is_nothing else self.noted(binding, left)

    async def _step_of_shard(self, binding: ClusterBinding) -> Remaining:
        """Returns which nodes of this shard are left: everything else is removed by the first one."""
        try:
            left = await self._nodes_left()
        except VKubeletError as error:
            return self._failed(binding, error)
        return self.noted(binding, left) if left is not None else Remaining()

    async def without_worker(self, why: str) -> Remaining:
        """Returns what is left while the worker does not respond."""
        nodes = self._awaited(self._scope.hub_nodes.store)
        pods = await self._pods_on(nodes)
        return Remaining(awaited=Awaited.WORKER, nodes=len(nodes), pods=pods, problem=why)

    def announce_blocked(self, binding: ClusterBinding, left: Remaining) -> None:
        """Emits the Event that the worker does not respond, once."""
        if left.awaited is Awaited.WORKER:
            self._announce(binding, "UnbindingBlocked", blocked(left), warning=True)

    async def abandon(self, binding: ClusterBinding, mount: Mount) -> Remaining:
        """Performs one step without the worker; returns what is left."""
        try:
            return await self._abandon(binding, mount)
        except VKubeletError as error:
            return self._failed(binding, error)

    async def release(self) -> Remaining:
        """Removes our finalizer from the binding, of which nothing is left; returns whether that failed."""
        if not self._scope.shard.is_first:
            return Remaining()
        try:
            await self._scope.binding.let_go()
        except VKubeletError as error:
            return Remaining().failed(error)
        return Remaining()

    def _failed(self, binding: ClusterBinding, error: VKubeletError) -> Remaining:
        """Returns what was left before an attempt that failed."""
        return (self._left if self._uid == binding.uid else Remaining()).failed(error)

    def _completed(self, binding: ClusterBinding, last_seen: bool) -> None:
        """Notes the end of a stage that the attempt before had not completed: progress, although the rest of this attempt may fail."""
        if last_seen:
            self.noted(binding, Remaining())

    async def _step(self, binding: ClusterBinding, worker: Client, mount: Mount) -> Remaining:
        text = "virtual nodes and their pods are removed, then every object of this binding in the worker cluster"
        self._announce(binding, _UNBINDING, text)
        left = await self._nodes_left()
        if left is not None:
            return left
        self._completed(binding, bool(self._left.nodes))
        left = await self._delete_pods(worker, mount)
        if left is not None:
            return left
        self._completed(binding, objects.PODS.plural in dict(self._left.objects))
        left = await self._delete_copies(worker, mount)
        if left is not None:
            return left
        await self._unmark(mount, freed=Counter())
        await _release_policies(worker, binding.name, mount.owner)
        await _delete_spaces(worker, mount)
        await _release_namespace(worker, mount)
        self._announce(binding, "Unbound", "no object of this binding is left in either cluster")
        return Remaining()

    async def _abandon(self, binding: ClusterBinding, mount: Mount) -> Remaining:
        live = await self._scope.binding.live()
        if live is not None and not live.deleting:
            return Remaining(awaited=Awaited.DELETION)
        await self.give_up_nodes(since=parse_rfc3339(binding.deleted_at))
        left = await self._nodes_left()
        if left is not None:
            return left
        if not self._scope.shard.is_first:
            return Remaining()
        await self._unmark(mount, freed=self._given_up.copies)
        self._announce(binding, "UnboundByForce", self._left_behind(binding.name, mount), warning=True)
        return Remaining()

    async def give_up_nodes(self, *, since: datetime) -> None:
        """Withdraws every node and orders the termination of its pods, without the worker. Raises ApiError."""
        async for node in in_batches(self._scope.host.clock, self._scope.hub_nodes.store):
            if not self._scope.owns(node.metadata.name):
                continue
            change = inherited(node)
            if change is not None:
                await _patch(self._scope.host.client, objects.NODES, node.metadata, change["metadata"])
            self._give_up(node.metadata.name, since=since)

    async def _pods_on(self, nodes: Sequence[Node]) -> int:
        counts = [len(self._scope.host.pods.on_node(node.metadata.name)) async for node in in_batches(self._scope.host.clock, nodes)]
        return sum(counts)

    async def _nodes_left(self) -> Remaining | None:
        """Returns the Nodes of the binding and their pods; reads live only when the cache has none, as a drain runs this every second.

        Raises ApiError.
        """
        nodes = self._awaited(self._scope.hub_nodes.store)
        nodes = nodes or self._awaited((await self._scope.host.client.list(objects.NODES, self._ours())).items)
        pods = await self._pods_on(nodes)
        return Remaining(nodes=len(nodes), pods=pods) if nodes else None

    def _awaited(self, nodes: Iterable[Node]) -> list[Node]:
        """Returns the nodes that have to be removed first: those of all shards for the first one, which continues with everything else."""
        return [node for node in nodes if self._scope.shard.is_first or self._scope.owns(node.metadata.name)]

    def _give_up(self, node: str, *, since: datetime) -> None:
        self._scope.virtual.retire(node)
        pods = self._scope.host.pods.on_node(node)
        self._given_up.pods.update(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods if not pod.terminal)
        why = "its ClusterBinding is deleted, and the worker cluster is given up"
        self._reclaimer.order(node, [Order(pod.ref, since, why, _UNBINDING) for pod in pods if not pod.terminating])

    def _left_behind(self, name: str, mount: Mount) -> str:
        given = self._given_up
        pods = f"{len(given.pods)} pods ({', '.join(sorted(given.pods)[:3])} …)" if len(given.pods) > 3 else ", ".join(sorted(given.pods))
        copies = ", ".join(f"{count} {kind}" for kind, count in sorted(given.copies.items()))
        what = f"pods: {pods or 'none known'}; copies: {copies or 'none known'}"
        marked = f"with the label {keys.OWNER}={mount.owner.mark}, in namespace {mount.namespace} and PersistentVolumes"
        rest = f"the namespace's annotation {keys.MOUNT_OWNER} and the finalizer {keys.policy_finalizer(mount.owner)} of policies of {name}"
        return f"the worker cluster was given up and not cleaned up ({what}); delete its objects {marked}; remove {rest}"

    def _ours(self) -> Selection:
        return Selection(labels=f"{keys.CLUSTER_BINDING}={keys.label_value(self._scope.binding.name)}")

    # --- in the worker ---

    async def _delete_pods(self, worker: Client, mount: Mount) -> Remaining | None:
        """Deletes pods without a virtual node after a live check in the hub; returns what is left. Raises ApiError.

        Rule `orphans-are-proven`.
        """
        found = await owned(worker, objects.PODS, mount)
        for pod in found:
            ref = identity(pod.metadata)
            if pod.terminating or ref is not None and await self._exists_in_hub(ref):
                continue
            await _delete(worker, objects.PODS, pod.metadata)
        return Remaining(objects=((objects.PODS.plural, len(found)),)) if found else None

    async def _exists_in_hub(self, ref: PodRef) -> bool:
        try:
            return (await self._scope.host.client.get(objects.PODS, ref)).metadata.uid == ref.uid
        except NotFound:
            return False

    async def _delete_copies(self, worker: Client, mount: Mount) -> Remaining | None:
        # By UID, as two versions of a kind have the same objects, and kinds of two groups may have the same plural.
        left: dict[str, str] = {}
        for kind in (*KINDS, *MIRRORS, *(each.of_kind("") for each in self._extra_kinds())):
            try:
                for copy in await owned(worker, kind, mount):
                    if not copy.metadata.deletion_timestamp:
                        await _delete(worker, kind, copy.metadata)
                left |= {copy.metadata.uid: kind.plural for copy in await owned(worker, kind, mount)}
            except NotFound:
                if kind in (*KINDS, *MIRRORS):
                    raise
                log.debug("the worker does not serve the kind, and has none of its objects")
            except Forbidden:
                # Originals are marked before they are copied: where none is, there are no copies.
                if await self._has_marked(kind, mount):
                    raise
        return Remaining(objects=tuple(sorted(Counter(left.values()).items()))) if left else None

    def _extra_kinds(self) -> list[ExtraKind]:
        """Returns the kinds of which there may be mirrors: those of the setting, and those that were mirrored once."""
        found = {each.note: each for each in (*self._scope.settings.extra_kinds, *self._scope.binding.mirrored_kinds)}
        return list(found.values())

    # --- in the hub ---

    async def _has_marked(self, kind: Resource[Unknown], mount: Mount) -> bool:
        if kind in MIRRORS:
            # Their originals have no marks, but the binding reports that they were mirrored.
            return self._scope.binding.has_mirrors(MIRRORS[kind])
        if kind not in KINDS:
            return str(kind) in {each.title for each in self._scope.binding.mirrored_kinds}
        async for meta in _pages(self._scope.host.client, kind):
            if unmark_patch(meta, mount) is not None:
                return True
        return False

    async def _unmark(self, mount: Mount, *, freed: Counter[str]) -> None:
        """Removes our finalizers, labels and annotations from all objects of the hub, and counts them; labels may have been stripped."""
        client = self._scope.host.client
        for kind in KINDS:
            async for meta in _pages(client, kind):
                change = unmark_patch(meta, mount)
                if change is None:
                    continue
                try:
                    await client.patch(kind, meta, change, kind=PatchKind.MERGE)
                except NotFound:
                    log.debug("original is deleted already")
                freed[kind.plural] += 1

    def _announce(self, binding: ClusterBinding, reason: str, message: str, *, warning: bool = False) -> None:
        if (binding.uid, reason) not in self._announced:
            self._announced.add((binding.uid, reason))
            self._scope.binding.event(reason, message, warning=warning)


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


async def _delete_spaces(worker: Client, mount: Mount) -> None:
    """Deletes the namespaces that this binding created for hub namespaces; those that the worker's owner prepared stay. Raises ApiError."""
    if mount.is_shared:
        return
    for found in (await worker.list(objects.NAMESPACES, mount.tenants)).items:
        if not found.metadata.deletion_timestamp and classify(found.metadata, mount.owner) is Ownership.OURS:
            await _delete(worker, objects.NAMESPACES, found.metadata)


async def _delete(worker: Client, kind: Resource[T], meta: ObjectMeta) -> None:
    try:
        await worker.delete(kind, meta, uid=meta.uid)
    except (NotFound, Conflict):
        log.debug("object is deleted already")


async def _release_policies(worker: Client, binding: str, owner: keys.Owner) -> None:
    """Removes our claim from every policy, also from one that names another binding by now. Raises ApiError."""
    for obj in (await worker.list(POLICIES)).items:
        finalizers = obj.metadata.finalizers
        left = released(finalizers, owner, meant=ResourceLeasingPolicy.parse(obj).cluster == binding)
        if list(left) != list(finalizers):
            await _patch(worker, POLICIES, obj.metadata, {"finalizers": left})


async def _release_namespace(worker: Client, mount: Mount) -> None:
    try:
        namespace = await worker.get(objects.NAMESPACES, mount.namespace)
    except (NotFound, Forbidden):
        return
    if classify(namespace.metadata, mount.owner, mark=Mark.MOUNT) is Ownership.OURS:
        await _patch(worker, objects.NAMESPACES, namespace.metadata, {"annotations": {keys.MOUNT_OWNER: None}})


async def _patch(client: Client, kind: Resource[T], meta: ObjectMeta, change: Mapping[str, object]) -> None:
    body = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, **change}}
    try:
        await client.patch(kind, meta, body, kind=PatchKind.MERGE)
    except NotFound:
        log.debug("object is deleted already")
