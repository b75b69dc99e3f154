"""Explains what a node offers: the arithmetic of each resource, the policy that decides, and why each other policy does not.

Invariant: the amounts and the deciding policy are those that `leasing.policy.decide` returns for the same input.
"""

from collections.abc import Sequence
from datetime import datetime

from attrs import frozen

from kubeocean.explain.budgets import Budgets
from kubeocean.explain.lease import Lease, LeasedNode
from kubeocean.leasing.capacity import bounded, left_over
from kubeocean.leasing.policy import Decision, decide, matching
from kubeocean.model.crds import ResourceLeasingPolicy
from kubeocean.model.windows import is_open, next_edge
from vkubelet.api.quantity import ZERO, Quantity, Resources, sum_resources
from vkubelet.api.selectors import match_node_selector
from vkubelet.clock import rfc3339

OPEN, CLOSED, WITHHELD = "Open", "Closed", "NotLeased"
_REASONS = {
    "NotSelectedByBinding": "spec.nodeSelector of ClusterBinding {} does not select it",
    "NoMatchingPolicy": "no ResourceLeasingPolicy of ClusterBinding {} selects it; create one, or correct the nodeSelector of one",
    "OnlyInvalidPolicies": "every ResourceLeasingPolicy of ClusterBinding {} that selects it is invalid; correct one of them",
}


@frozen(kw_only=True)
class Applied:
    """A limit of the deciding policy, and the amount that it leaves."""

    limit: str
    amount: Quantity


@frozen(kw_only=True)
class Amount:
    """The arithmetic of one resource: allocatable - local = left; the limits in order give `offered`, of which `leased` is requested."""

    resource: str
    allocatable: Quantity
    local: Quantity
    """Requests of pods that this binding did not place on the node."""
    left: Quantity
    limits: Sequence[Applied]
    offered: Quantity
    leased: Quantity
    """Requests of the pods of the virtual node."""

    @property
    def free(self) -> Quantity:
        return max(ZERO, self.offered - self.leased)


@frozen(kw_only=True)
class Verdict:
    """Whether a policy decides about a node, and why."""

    policy: str
    decides: bool
    why: str


@frozen(kw_only=True)
class NodeExplanation:
    """The lease of one node at one instant; without a lease, `why` has the reason and `amounts` is empty."""

    node: str
    virtual: str
    binding: str
    state: str
    """Open, Closed, or NotLeased."""
    why: str
    policy: str = ""
    closed_since: datetime | None = None
    next_edge: datetime | None = None
    zone: str = ""
    """Time zone of the deciding policy."""
    amounts: Sequence[Amount] = ()
    policies: Sequence[Verdict] = ()
    blocked: Sequence[str] = ()
    """Pods whose eviction a PodDisruptionBudget forbids now: `default/web: default/budget`."""
    outdated: str = ""
    """How the virtual node in the hub differs; empty when it shows the same amounts."""


def explain_node(lease: Lease, node: LeasedNode, *, instant: datetime, shown: Resources | None = None) -> NodeExplanation:
    """Explains a node; `shown` is the allocatable of its virtual node in the hub, None when there is none."""
    decision = decide(node.facts, lease.policies, terms=lease.terms, used=node.used, instant=instant, closed_since=node.closed_since)
    policy = decision.deciding
    leased = not node.excluded and decision.exists and policy is not None
    return NodeExplanation(
        node=node.facts.name,
        virtual=node.virtual,
        binding=lease.terms.binding,
        state=(OPEN if decision.open else CLOSED) if leased else WITHHELD,
        why=_why(lease, node, decision),
        policy=policy.name if policy is not None and leased else "",
        closed_since=decision.closed_since if leased else None,
        next_edge=decision.next_edge if leased else None,
        zone=str(lease.zone_of(policy)) if policy is not None and leased else "",
        amounts=amounts(node, policy) if policy is not None and leased else (),
        policies=[] if node.excluded else verdicts(lease, node, decision, instant=instant),
        blocked=_blocked(lease, node),
        outdated=_outdated(decision.amounts if leased else None, shown),
    )


def _blocked(lease: Lease, node: LeasedNode) -> list[str]:
    budgets = lease.budgets or Budgets()
    return [f"{each.ref.key}: {budget}" for each in node.pods if (budget := budgets.forbidding(each.ref.uid))]


def amounts(node: LeasedNode, policy: ResourceLeasingPolicy) -> list[Amount]:
    """Returns the arithmetic of each resource of a node under a policy, those with a limit first."""
    left, pods = left_over(node.facts.allocatable, node.used), requested(node)
    applied: dict[str, list[Applied]] = {}
    for limit, amount in bounded(left, policy.limits):
        applied.setdefault(limit.resource, []).append(Applied(limit=str(limit), amount=amount))
    order = ["cpu", "memory", *sorted(left.keys() - {"cpu", "memory"})]
    return [
        Amount(
            resource=name,
            allocatable=node.facts.allocatable[name],
            local=node.used.get(name, ZERO),
            left=left[name],
            limits=applied.get(name, ()),
            offered=applied[name][-1].amount if name in applied else left[name],
            leased=pods.get(name, ZERO),
        )
        for name in order
        if name in left
    ]


def requested(node: LeasedNode) -> Resources:
    """Returns the requests of the pods of a virtual node; "pods" counts them."""
    return sum_resources(pod.requests for pod in node.pods)


def verdicts(lease: Lease, node: LeasedNode, decision: Decision, *, instant: datetime) -> list[Verdict]:
    """Returns for each policy whether it decides, the deciding one first, then those that come next to it."""
    found = matching(lease.policies, node=node.facts, terms=lease.terms)
    others = sorted((policy for policy in lease.policies if policy not in found), key=lambda each: each.name)
    made = [
        Verdict(policy=policy.name, decides=policy is decision.deciding, why=_verdict(lease, node, policy, decision, instant))
        for policy in (*found, *others)
    ]
    return sorted(made, key=lambda each: not each.decides)


def _verdict(lease: Lease, node: LeasedNode, policy: ResourceLeasingPolicy, decision: Decision, instant: datetime) -> str:
    if policy is decision.deciding:
        return "it has the highest rank of those with an open window" if decision.open else "no window is open, and it decided last"
    if policy.deleting:
        return "it is being deleted"
    if not match_node_selector(lease.terms.selector, node.facts.labels, node.facts.name):
        return f"spec.nodeSelector of ClusterBinding {lease.terms.binding} does not select the node"
    if not match_node_selector(policy.node_selector, node.facts.labels, node.facts.name):
        return "its spec.nodeSelector does not select the node"
    if not policy.is_valid:
        return f"it is invalid: {'; '.join(map(str, policy.validate()))}"
    zone = lease.zone_of(policy)
    if not is_open(policy.windows, zone, instant):
        edge = next_edge(policy.windows, zone, instant)
        return f"its window is closed until {local(edge, lease, policy)}" if edge is not None else "none of its windows ever opens"
    return _outranked(policy, decision.deciding)


def _outranked(policy: ResourceLeasingPolicy, by: ResourceLeasingPolicy | None) -> str:
    if by is None:
        return "no policy decides"
    if policy.priority != by.priority:
        return f"its priority {policy.priority} is below {by.priority} of {by.name}"
    if policy.created != by.created:
        return f"its priority is that of {by.name}, which is older"
    return f"its priority and age are those of {by.name}, whose name sorts first"


def local(instant: datetime, lease: Lease, policy: ResourceLeasingPolicy) -> str:
    """Formats an instant by the clock of the policy's zone, and in UTC."""
    return f"{instant.astimezone(lease.zone_of(policy)):%a %d %b %H:%M %Z} ({rfc3339(instant)})"


def _why(lease: Lease, node: LeasedNode, decision: Decision) -> str:
    if node.excluded:
        return node.excluded
    policy = decision.deciding
    if not decision.exists or policy is None:
        return _REASONS.get(decision.reason, decision.reason).format(lease.terms.binding)
    if decision.open:
        return f"ResourceLeasingPolicy {policy.name} leases it"
    since = f" since {local(decision.closed_since, lease, policy)}" if decision.closed_since else ""
    return f"no time window is open{since}; taint {decision.effect}"


def _outdated(computed: Resources | None, shown: Resources | None) -> str:
    """Returns how the hub differs from the decision; the process of the binding writes changes within seconds."""
    if computed is None:
        return "the hub still has the virtual node" if shown is not None else ""
    if shown is None:
        return "the hub has no such virtual node yet"
    differing = sorted(name for name in {*computed, *shown} if computed.get(name) != shown.get(name))
    texts = [f"{name} {shown.get(name, 'absent')} instead of {computed.get(name, 'absent')}" for name in differing]
    return f"the virtual node in the hub shows {', '.join(texts)}" if texts else ""
