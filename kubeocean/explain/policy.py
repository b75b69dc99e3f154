"""Explains a ResourceLeasingPolicy: the nodes that it selects, its window, and what is wrong with it.

Invariant: a problem names the field or object and the remedy; the nodes are those about which `leasing.policy.decide` names the policy.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from attrs import frozen

from kubeocean.explain.lease import Lease, LeasedNode
from kubeocean.explain.node import NodeExplanation, explain_node
from kubeocean.leasing.policy import matching
from kubeocean.model.crds import ResourceLeasingPolicy
from kubeocean.model.windows import is_open, next_edge
from vkubelet.api.quantity import ZERO, Quantity, Resources, sum_resources

_PLENTY = Quantity.of(10**6)
ACTIVE, INACTIVE, FAILED, DELETING = "Active", "Inactive", "Failed", "Deleting"


@frozen(kw_only=True)
class Selected:
    """A node that the policy selects, and whether it decides about it."""

    node: str
    decides: bool
    why: str


@frozen(kw_only=True)
class PolicyExplanation:
    """One policy at one instant; `offered` and `leased` are sums over the nodes about which it decides."""

    policy: str
    binding: str
    state: str
    """Active, Inactive, Failed, or Deleting."""
    zone: str
    windows: Sequence[str]
    next_edge: datetime | None
    limits: Sequence[str]
    shares: Sequence[str]
    reclaim: str
    nodes: Sequence[Selected]
    offered: Resources
    leased: Resources
    problems: Sequence[str]


def explain_policy(
    lease: Lease, policy: ResourceLeasingPolicy, *, instant: datetime, binding_exists: bool = True, other_hub: str = ""
) -> PolicyExplanation:
    """Explains a policy of the lease; `other_hub` is the mark of another hub that writes its status."""
    zone = lease.zone_of(policy)
    opened = policy.is_valid and is_open(policy.windows, zone, instant)
    selected = [node for node in lease.nodes if not node.excluded and selects(lease, node, policy)]
    explained = [explain_node(lease, node, instant=instant) for node in selected]
    nodes = [_selected(each, policy) for each in explained]
    decided = [each for each in explained if each.policy == policy.name]
    edge = next_edge(policy.windows, zone, instant) if policy.is_valid and policy.windows else None
    return PolicyExplanation(
        policy=policy.name,
        binding=policy.cluster,
        state=DELETING if policy.deleting else FAILED if not policy.is_valid else ACTIVE if opened else INACTIVE,
        zone=str(zone),
        windows=[_window(policy, at) for at in range(len(policy.windows))],
        next_edge=edge,
        limits=[str(each) for each in policy.limits],
        shares=[str(each) for each in policy.shares],
        reclaim=_reclaim(policy),
        nodes=nodes,
        offered=sum_resources({a.resource: a.offered for a in each.amounts} for each in decided),
        leased=sum_resources({a.resource: a.leased for a in each.amounts} for each in decided),
        problems=[
            *([] if binding_exists else [f"spec.cluster: the hub has no ClusterBinding {policy.cluster}; create it, or name another one"]),
            *_problems(lease, policy, nodes, opens=opened or edge is not None),
            *([f"another hub serves it too and writes its status ({other_hub})"] if other_hub else []),
        ],
    )


def selects(lease: Lease, node: LeasedNode, policy: ResourceLeasingPolicy) -> bool:
    """Checks that the policy and the binding select the node; a policy that is being deleted selects none."""
    return policy in matching([policy], node=node.facts, terms=lease.terms)


def _selected(node: NodeExplanation, policy: ResourceLeasingPolicy) -> Selected:
    verdict = next(each for each in node.policies if each.policy == policy.name)
    return Selected(node=node.node, decides=verdict.decides, why=verdict.why)


def _problems(lease: Lease, policy: ResourceLeasingPolicy, nodes: Sequence[Selected], *, opens: bool) -> Iterator[str]:
    yield from (str(problem) for problem in policy.validate())
    if policy.deleting:
        yield f"it is being deleted, and waits for finalizers: {', '.join(policy.finalizers) or 'none'}"
        return
    if not nodes:
        yield "spec.nodeSelector: it selects no node that the ClusterBinding selects; compare with `kubectl get nodes --show-labels`"
    if policy.is_valid and not opens:
        yield "spec.timeWindows: no window ever opens; correct start, end or days"
    if policy.is_valid and any(limit.bound(_PLENTY) == ZERO for limit in policy.limits):
        zero = ", ".join(limit.resource for limit in policy.limits if limit.bound(_PLENTY) == ZERO)
        yield f"spec.resourceLimits: it leases no {zero}"
    if policy.limits and (unknown := sorted({limit.resource for limit in policy.limits} - _resources(lease))) and lease.nodes:
        yield f"spec.resourceLimits: no node has the resource {', '.join(unknown)}; correct the name"


def _resources(lease: Lease) -> set[str]:
    return {name for node in lease.nodes for name in node.facts.allocatable}


def _window(policy: ResourceLeasingPolicy, at: int) -> str:
    window = policy.windows[at]
    return f"{window.start} to {window.end} {', '.join(window.days) or 'every day'}"


def _reclaim(policy: ResourceLeasingPolicy) -> str:
    if not policy.force_reclaim:
        return "pods stay when a window closes (spec.forceReclaim is not set)"
    seconds = int(policy.grace.total_seconds())
    how = f"evicted, and deleted after {seconds} s" if seconds > 0 else "deleted at once"
    stay = "; pods that tolerate closed nodes stay (spec.allowOutOfWindowPods)" if policy.allow_out_of_window_pods else ""
    return f"when a window closes, pods are {how}{stay}"
