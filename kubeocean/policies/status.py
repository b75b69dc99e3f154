"""Computes the amounts and the desired status of a ResourceLeasingPolicy, and when it is worth a write. Pure but for the clock.

Invariant: equal verdicts render no patch. Phase, conditions, edge and nodes are written at once; the amounts, which change with every pod,
are written when they have been stable for a moment, after half a minute at the latest, and on average at most every half minute. What was
lent, which changes with every second, is part of each write, and causes one only after several minutes.

The amounts of a policy are the sums over the nodes put last under it. They are updated node by node, because a policy may decide about
thousands of nodes; reading them does not iterate over the nodes.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from attrs import define, field, frozen

from kubeocean.binding.conditions import permitted
from kubeocean.model.crds import ResourceLeasingPolicy
from vkubelet.api.objects import Json, JsonView, set_condition
from vkubelet.api.quantity import Resources, add_resources, format_resources, subtract_resources
from vkubelet.clock import Clock, parse_rfc3339, rfc3339

MOST_NODES_NAMED: Final = 32

AMOUNTS: Final = ("offered", "leased")
_LEDGER: Final = "ledger"
_LENT: Final = ("lastDay", "total")
_OF_AMOUNTS: Final = frozenset({*AMOUNTS, _LEDGER})
_LEDGER_EVERY: Final = timedelta(minutes=4)
"""Time after which the ledger is worth a write; policies without changes are reconciled every five minutes."""
_ADDED: Final = frozenset({"observedGeneration", "timeZone", "nextEdge", "decidingNodes", "nodes", *_OF_AMOUNTS})
"""Status fields that the definition of Kubeocean (Go) lacks; where that definition is installed the API server drops them."""

_STILL: Final = 1.0
_LATEST: Final = 30.0
_BURST: Final = 3
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 300.0


@frozen
class Amounts:
    """Sums over all nodes a policy decides about: what their virtual nodes offer, and what the pods leased on them request."""

    offered: Resources = field(factory=dict)
    leased: Resources = field(factory=dict)


@frozen
class Verdict:
    """The input of a policy's desired status.

    `problems` is empty for a valid one, `zone` names the zone in force, `nodes` are the physical nodes it decides about now; without
    `amounts`, while they are incomplete, the reported ones stay. `lent` returns what was lent until now, None while that is unknown.
    """

    problems: str
    open: bool = False
    zone: str = ""
    edge: datetime | None = None
    nodes: Sequence[str] = ()
    amounts: Amounts | None = None
    lent: Callable[[], Json | None] | None = None


@frozen
class Report:
    """A status to be written: `status` is all of it, `patch` the merge patch. `only_amounts`: nothing else differs.

    `repeated`: apart from amounts it was written before, and another client replaced it.
    """

    status: Json
    patch: Json
    only_amounts: bool
    repeated: bool = False


def status_change(policy: ResourceLeasingPolicy, verdict: Verdict, *, now: datetime, last_sent: JsonView | None = None) -> Report | None:
    """Returns the new status, or None when nothing differs; `last_sent` is the status written last."""
    before: Sequence[JsonView] = policy.status.get("conditions") or ()
    after: list[Json] = [dict(condition) for condition in before]
    for condition in _conditions(verdict):
        after = set_condition(after, {**condition, "observedGeneration": policy.generation}, now=now)
    dropped = {name: value for name, value in (last_sent or {}).items() if name in _ADDED and name not in policy.status}
    present = {**policy.status, **dropped}
    status: Json = {
        "phase": "Failed" if verdict.problems else "Active" if verdict.open else "Inactive",
        "activeTimeWindow": verdict.open,
        "observedGeneration": policy.generation,
        "decidingNodes": len(verdict.nodes),
        "nodes": sorted(verdict.nodes)[:MOST_NODES_NAMED],
        "conditions": after,
        "timeZone": verdict.zone or None,
        "nextEdge": rfc3339(verdict.edge) if verdict.edge else None,
        **_amounts(verdict, present),
    }
    differing = {name for name, value in status.items() if present.get(name) != value}
    if (ledger := _ledger(verdict, present.get(_LEDGER) or {}, now=now, due=bool(differing))) is not None:
        status[_LEDGER] = ledger
        differing.add(_LEDGER)
    if not differing:
        return None
    patch = {**status, **{name: _replacing(policy.status.get(name) or {}, status[name]) for name in AMOUNTS}}
    if ledger is not None:
        written = policy.status.get(_LEDGER) or {}
        patch[_LEDGER] = {**ledger, **{name: _replacing(written.get(name) or {}, ledger[name]) for name in _LENT}}
    elif _LEDGER in present:
        status[_LEDGER] = present[_LEDGER]
    only_amounts = differing <= _OF_AMOUNTS
    repeated = not only_amounts and last_sent is not None and _without_times(last_sent) == _without_times(status)
    return Report(status, {"status": {**patch, "lastAppliedTime": rfc3339(now)}}, only_amounts, repeated)


def _without_times(status: JsonView) -> Json:
    """Returns a status without amounts, and without the times at which another client's writes changed its conditions."""
    fields = ("type", "status", "reason", "message", "observedGeneration")
    conditions = [{name: each.get(name) for name in fields} for each in status.get("conditions") or ()]
    rest = {name: value for name, value in status.items() if name not in _OF_AMOUNTS}
    return {**rest, "conditions": sorted(conditions, key=lambda each: str(each["type"]))}


def _ledger(verdict: Verdict, written: JsonView, *, now: datetime, due: bool) -> Json | None:
    """Returns what was lent until now, when it is to be written: with other changes, or when what is written is old and differs."""
    try:
        old = now - parse_rfc3339(written["through"]) >= _LEDGER_EVERY
    except (KeyError, TypeError, ValueError):
        old = True
    if verdict.lent is None or not (due or old):
        return None
    lent = verdict.lent()
    if lent is None or not (due or any(lent[name] != (written.get(name) or {}) for name in _LENT)):
        return None
    return lent


def _amounts(verdict: Verdict, present: JsonView) -> Json:
    if verdict.amounts is None:
        return {name: present.get(name) or {} for name in AMOUNTS}
    return {"offered": format_resources(verdict.amounts.offered), "leased": format_resources(verdict.amounts.leased)}


def _replacing(before: JsonView, after: JsonView) -> Json:
    """Returns the part of a merge patch that replaces `before`, so that none of its keys remain."""
    return {**dict.fromkeys(before), **after}


def _conditions(verdict: Verdict) -> list[Json]:
    if verdict.problems:
        invalid = {"type": "Valid", "status": "False", "reason": "ValidationError", "message": permitted(verdict.problems)}
        return [invalid, {"type": "Active", "status": "False", "reason": "ValidationError", "message": "the policy is invalid"}]
    valid = {"type": "Valid", "status": "True", "reason": "ValidationPassed", "message": "the policy is valid"}
    if verdict.open:
        return [valid, {"type": "Active", "status": "True", "reason": "ActiveTimeWindow", "message": "a time window is open"}]
    return [valid, {"type": "Active", "status": "False", "reason": "InactiveTimeWindow", "message": "no time window is open"}]


@frozen
class _Unwritten:
    amounts: Mapping[str, object]
    first: float
    last: float


class Pace:
    """Decides when amounts that differ from the reported ones are written; one for each process, policies by name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._unwritten: dict[str, _Unwritten] = {}
        self._written: dict[str, list[float]] = {}
        self._repeated: dict[str, tuple[float, float]] = {}
        """When a status that another client replaced was last rewritten, and the seconds until the next time; by policy."""

    def wait(self, policy: str, status: JsonView) -> float:
        """Returns the seconds until this may be written, if it does not change until then; 0 means now."""
        now, amounts = self._clock.monotonic(), {name: status[name] for name in AMOUNTS}
        known = self._unwritten.get(policy)
        if known is None or known.amounts != amounts:
            known = self._unwritten[policy] = _Unwritten(amounts, known.first if known else now, now)
        due = min(known.last + _STILL, known.first + _LATEST)
        written = self._written.get(policy, [])
        if len(written) == _BURST:
            due = max(due, written[0] + _BURST * _LATEST)
        return max(0.0, due - now)

    def wait_to_repeat(self, policy: str) -> float:
        """Returns the seconds until a status that another client replaced may be rewritten; 0 means now, and the next pause is doubled."""
        now = self._clock.monotonic()
        last, pause = self._repeated.get(policy, (-math.inf, 0.0))
        if now < last + pause:
            return last + pause - now
        self._repeated[policy] = (now, _FIRST_PAUSE if now > last + _LONGEST_PAUSE + pause else min(_LONGEST_PAUSE, 2 * pause))
        return 0.0

    def settled(self, policy: str) -> None:
        """Drops the unwritten amounts: the reported ones are current."""
        self._unwritten.pop(policy, None)

    def wrote(self, policy: str) -> None:
        """Records a write made only for the amounts."""
        self.settled(policy)
        self._written[policy] = [*self._written.get(policy, []), self._clock.monotonic()][-_BURST:]

    def remove(self, policy: str) -> None:
        """Removes a deleted policy."""
        self.settled(policy)
        self._written.pop(policy, None)
        self._repeated.pop(policy, None)


@frozen
class _Node:
    policy: str
    offered: Resources
    leased: Resources


@define
class _Sum:
    """Sums of one policy. `having` counts the nodes that have a resource, because an amount of zero differs from a missing one."""

    offered: Resources = field(factory=dict)
    leased: Resources = field(factory=dict)
    having: Counter[str] = field(factory=Counter)

    def put(self, node: _Node) -> None:
        self.offered = add_resources(self.offered, node.offered)
        self.leased = add_resources(self.leased, node.leased)
        self.having.update(node.offered.keys())

    def remove(self, node: _Node) -> None:
        self.having.subtract(node.offered.keys())
        offered = subtract_resources(self.offered, node.offered)
        self.offered = {name: amount for name, amount in offered.items() if self.having[name] > 0}
        self.leased = {name: amount for name, amount in subtract_resources(self.leased, node.leased).items() if amount}


class PolicyAmounts:
    """Amounts by policy. Keys are names of physical nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._sums: dict[str, _Sum] = {}

    def put(self, name: str, *, policy: str, offered: Resources, leased: Resources) -> bool:
        """Counts a node under its deciding policy, in place of its earlier amounts. Returns whether they differ."""
        node = _Node(policy, offered, leased)
        if self._nodes.get(name) == node:
            return False
        self.remove(name)
        self._nodes[name] = node
        self._sums.setdefault(policy, _Sum()).put(node)
        return True

    def lease(self, name: str, leased: Resources) -> str:
        """Updates the leased amount of a node whose pods changed. Returns the policy whose sum changed; "" for an uncounted node."""
        node = self._nodes.get(name)
        if node is None:
            return ""
        self.put(name, policy=node.policy, offered=node.offered, leased=leased)
        return node.policy

    def remove(self, name: str) -> None:
        """Removes a withdrawn node."""
        node = self._nodes.pop(name, None)
        if node is not None:
            self._sums[node.policy].remove(node)

    def of(self, policy: str) -> Amounts:
        """Returns the sums over the nodes of a policy."""
        total = self._sums.get(policy, _Sum())
        return Amounts(total.offered, {name: amount for name, amount in total.leased.items() if amount})
