"""Capacity of virtual nodes as the hub shows it: leased, requested by pods, and free (pure).

Invariant: pods that never start on virtual nodes use no leased capacity: those of system namespaces, and of DaemonSets without consent.
"""

from collections.abc import Iterable, Iterator, Sequence

from attrs import frozen

from kubeocean.commands.output import amount_text, amounts_text
from kubeocean.leasing.reclaim import LeasedPod
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.identity import daemonset_allowed, leaves_home
from vkubelet.api.objects import Node, Pod, get_condition
from vkubelet.api.quantity import ZERO, Resources, add_resources, parse_resources, sum_resources

NODE_HEAD = ("NODE", "STATE", "PODS", "CPU", "MEMORY", "FREE", "POLICY")


@frozen(kw_only=True)
class NodeCapacity:
    """One virtual node. `used` is None where pods may not be listed; `problem` states why no pod can be scheduled to it."""

    node: str
    state: str
    """Ready, NotReady, Closed, or Unschedulable."""
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
        if pod.node in used and not pod.terminal and leaves_home(pod.metadata) and daemonset_allowed(pod.metadata, binding):
            used[pod.node] = add_resources(used[pod.node], LeasedPod.of(pod).requests)
    return [_capacity(node, None if pods is None else used[node.metadata.name]) for node in own]


def _capacity(node: Node, used: Resources | None) -> NodeCapacity:
    state, problem = _state(node)
    return NodeCapacity(
        node=node.metadata.name,
        state=state,
        policy=keys.deciding_policy(node.metadata.annotations),
        leased=parse_resources(node.status.get("allocatable") or {}),
        used=used,
        problem=problem,
    )


def _state(node: Node) -> tuple[str, str]:
    ready = get_condition(node.status.get("conditions") or (), "Ready") or {}
    taints = {taint["key"] for taint in node.spec.get("taints") or ()}
    name = node.metadata.name
    if keys.TAINT_WORKER_UNREACHABLE in taints:
        return "NotReady", f"Node {name}: the worker cluster is unreachable; `kubeocean doctor` names the cause"
    if ready.get("status") != "True":
        why = ready.get("message") or ready.get("reason") or "no process reports its condition Ready"
        return "NotReady", f"Node {name} is not Ready: {why}; `kubeocean doctor` names the cause"
    if keys.TAINT_CLOSED in taints:
        return "Closed", f"Node {name} is closed: no time window of its policies is open; `kubeocean plan` shows when one opens"
    if keys.TAINT_UNSCHEDULABLE in taints:
        physical = node.metadata.annotations.get(keys.PHYSICAL_NODE_NAME, "NODE")
        return "Unschedulable", f"Node {name}: its physical node is cordoned; in the worker: kubectl uncordon {physical}"
    if node.spec.get("unschedulable"):
        return "Unschedulable", f"Node {name} is cordoned: kubectl uncordon {name}"
    return "Ready", ""


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
