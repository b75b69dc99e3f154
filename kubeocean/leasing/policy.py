"""Decides for one node from all policies at an instant: what is leased, whether the node is closed, and what is reclaimed first.

Invariant: among the valid policies that match a node and whose window is open, the highest priority decides, then the oldest, then the
first by name. The node is closed only when none is open, and it does not exist for the hub when none matches.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Self
from zoneinfo import ZoneInfo

from attrs import frozen

from kubeocean.leasing.capacity import leased, left_over
from kubeocean.model.crds import ClusterBinding, ResourceLeasingPolicy
from kubeocean.model.windows import is_open, next_edge, previous_edge, zone_of
from vkubelet.api.objects import JsonView, Node
from vkubelet.api.quantity import Quantity, Resources, parse_resources
from vkubelet.api.selectors import match_node_selector

NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"

_EXCLUDED_BY_BINDING: Final = "NotSelectedByBinding"
_NO_POLICY: Final = "NoMatchingPolicy"
_INVALID: Final = "OnlyInvalidPolicies"

# More hand-overs than policies can make within two weeks of relevant minutes; a bound, not a measurement.
_MOST_HAND_OVERS: Final = 64


@frozen
class Terms:
    """The terms of leasing that a binding sets; `zone` applies to policies without a time zone."""

    binding: str
    selector: JsonView | None
    zone: ZoneInfo

    @classmethod
    def of(cls, binding: ClusterBinding, *, process_zone: str = "") -> Self:
        """Returns the terms of a binding. Raises ValueError when a zone is unknown."""
        return cls(binding.name, binding.node_selector, zone_of(binding.time_zone, process_zone))

    def zone_for(self, policy: ResourceLeasingPolicy) -> ZoneInfo:
        """Returns the time zone in force for a valid policy."""
        return zone_of(policy.time_zone) if policy.time_zone else self.zone


@frozen
class NodeFacts:
    """The properties of a physical node that decide about its lease."""

    name: str
    labels: Mapping[str, str]
    allocatable: Resources

    @classmethod
    def of(cls, node: Node) -> Self:
        """Reads the node; its capacity counts where its status has no allocatable."""
        status = node.status
        amounts = status.get("allocatable") or status.get("capacity") or {}
        return cls(node.metadata.name, node.metadata.labels, _readable(amounts))


@frozen(kw_only=True)
class Decision:
    """The desired state of one node in the hub; without `exists` only `reason` counts."""

    exists: bool
    reason: str = ""
    available: Resources = {}
    """What local pods leave free."""
    amounts: Resources = {}
    """What the limits of the deciding policy lease of that."""
    deciding: ResourceLeasingPolicy | None = None
    open: bool = False
    effect: str = ""
    """Effect of the taint on a closed node: "", NoSchedule, or NoExecute once pods are to terminate at once."""
    closed_since: datetime | None = None
    next_edge: datetime | None = None
    """When to decide again: a window opens or closes, or a grace period expires."""

    @property
    def applied(self) -> tuple[str, ...]:
        """Names of the policies in force; never more than one."""
        return (self.deciding.name,) if self.deciding else ()

    @property
    def details(self) -> str:
        """Formatted as in the annotation policy-details: `name(cpu=4/80%, memory=95%)`."""
        if self.deciding is None:
            return ""
        return f"{self.deciding.name}({', '.join(map(str, self.deciding.limits))})"


@frozen
class Ended:
    """The policy that decided before the present one, and the instant at which it stopped applying."""

    policy: ResourceLeasingPolicy
    at: datetime


def decide(
    node: NodeFacts,
    policies: Iterable[ResourceLeasingPolicy],
    *,
    terms: Terms,
    used: Resources,
    instant: datetime,
    closed_since: datetime | None = None,
) -> Decision:
    """Decides the lease of one node; `used` is requested by local pods, `closed_since` when it was closed, None unless it already is.

    A node that was closed later than now, since the clock was set back, counts as closed now.
    """
    if not match_node_selector(terms.selector, node.labels, node.name):
        return Decision(exists=False, reason=_EXCLUDED_BY_BINDING)
    found = matching(policies, node=node, terms=terms)
    valid = [policy for policy in found if policy.is_valid]
    if not valid:
        return Decision(exists=False, reason=_INVALID if found else _NO_POLICY)
    turn = _turn(valid, terms, instant)
    deciding = turn.in_force
    is_closed = turn.deciding is None
    since = min(closed_since or instant, instant) if is_closed else None
    grace_ends = since + deciding.grace if since and deciding.force_reclaim else None
    effect = "" if not is_closed else NO_EXECUTE if grace_ends and grace_ends <= instant else NO_SCHEDULE
    available = left_over(node.allocatable, used)
    return Decision(
        exists=True,
        available=available,
        amounts=leased(available, deciding.limits),
        deciding=deciding,
        open=not is_closed,
        effect=effect,
        closed_since=since,
        next_edge=min((edge for edge in (turn.until, grace_ends) if edge and edge > instant), default=None),
    )


def matching(policies: Iterable[ResourceLeasingPolicy], *, node: NodeFacts, terms: Terms) -> list[ResourceLeasingPolicy]:
    """Returns the policies for this binding and this node, valid or not; the first is the one that decides if all are open."""
    found = [
        policy
        for policy in policies
        if not policy.deleting
        and policy.cluster == terms.binding
        and match_node_selector(policy.node_selector, node.labels, node.name)
        and match_node_selector(terms.selector, node.labels, node.name)
    ]
    return sorted(found, key=lambda policy: (-policy.priority, policy.created, policy.name))


def in_force(valid: Sequence[ResourceLeasingPolicy], *, terms: Terms, instant: datetime) -> tuple[ResourceLeasingPolicy, datetime | None]:
    """Returns which of the valid policies that match a node, best first, decides or decided last, and the next window edge."""
    turn = _turn(valid, terms, instant)
    return turn.in_force, turn.until


def ended(policies: Iterable[ResourceLeasingPolicy], *, node: NodeFacts, terms: Terms, instant: datetime) -> Ended | None:
    """Returns the policy whose lease of this node expired last, by the clock alone; None when none expired within two weeks.

    A policy that was deleted or changed is not included: its lease expires when that is observed, with its own grace period.
    """
    valid = [policy for policy in matching(policies, node=node, terms=terms) if policy.is_valid]
    return _turn(valid, terms, instant).before


@frozen
class _Turn:
    """The policy that decides from `since` until the next window edge, and the one before; `of` are the valid policies, best first."""

    of: Sequence[ResourceLeasingPolicy]
    since: datetime
    until: datetime | None
    deciding: ResourceLeasingPolicy | None
    before: Ended | None

    @property
    def in_force(self) -> ResourceLeasingPolicy:
        """The policy that decides, or decided last while none is open."""
        return self.deciding or (self.before.policy if self.before else self.of[0])


_turns: Final[dict[tuple[object, ...], _Turn]] = {}
_MOST_TURNS: Final = 64


def _turn(ordered: Sequence[ResourceLeasingPolicy], terms: Terms, instant: datetime) -> _Turn:
    """Computes the turn once for all nodes that the same policies match: a calendar takes longer than the rest of a decision.

    Turns are cached by the identity of their policies, which they keep alive; a changed policy is another object.
    """
    key = (terms.zone, *map(id, ordered))
    known = _turns.get(key)
    if known is not None and known.since <= instant and (known.until is None or instant < known.until):
        return known
    edges = [next_edge(policy.windows, terms.zone_for(policy), instant) for policy in ordered if policy.windows]
    until = min(filter(None, edges), default=None)
    if len(_turns) >= _MOST_TURNS:
        _turns.clear()
    _turns[key] = turn = _Turn(ordered, instant, until, _decider(ordered, terms, instant), _before(ordered, terms, instant))
    return turn


def _decider(ordered: Sequence[ResourceLeasingPolicy], terms: Terms, instant: datetime) -> ResourceLeasingPolicy | None:
    return next((policy for policy in ordered if is_open(policy.windows, terms.zone_for(policy), instant)), None)


def _before(ordered: Sequence[ResourceLeasingPolicy], terms: Terms, instant: datetime) -> Ended | None:
    """Goes back from edge to edge until another policy decided."""
    present, moment = _decider(ordered, terms, instant), instant
    for _ in range(_MOST_HAND_OVERS):
        edges = [previous_edge(policy.windows, terms.zone_for(policy), moment) for policy in ordered if policy.windows]
        edge = max(filter(None, edges), default=None)
        if edge is None:
            return None
        moment = edge - timedelta(seconds=1)
        earlier = _decider(ordered, terms, moment)
        if earlier is not present:
            return Ended(earlier, edge) if earlier else None
    return None


def _readable(amounts: Mapping[str, str]) -> dict[str, Quantity]:
    try:
        return parse_resources(amounts)
    except ValueError:
        return {}
