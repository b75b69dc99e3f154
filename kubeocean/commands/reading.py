"""Reads what the process of a binding decides from: the binding, both clusters' nodes and pods, and the policies.

Invariant: objects are classified and counted by the caches of the process, filled once from lists; nothing is written.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from attrs import evolve, field, frozen

from kubeocean.binding.virtual_nodes import description_of
from kubeocean.explain.budgets import Budgets
from kubeocean.explain.lease import Lease, LeasedNode
from kubeocean.leasing.capacity import Usage
from kubeocean.leasing.policy import NodeFacts, Terms
from kubeocean.leasing.reclaim import LeasedPod
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, POLICIES, ClusterBinding, ResourceLeasingPolicy
from kubeocean.nodes.describe import closed_since, eligible, lease_record
from kubeocean.worker.cluster import Mount, WorkerCluster, holds_lease
from kubeocean.worker.connect import Target, find_target
from vkubelet.api.names import SYSTEM_NAMESPACE
from vkubelet.api.objects import NAMESPACES, NODES, PDBS, PODS, SECRETS, Key, Node, Pod
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import SystemClock, in_batches
from vkubelet.commands.clusters import Choice, CommandFailed, connection_of, explained
from vkubelet.commands.reading import Reader
from vkubelet.errors import SettingsError

T = TypeVar("T")

FIELD_MANAGER = "kubeocean-reader"
_BATCH = 200
"""Pods or nodes that are processed in one turn of the event loop, which takes some milliseconds."""


@frozen(kw_only=True)
class Snapshot:
    """One binding and its worker, as read now."""

    binding: ClusterBinding
    lease: Lease
    worker: WorkerCluster
    virtual: Mapping[str, Node]
    """Virtual nodes of the binding in the hub, by name."""
    policies: Sequence[ResourceLeasingPolicy]
    """All policies of the worker, also those for other bindings."""
    notes: Sequence[str] = field(factory=list)
    """What could not be read, or makes the process of the binding do nothing."""

    def node(self, name: str) -> LeasedNode | None:
        """Returns the node of this name, physical or virtual."""
        return next((each for each in self.lease.nodes if name in (each.virtual, each.facts.name)), None)


# --- The hub ------------------------------------------------------------------------------------------------------------------------------


async def bindings(hub: Reader, name: str = "") -> list[ClusterBinding]:
    """Reads all bindings, or the one that is named. Raises CommandFailed when there is none."""
    found = [ClusterBinding.parse(obj) for obj in await hub.list(CLUSTERBINDINGS)]
    chosen = sorted((each for each in found if name in ("", each.name)), key=lambda each: each.name)
    if not chosen:
        which = f"ClusterBinding {name}" if name else "ClusterBinding"
        raise CommandFailed(f"the {hub.choice.title} has no {which}; `kubeocean status` lists those that exist")
    return chosen


def binding_of(node: Node, found: Iterable[ClusterBinding]) -> ClusterBinding | None:
    """Returns the binding of a virtual node; None for any other node (pure)."""
    label = node.metadata.labels.get(keys.CLUSTER_BINDING, "")
    return next((each for each in found if label and keys.label_value(each.name) == label), None)


async def owner_of(hub: Reader, binding: ClusterBinding) -> keys.Owner:
    """Reads the identity with which the objects of the binding are marked in the worker. Raises CommandFailed."""
    namespace = await hub.get(NAMESPACES, SYSTEM_NAMESPACE)
    if namespace is None:
        raise CommandFailed(f"the {hub.choice.title} has no namespace {SYSTEM_NAMESPACE}, whose UID identifies it")
    return keys.Owner(namespace.metadata.uid, binding.cluster_id)


async def virtual_nodes(hub: Reader, binding: ClusterBinding) -> dict[str, Node]:
    """Reads the virtual nodes of a binding."""
    where = Selection(labels=f"{keys.CLUSTER_BINDING}={keys.label_value(binding.name)}")
    return {node.metadata.name: node for node in await hub.list(NODES, where)}


# --- The worker ---------------------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def worker_reader(hub: Reader, binding: ClusterBinding, owner: keys.Owner, *, chosen: Choice | None) -> AsyncIterator[Reader]:
    """Opens the worker of a binding: as `chosen` by flags, else by the kubeconfig in the binding's Secret. Raises CommandFailed."""
    if chosen is not None:
        choice, connection = chosen, await connection_of(chosen)
    else:
        choice, connection = await _by_secret(hub, binding, owner)
    async with Client(connection, field_manager=FIELD_MANAGER) as client:
        yield Reader(client, choice)


async def _by_secret(hub: Reader, binding: ClusterBinding, owner: keys.Owner) -> tuple[Choice, Connection]:
    secret = Key(binding.secret.namespace, binding.secret.name)
    instead = (hub.choice.otherwise or "or name the worker cluster by --worker-context").format(binding=binding.name)
    try:
        await hub.get(SECRETS, secret)
        with explained(hub.choice):
            found = await find_target(hub.client, binding, owner.hub_uid)
    except CommandFailed as error:
        raise CommandFailed(f"{error}; {instead}") from error
    if not isinstance(found, Target):
        raise CommandFailed(f"ClusterBinding {binding.name}: {found.message}; {instead}")
    return Choice(f"worker cluster of ClusterBinding {binding.name}", f"the kubeconfig in Secret {secret}"), found.connection


def empty_worker(client: Client, binding: ClusterBinding, owner: keys.Owner) -> WorkerCluster:
    """Returns the caches of a worker of which nothing is read yet."""
    return WorkerCluster(client, Mount.of(binding, owner.hub_uid), clock=SystemClock(), probe_interval=0.0)


async def snapshot(hub: Reader, binding: ClusterBinding, *, chosen: Choice | None = None, pods_of: str = "") -> Snapshot:
    """Reads everything that decides about the nodes of a binding; with `pods_of`, only the pods of this virtual node are read in the hub.

    Raises CommandFailed, which names a missing right.
    """
    owner = await owner_of(hub, binding)
    virtual = await virtual_nodes(hub, binding)
    where = Selection(fields=f"spec.nodeName={pods_of}") if pods_of else Selection()
    pods = await hub.list_if_allowed(PODS, where, otherwise="pods of virtual nodes are not shown, and no eviction is foretold")
    budgets = await hub.list_if_allowed(PDBS, otherwise="evictions that a PodDisruptionBudget blocks are not marked") if pods else ()
    async with worker_reader(hub, binding, owner, chosen=chosen) as reader:
        worker = empty_worker(reader.client, binding, owner)
        policies = [ResourceLeasingPolicy.parse(obj) for obj in await reader.list(POLICIES)]
        for node in await reader.list(NODES):
            worker.nodes.adopt(node)
        async for pod in _in_turns(await reader.list(PODS)):
            worker.pods.adopt(pod)
    lease = await lease_of(binding, worker=worker, policies=policies, virtual=virtual, pods=pods or ())
    if budgets is not None:
        leased = {each.ref.uid for node in lease.nodes for each in node.pods}
        lease = evolve(lease, budgets=Budgets.of(budgets, [pod for pod in pods or () if pod.metadata.uid in leased]))
    notes = [*hub.missing, *reader.missing, *(f"ClusterBinding {binding.name}: {each}" for each in binding.validate())]
    if binding.deleting:
        notes.append(f"ClusterBinding {binding.name} is being deleted: its nodes are withdrawn whatever the policies are")
    return Snapshot(binding=binding, lease=lease, worker=worker, virtual=virtual, policies=policies, notes=list(dict.fromkeys(notes)))


async def snapshots(hub: Reader, found: Sequence[ClusterBinding], *, chosen: Choice | None, failures: list[str]) -> AsyncIterator[Snapshot]:
    """Yields the snapshot of each binding; one of several that cannot be read is added to `failures`.

    Raises CommandFailed, and SettingsError for flags that name one worker for several bindings.
    """
    if chosen is not None and len(found) > 1:
        raise SettingsError("--binding", "is required with --worker-context where there are several ClusterBindings")
    for binding in found:
        try:
            made = await snapshot(hub, binding, chosen=chosen)
        except CommandFailed as error:
            if len(found) == 1:
                raise
            failures.append(f"ClusterBinding {binding.name}: {error}")
            continue
        yield made


# --- Decisions' input ---------------------------------------------------------------------------------------------------------------------


def _in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yields the items of a large cluster; other tasks of the loop run between batches, as in the manager with its dashboard."""
    return in_batches(SystemClock(), items, size=_BATCH)


async def lease_of(
    binding: ClusterBinding,
    *,
    worker: WorkerCluster,
    policies: Sequence[ResourceLeasingPolicy],
    virtual: Mapping[str, Node],
    pods: Iterable[Pod],
) -> Lease:
    """Computes the lease of a binding from objects of both clusters, as the process of the binding does from its caches."""
    own = [policy for policy in policies if policy.cluster == binding.name]
    usage = Usage()
    async for pod in _in_turns(worker.pods.store):
        usage.put(pod, leased=worker.backed(pod) is not None)
    leased = await _leased_pods(pods, worker, binding)
    nodes = [
        _leased_node(
            node, binding=binding, usage=usage, live=virtual.get(keys.vnode_name(binding.cluster_id, node.metadata.name)), pods=leased
        )
        async for node in _in_turns(sorted(worker.nodes.store, key=lambda each: each.metadata.name))
    ]
    return Lease(terms=_terms(binding, own), policies=own, nodes=nodes)


async def _leased_pods(pods: Iterable[Pod], worker: WorkerCluster, binding: ClusterBinding) -> dict[str, list[LeasedPod]]:
    leased: dict[str, list[LeasedPod]] = {}
    async for pod in _in_turns(pods):
        if pod.node and not pod.terminating and not pod.terminal and holds_lease(pod, worker, binding):
            leased.setdefault(pod.node, []).append(LeasedPod.of(pod))
    return leased


def _leased_node(
    node: Node, *, binding: ClusterBinding, usage: Usage, live: Node | None, pods: Mapping[str, Sequence[LeasedPod]]
) -> LeasedNode:
    facts, virtual = NodeFacts.of(node), keys.vnode_name(binding.cluster_id, node.metadata.name)
    last = description_of(live) if live is not None else None
    record = lease_record(last)
    return LeasedNode(
        facts=facts,
        virtual=virtual,
        used=usage.local(facts.name),
        pods=pods.get(virtual, ()),
        record=record,
        closed_since=closed_since(last, record),
        excluded=_excluded(node, live),
    )


def _excluded(node: Node, live: Node | None) -> str:
    if node.metadata.deletion_timestamp:
        return "the physical node is being deleted"
    if not eligible(node.metadata.labels):
        return "it is a virtual node itself, and those are never leased"
    if live is not None and live.metadata.labels.get(keys.PHYSICAL_NODE_UID, node.metadata.uid) != node.metadata.uid:
        return "its virtual node was created for an earlier physical node of this name, and is withdrawn first"
    return ""


def _terms(binding: ClusterBinding, policies: Sequence[ResourceLeasingPolicy]) -> Terms:
    """Returns the terms; the zone of the process, which no object contains, is read from the status of a policy that names none."""
    known = (str(policy.status.get("timeZone") or "") for policy in policies if not policy.time_zone and not binding.time_zone)
    zone = next(filter(None, known), "")
    try:
        return Terms.of(binding, process_zone=zone)
    except ValueError:
        # An unknown zone is one of the notes; until it is corrected, the process changes no node.
        return Terms.of(evolve(binding, time_zone=""), process_zone=zone)
