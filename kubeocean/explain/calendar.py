"""Foretells what the time windows of a binding's policies do: the nodes that change at each edge, and the pods that are evicted.

Invariant: each state follows from the one before by `leasing.policy.decide` and `leasing.reclaim_plan.reclaim_plan`, which the process of
the binding calls at the same instants. Pods, policies, budgets and local usage stay as they are now, and a pod whose eviction is granted
leaves at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from attrs import define, evolve, field, frozen

from kubeocean.explain.budgets import Budgets, Disruptions
from kubeocean.explain.lease import Lease, LeasedNode
from kubeocean.leasing.policy import NO_EXECUTE, Decision, decide
from kubeocean.leasing.reclaim import Order
from kubeocean.leasing.reclaim_plan import ReclaimPlan, reclaim_plan
from kubeocean.model.crds import ResourceLeasingPolicy
from kubeocean.model.windows import is_open, next_edge
from vkubelet.api.objects import PodRef
from vkubelet.api.quantity import Resources, sum_resources
from vkubelet.clock import parse_rfc3339, rfc3339

_WEEK = timedelta(days=7)
"""After which windows repeat: a node that no window changes in this time stays as it is."""
_MOST_EDGES = 10_000
"""Bound on the edges of a calendar: a window has at least a minute."""


@frozen(kw_only=True)
class Offer:
    """What a virtual node offers: without `policy` it does not exist; closed nodes admit no new pods, whatever their amounts."""

    policy: str = ""
    open: bool = False
    effect: str = ""
    """Effect of the taint of a closed node."""
    amounts: Resources = {}


@frozen(kw_only=True)
class Change:
    """A change of several nodes at once; the amounts are sums over the nodes."""

    nodes: Sequence[str]
    before: Offer
    after: Offer


@frozen(kw_only=True)
class Eviction:
    """An eviction of a pod, tried from `at` on; where a PodDisruptionBudget forbids it, the pod is deleted at `deadline`."""

    pod: PodRef
    node: str
    at: datetime
    deadline: datetime
    why: str
    blocked_by: str = ""
    """The PodDisruptionBudget that forbids the eviction at first, as `namespace/name`."""
    allows: int = 0
    """Disruptions that it allows at a time; with 0 it holds the pod until the deadline, or until it may stay."""
    stays: datetime | None = None
    """When a blocked pod is no longer to leave, because its node opens or offers enough before the deadline."""
    decided_again: datetime | None = None
    """The first change of the node before the deadline, where it is not known whether the pod has left until then."""


@frozen(kw_only=True)
class Edge:
    """An instant (UTC) at which windows open or close, or a grace period expires."""

    at: datetime
    opens: Sequence[str] = ()
    """Policies of which a window opens, whether or not they decide about a node then."""
    closes: Sequence[str] = ()
    changes: Sequence[Change] = ()
    evictions: Sequence[Eviction] = ()

    def concerns(self, policy: str) -> bool:
        """Checks that the windows, nodes or pods of this policy are affected."""
        windows = policy in (*self.opens, *self.closes)
        return windows or any(policy in (each.before.policy, each.after.policy) for each in self.changes)


@frozen(kw_only=True)
class Calendar:
    """The edges from `start` until `until`; `now` has what is in progress at the start already, as evictions without changes."""

    start: datetime
    until: datetime
    now: Edge
    edges: Sequence[Edge]

    def of(self, policy: str) -> Calendar:
        """Returns the calendar with only the edges that concern one policy, and of these only the changes that do."""
        chosen = [_only(edge, policy) for edge in self.edges if edge.concerns(policy)]
        return evolve(self, edges=chosen)

    @property
    def evictions(self) -> Sequence[Eviction]:
        """All evictions, in the order of time."""
        return [eviction for edge in (self.now, *self.edges) for eviction in edge.evictions]


def _only(edge: Edge, policy: str) -> Edge:
    changes = [each for each in edge.changes if policy in (each.before.policy, each.after.policy)]
    nodes = {node for each in changes for node in each.nodes}
    return evolve(edge, changes=changes, evictions=[each for each in edge.evictions if each.node in nodes])


# --- Nodes --------------------------------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Step:
    """One decision about one node, and the orders for its pods."""

    node: LeasedNode
    at: datetime
    decision: Decision
    orders: Sequence[Order]
    """For pods that leave, and for those that a budget holds on the node."""
    blocked: Mapping[str, str]
    """The budget that forbids the eviction of a pod, by UID."""

    @property
    def deadlines(self) -> Mapping[str, datetime]:
        """When the pods that a budget keeps on the node are deleted, by UID."""
        there = {pod.ref.uid for pod in self.node.pods}
        return {order.pod.uid: order.until for order in self.orders if order.pod.uid in there}

    @property
    def next_decision(self) -> datetime | None:
        """When to decide again."""
        edge = [self.decision.next_edge] if self.decision.next_edge is not None else []
        return min([*edge, *self.deadlines.values()], default=None)

    @property
    def offer(self) -> Offer:
        decision = self.decision
        policy = decision.deciding.name if decision.deciding else ""
        return Offer(policy=policy, open=decision.open, effect=decision.effect, amounts=decision.amounts)


def step(lease: Lease, node: LeasedNode, *, instant: datetime, disruptions: Disruptions) -> Step:
    """Decides about a node at an instant, as the reconciler of physical nodes does, and again once the evicted pods have left."""
    orders: list[Order] = []
    blocked: dict[str, str] = {}
    while True:
        decision, plan = _decided(lease, node, instant)
        ordered = plan.orders if plan is not None else ()
        # A deletion does not ask a budget.
        blocked |= {order.pod.uid: disruptions.blocking(order.pod.uid) for order in ordered if order.until > instant}
        leaving = {order.pod.uid for order in ordered if not disruptions.keeps(blocked.get(order.pod.uid, ""))}
        node = evolve(
            node,
            pods=[pod for pod in node.pods if pod.ref.uid not in leaving],
            record=plan.record if plan is not None else None,
            closed_since=_recorded(decision.closed_since),
        )
        orders += [order for order in ordered if order.pod.uid in leaving or not leaving]
        if not leaving:
            return Step(node=node, at=instant, decision=decision, orders=orders, blocked=blocked)


def _decided(lease: Lease, node: LeasedNode, instant: datetime) -> tuple[Decision, ReclaimPlan | None]:
    terms, since = lease.terms, node.closed_since
    decision = decide(node.facts, lease.policies, terms=terms, used=node.used, instant=instant, closed_since=since)
    last_ended = partial(lease.last_ended, node, instant)
    return decision, reclaim_plan(decision, node.pods, record=node.record, last_ended=last_ended, now=instant)


def _recorded(instant: datetime | None) -> datetime | None:
    """Returns an instant as the taint of a closed node contains it: in integer seconds."""
    return parse_rfc3339(rfc3339(instant)) if instant is not None else None


def steps(lease: Lease, *, start: datetime, until: datetime) -> Iterator[Sequence[Step]]:
    """Yields the decisions about all nodes at the start, then at each instant about those that are due."""
    due: dict[datetime, list[tuple[LeasedNode, Mapping[str, datetime]]]] = {
        start: [(node, {}) for node in lease.nodes if not node.excluded]
    }
    for _ in range(_MOST_EDGES):
        if not due or min(due) > until:
            return
        instant = min(due)
        disruptions = Disruptions(lease.budgets or Budgets())
        made = [step(lease, _without_deleted(*each, instant), instant=instant, disruptions=disruptions) for each in due.pop(instant)]
        for each in made:
            if each.next_decision is not None:
                due.setdefault(each.next_decision, []).append((each.node, each.deadlines))
        yield made


def _without_deleted(node: LeasedNode, deadlines: Mapping[str, datetime], instant: datetime) -> LeasedNode:
    """Removes the pods whose deadline has come; an edge at the same instant changes nothing for them."""
    return evolve(node, pods=[pod for pod in node.pods if deadlines.get(pod.ref.uid) is None or deadlines[pod.ref.uid] > instant])


# --- Edges --------------------------------------------------------------------------------------------------------------------------------


def calendar(lease: Lease, *, start: datetime, until: datetime) -> Calendar:
    """Computes all edges after `start`, up to `until`."""
    offers: dict[str, Offer] = {}
    changes: dict[datetime, Sequence[Change]] = {}
    leaving = _Evictions(lease.budgets)
    moves: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
    last = until
    for made in steps(lease, start=start, until=until + _WEEK):
        instant = made[0].at if made else start
        if instant > last:
            break
        found = _changes(made, offers) if instant > start else ()
        for change in found:
            for name in change.nodes:
                moves[name].append((instant, change.after.effect))
        offers |= {each.node.facts.name: each.offer for each in made}
        if instant <= until:
            changes[instant] = found
        for each in made:
            last = max(last, leaving.add(each, shown=instant <= until))
    evictions: dict[datetime, list[Eviction]] = defaultdict(list)
    for eviction in leaving.entries:
        certain = lease.budgets is not None and not eviction.allows
        evictions[eviction.at].append(_with_next_decision(eviction, moves[eviction.node], certain=certain))
    windows = _windows(lease, start, until)
    instants = sorted({*windows, *(at for at, found in changes.items() if found), *evictions} - {start})
    edges = [
        Edge(
            at=at,
            opens=windows[at][True] if at in windows else (),
            closes=windows[at][False] if at in windows else (),
            changes=changes.get(at, ()),
            evictions=evictions.get(at, ()),
        )
        for at in instants
    ]
    return Calendar(start=start, until=until, now=Edge(at=start, evictions=evictions.get(start, ())), edges=edges)


def _with_next_decision(eviction: Eviction, moves: Sequence[tuple[datetime, str]], *, certain: bool) -> Eviction:
    """Adds the first change of the node before the deadline, except the NoExecute by which its grace period expires.

    Where budgets are read and allow none, it is `certain` which pods are left: only a change at the deadline itself may come before the
    deletion or after it.
    """
    at, deadline = eviction.at, eviction.deadline
    if certain and (not eviction.blocked_by or eviction.stays is not None):
        return eviction
    again = [when for when, effect in moves if at < when == deadline and effect != NO_EXECUTE]
    earlier = [] if certain else [when for when, _ in moves if at < when < deadline]
    return evolve(eviction, decided_again=min([*earlier, *again], default=None))


def _windows(lease: Lease, start: datetime, until: datetime) -> Mapping[datetime, Mapping[bool, list[str]]]:
    """Returns for each edge the valid policies that open (True) and that close."""
    found: dict[datetime, dict[bool, list[str]]] = defaultdict(lambda: {True: [], False: []})
    for policy in sorted(lease.policies, key=lambda each: each.name):
        if policy.is_valid and not policy.deleting:
            for at, opens in window_edges(lease, policy, start=start, until=until):
                found[at][opens].append(policy.name)
    return dict(found)


def window_edges(lease: Lease, policy: ResourceLeasingPolicy, *, start: datetime, until: datetime) -> Iterator[tuple[datetime, bool]]:
    """Yields the edges of one valid policy, and whether it is open from then on."""
    zone, instant = lease.terms.zone_for(policy), start
    for _ in range(_MOST_EDGES if policy.windows else 0):
        edge = next_edge(policy.windows, zone, instant)
        if edge is None or edge > until:
            return
        yield edge, is_open(policy.windows, zone, edge)
        instant = edge


def _changes(made: Sequence[Step], before: Mapping[str, Offer]) -> Sequence[Change]:
    """Groups the nodes that changed alike."""
    groups: dict[tuple[object, ...], list[tuple[str, Offer, Offer]]] = defaultdict(list)
    for each in made:
        old, new = before[each.node.facts.name], each.offer
        if old != new:
            kind = (old.policy, old.open, old.effect, new.policy, new.open, new.effect)
            groups[kind].append((each.node.facts.name, old, new))
    return [
        Change(
            nodes=sorted(name for name, _, _ in group),
            before=evolve(group[0][1], amounts=sum_resources(old.amounts for _, old, _ in group)),
            after=evolve(group[0][2], amounts=sum_resources(new.amounts for _, _, new in group)),
        )
        for group in groups.values()
    ]


@define
class _Evictions:
    """The evictions in the order of time; one of a pod that a budget keeps is completed when the pod leaves, or may stay."""

    _budgets: Budgets | None
    entries: list[Eviction] = field(factory=list)
    _open: dict[str, dict[str, int]] = field(factory=lambda: defaultdict(dict))
    """Place in `entries` by node and UID, of the pods that are kept."""

    def add(self, made: Step, *, shown: bool) -> datetime:
        """Adds a step, of which new evictions are `shown` or not; returns the latest deadline of those that are added or not completed."""
        before, there = self._open.pop(made.node.facts.name, {}), {pod.ref.uid for pod in made.node.pods}
        latest = made.at
        for order in made.orders:
            uid, deadline = order.pod.uid, max(order.until, made.at)
            place = before.pop(uid, None)
            if place is not None:
                self.entries[place] = evolve(self.entries[place], deadline=deadline)
            elif shown:
                place = len(self.entries)
                self.entries.append(self._eviction(made, order, deadline))
            if place is not None:
                latest = max(latest, deadline)
                if uid in there:
                    self._open[made.node.facts.name][uid] = place
        for place in before.values():
            if self.entries[place].deadline > made.at:
                self.entries[place] = evolve(self.entries[place], stays=made.at)
        return latest

    def _eviction(self, made: Step, order: Order, deadline: datetime) -> Eviction:
        budget = made.blocked.get(order.pod.uid, "")
        allows = self._budgets.allowed[budget] if self._budgets is not None and budget else 0
        node = made.node.facts.name
        return Eviction(pod=order.pod, node=node, at=made.at, deadline=deadline, why=order.why, blocked_by=budget, allows=allows)
