"""Foretells what the time windows of a binding's policies do: the nodes that change at each edge, and the pods that are evicted.

Invariant: each state follows from the one before by `leasing.policy.decide` and `leasing.reclaim_plan.reclaim_plan`, which the process of
the binding calls at the same instants. Pods, policies and local usage stay as they are now, and an evicted pod leaves at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from attrs import evolve, frozen

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
    """An eviction of a pod, tried from `at` on; where a PodDisruptionBudget forbids it, the pod is deleted at `deadline`.

    `decided_again` is the first change of the node before the deadline. A pod that a budget protects until then stays, or has another
    deadline: that depends on which pods budgets protect, and budgets are not read.
    """

    pod: PodRef
    node: str
    at: datetime
    deadline: datetime
    why: str
    decided_again: datetime | None = None


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

    @property
    def offer(self) -> Offer:
        decision = self.decision
        policy = decision.deciding.name if decision.deciding else ""
        return Offer(policy=policy, open=decision.open, effect=decision.effect, amounts=decision.amounts)


def step(lease: Lease, node: LeasedNode, instant: datetime) -> Step:
    """Decides about a node at an instant, as the reconciler of physical nodes does, and again once the evicted pods have left."""
    orders: list[Order] = []
    while True:
        decision, plan = _decided(lease, node, instant)
        leaving = {order.pod.uid for order in plan.orders} if plan is not None else frozenset()
        node = evolve(
            node,
            pods=[pod for pod in node.pods if pod.ref.uid not in leaving],
            record=plan.record if plan is not None else None,
            closed_since=_recorded(decision.closed_since),
        )
        if plan is None or not leaving:
            return Step(node=node, at=instant, decision=decision, orders=orders)
        orders += plan.orders


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
    due: dict[datetime, list[LeasedNode]] = {start: [node for node in lease.nodes if not node.excluded]}
    for _ in range(_MOST_EDGES):
        if not due or min(due) > until:
            return
        instant = min(due)
        made = [step(lease, node, instant) for node in due.pop(instant)]
        for each in made:
            if each.decision.next_edge is not None:
                due.setdefault(each.decision.next_edge, []).append(each.node)
        yield made


# --- Edges --------------------------------------------------------------------------------------------------------------------------------


def calendar(lease: Lease, *, start: datetime, until: datetime) -> Calendar:
    """Computes all edges after `start`, up to `until`."""
    offers: dict[str, Offer] = {}
    changes: dict[datetime, Sequence[Change]] = {}
    evictions: dict[datetime, Sequence[Eviction]] = {}
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
            changes[instant], evictions[instant] = found, _evictions(made)
            last = max([last, *(each.deadline for each in evictions[instant])])
    evictions = {at: [_with_next_decision(each, moves[each.node]) for each in found] for at, found in evictions.items()}
    windows = _windows(lease, start, until)
    instants = sorted(
        {*windows, *(at for at, found in changes.items() if found), *(at for at, found in evictions.items() if found)} - {start}
    )
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


def _with_next_decision(eviction: Eviction, moves: Sequence[tuple[datetime, str]]) -> Eviction:
    """Adds the first change of the node before the deadline, except the NoExecute by which its grace period expires."""
    at, deadline = eviction.at, eviction.deadline
    again = [when for when, effect in moves if at < when < deadline or (at < when == deadline and effect != NO_EXECUTE)]
    return evolve(eviction, decided_again=min(again, default=None))


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


def _evictions(made: Sequence[Step]) -> Sequence[Eviction]:
    return [
        Eviction(pod=order.pod, node=each.node.facts.name, at=each.at, deadline=max(order.until, each.at), why=order.why)
        for each in made
        for order in each.orders
    ]
