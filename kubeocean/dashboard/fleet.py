"""Computes the state of all bindings, virtual nodes and their pods from one reading of the hub (pure).

Invariant: a value contains everything that the pages about the hub show; what could not be read is a note, never a zero.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

from attrs import evolve, field, frozen

from kubeocean.commands.status import Summary, problems_of, summary
from kubeocean.leasing.reclaim import LeasedPod
from kubeocean.model import crds, identity, keys, node_state
from vkubelet.api.objects import JsonView, Node, Pod, Unknown, get_condition
from vkubelet.api.podspec import waiting_containers
from vkubelet.api.quantity import Resources, parse_resources, sum_resources
from vkubelet.api.scheduling import tolerates
from vkubelet.clock import Clock, in_batches, parse_rfc3339

_PODS: Final = 2_000
_NODES: Final = 200
"""Pods and nodes that are counted in one turn of the event loop, which takes some milliseconds."""
_VNODE_TAINT: Final = {"key": keys.TAINT_VNODE, "effect": "NoSchedule", "value": ""}


@frozen(kw_only=True)
class NodeState:
    """One virtual node; `requested` is the sum of the requests of its pods, empty where they may not all be listed."""

    name: str
    binding: str
    physical: str
    state: str
    why: str
    policy: str
    offered: Resources
    requested: Resources
    pods: int | None


@frozen(kw_only=True)
class PodState:
    """One pod on a virtual node, or one without a node that tolerates virtual nodes."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    waits: str
    """Why it does not run, as its status reports; empty while it runs."""
    created: datetime | None
    requests: Resources
    leased: bool
    """Whether it is started in the worker, and so uses leased capacity: `model.identity.enters`."""

    @property
    def counts(self) -> bool:
        """Whether its requests occupy leased capacity now."""
        return self.leased and bool(self.node) and self.phase not in ("Succeeded", "Failed")


@frozen(kw_only=True)
class Reading:
    """What was read of the hub at one instant; None for what may not be listed."""

    at: datetime
    bindings: Sequence[Unknown] | None = ()
    nodes: Sequence[Node] | None = ()
    pods: Sequence[PodState] | None = None
    namespaces: Sequence[str] | None = None
    """The namespaces of `pods`, where those of others may not be listed; None for all."""
    notes: Sequence[str] = ()


@frozen(kw_only=True)
class Fleet:
    """The hub at one instant, as computed from a reading."""

    at: datetime
    bindings: Sequence[Summary] = ()
    nodes: Sequence[NodeState] = ()
    pods: Sequence[PodState] | None = None
    namespaces: Sequence[str] | None = None
    notes: Sequence[str] = ()
    unread: Collection[str] = ()
    """`bindings` and `nodes`, where they may not be listed: their number is not zero, but unknown."""
    by_name: Mapping[str, NodeState] = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "by_name", {node.name: node for node in self.nodes})

    @property
    def complete(self) -> bool:
        """Whether the pods of all namespaces are known, without which no sum is."""
        return self.pods is not None and self.namespaces is None

    def nodes_of(self, binding: str) -> list[NodeState]:
        return [node for node in self.nodes if node.binding == binding]

    def pods_of(self, node: str) -> list[PodState]:
        return [pod for pod in self.pods or () if pod.node == node]


async def fleet_of(reading: Reading, clock: Clock) -> Fleet:
    """Computes the state of everything from objects of the hub; other tasks of the loop run between batches."""
    bindings, nodes = reading.bindings or (), reading.nodes or ()
    pods = reading.pods if reading.namespaces is None else None
    labels = {keys.label_value(each.metadata.name): each.metadata.name for each in bindings}
    counted = Counter[str]() if pods is not None else None
    requests: dict[str, list[Resources]] = defaultdict(list)
    async for pod in in_batches(clock, pods or (), size=_PODS):
        if counted is not None:
            counted[pod.node] += 1
        if pod.counts:
            requests[pod.node].append(pod.requests)
    made = [
        _node_state(node, labels, sum_resources(requests.get(node.metadata.name, ())), counted)
        async for node in in_batches(clock, nodes, size=_NODES)
    ]
    by_label: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        by_label[node.metadata.labels.get(keys.CLUSTER_BINDING, "")].append(node)
    summaries = [_summary(each, by_label[keys.label_value(each.metadata.name)], counted) for each in bindings]
    return Fleet(
        at=reading.at,
        bindings=sorted(summaries, key=lambda each: each.name),
        nodes=sorted(made, key=lambda each: (each.binding, each.name)),
        pods=reading.pods,
        namespaces=reading.namespaces,
        notes=reading.notes,
        unread=[name for name, found in (("bindings", reading.bindings), ("nodes", reading.nodes)) if found is None],
    )


def _summary(binding: Unknown, nodes: Sequence[Node], counted: Mapping[str, int] | None) -> Summary:
    """Returns the state of a binding, without the problems of its nodes: pages show each node."""
    pods = None if counted is None else sum(counted.get(node.metadata.name, 0) for node in nodes)
    return evolve(summary(binding, nodes, None), pods=pods, problems=problems_of(binding))


def _node_state(node: Node, labels: Mapping[str, str], requested: Resources, counted: Mapping[str, int] | None) -> NodeState:
    meta, status = node.metadata, node.status
    state = node_state.state_of(node)
    label = meta.labels.get(keys.CLUSTER_BINDING, "")
    return NodeState(
        name=meta.name,
        binding=labels.get(label, label),
        physical=meta.annotations.get(keys.PHYSICAL_NODE_NAME, ""),
        state=state.name,
        why=state.why,
        policy=keys.deciding_policy(meta.annotations),
        offered=parse_resources(status.get("allocatable") or {}),
        requested=requested,
        pods=None if counted is None else counted.get(meta.name, 0),
    )


# --- Pods ---------------------------------------------------------------------------------------------------------------------------------


def pod_state(pod: Pod, binding: crds.ClusterBinding | None = None) -> PodState:
    """Computes the state of one pod; `binding` is that of its node."""
    meta = pod.metadata
    return PodState(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        node=pod.node,
        phase="Terminating" if pod.terminating else pod.phase or "Pending",
        waits="" if pod.terminal else waits(pod.status),
        created=_instant(meta.creation_timestamp),
        requests=LeasedPod.of(pod).requests,
        leased=identity.enters(meta, binding),
    )


def concerns(pod: Pod, virtual: Mapping[str, object]) -> bool:
    """Checks that a pod is on a virtual node, or waits for one."""
    if pod.node or pod.terminal:
        return pod.node in virtual
    return identity.leaves_home(pod.metadata) and tolerates(pod.spec.get("tolerations") or (), _VNODE_TAINT)


def waits(status: JsonView) -> str:
    """Returns what a pod waits for, as its status reports; empty when it reports nothing."""
    for _, waiting in waiting_containers(status):
        return ": ".join(str(waiting[name]) for name in ("reason", "message") if waiting.get(name))
    scheduled = get_condition(status.get("conditions") or (), "PodScheduled") or {}
    if scheduled.get("status") == "False":
        return str(scheduled.get("message") or scheduled.get("reason") or "")
    return ": ".join(str(status[name]) for name in ("reason", "message") if status.get(name))


def _instant(text: str) -> datetime | None:
    return parse_rfc3339(text) if text else None
