"""Capacity of virtual nodes as the hub shows it: leased, requested by pods, and free (pure).

Invariant: pods that never start on virtual nodes use no leased capacity: those of system namespaces, and of DaemonSets without consent.
"""

from collections.abc import Iterable, Iterator, Sequence

from attrs import frozen

from kubeocean.commands.output import amount_text, amounts_text
from kubeocean.leasing.reclaim import LeasedPod
from kubeocean.model import keys, node_state
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.identity import enters
from kubeocean.model.node_state import State, state_of
from vkubelet.api.objects import Node, Pod
from vkubelet.api.quantity import ZERO, Resources, add_resources, parse_resources, sum_resources

NODE_HEAD = ("NODE", "STATE", "PODS", "CPU", "MEMORY", "FREE", "POLICY")


@frozen(kw_only=True)
class NodeCapacity:
    """One virtual node. `used` is None where pods may not be listed; `problem` states why no pod can be scheduled to it."""

    node: str
    state: str
    """One of `kubeocean.model.node_state`."""
    policy: str
    leased: Resources
    used: Resources | None
    problem: str = ""

    @property
    def free(self) -> Resources | None:
        if self.used is None:
            return None
        return {name: max(ZERO, amount - self.used.get(name, ZERO)) for name, amount in self.leased.items()}


def capacities(nodes: Iterable[Node], pods: Sequence[Pod] | None, binding: ClusterBinding) -> list[NodeCapacity]:
    """Computes the capacity of the virtual nodes of a binding; `pods` are those of all nodes, None where they may not be listed."""
    own = sorted(nodes, key=lambda each: each.key)
    used: dict[str, Resources] = {node.metadata.name: {} for node in own}
    for pod in pods or ():
        if pod.node in used and not pod.terminal and enters(pod.metadata, binding):
            used[pod.node] = add_resources(used[pod.node], LeasedPod.of(pod).requests)
    return [_capacity(node, None if pods is None else used[node.metadata.name]) for node in own]


def _capacity(node: Node, used: Resources | None) -> NodeCapacity:
    state = state_of(node)
    return NodeCapacity(
        node=node.metadata.name,
        state=state.name,
        policy=keys.deciding_policy(node.metadata.annotations),
        leased=parse_resources(node.status.get("allocatable") or {}),
        used=used,
        problem=_problem(node, state),
    )


def _problem(node: Node, state: State) -> str:
    """Returns why no pod can be scheduled to a node, with the remedy; empty for an open one."""
    name = node.metadata.name
    match state.name:
        case node_state.NOT_READY:
            return f"Node {name} is not Ready: {state.why}; `kubeocean doctor` names the cause"
        case node_state.UNREACHABLE:
            return f"Node {name}: the worker cluster is unreachable; `kubeocean doctor` names the cause"
        case node_state.WITHDRAWN:
            return f"Node {name} is withdrawn: no policy leases it any more; `kubeocean explain node {name}` shows why"
        case node_state.CLOSED:
            return f"Node {name} is closed: no time window of its policies is open; `kubeocean plan` shows when one opens"
        case node_state.CORDONED if state.taint == keys.TAINT_UNSCHEDULABLE:
            physical = node.metadata.annotations.get(keys.PHYSICAL_NODE_NAME, "NODE")
            return f"Node {name}: its physical node is cordoned; in the worker: kubectl uncordon {physical}"
        case node_state.CORDONED:
            return f"Node {name} is cordoned: kubectl uncordon {name}"
    return ""


def total(parts: Iterable[Resources | None]) -> Resources | None:
    """Returns the sum; None when a part is unknown."""
    known: list[Resources] = []
    for part in parts:
        if part is None:
            return None
        known.append(part)
    return sum_resources(known)


def used_of(used: Resources | None, leased: Resources | None, name: str) -> str:
    """Formats an amount as `used/leased`, with `?` for what is unknown."""
    parts = ("?" if amounts is None else amount_text(amounts.get(name, ZERO)) for amounts in (used, leased))
    return "/".join(parts)


def rows(nodes: Iterable[NodeCapacity]) -> list[Sequence[str]]:
    """Renders the nodes as rows below `NODE_HEAD`."""
    return [
        (
            each.node,
            each.state,
            used_of(each.used, each.leased, "pods"),
            used_of(each.used, each.leased, "cpu"),
            used_of(each.used, each.leased, "memory"),
            "?" if each.free is None else amounts_text(each.free),
            each.policy or "-",
        )
        for each in nodes
    ]


def problems(nodes: Sequence[NodeCapacity], *, most: int = 3) -> Iterator[str]:
    """Yields the problems of some nodes, and the number of the others."""
    found = [node.problem for node in nodes if node.problem]
    yield from found[:most]
    if len(found) > most:
        yield f"{len(found) - most} more nodes have problems; `kubeocean status -o wide` lists them"
