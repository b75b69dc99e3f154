"""Compares what `kubeocean plan` and `kubeocean explain` foretold with the recorded writes of the process and the state of both clusters.

Invariant: a difference is reported with its node, pod or policy and its instant; a run without any returns an empty sequence.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from attrs import define, field, frozen

from kubeocean.explain.calendar import Calendar, Change, Edge, Eviction, Offer
from kubeocean.model import keys
from tests.faults.simulation.actors import NAMESPACE
from tests.faults.simulation.branches import Branch
from tests.faults.simulation.foretold_world import GRID, HORIZON, Body, Foretold, ForetoldWorld, Observed
from tests.faults.simulation.history import Entry, History
from tests.faults.simulation.kubeocean_world import BINDING
from tests.faults.simulation.loop import START
from tests.faults.simulation.schedule import Schedule
from vkubelet.api.quantity import format_resources, parse_resources, sum_resources

ACTED_WITHIN = 1.0
"""Seconds after an instant within which it is acted on."""
SHOWN_WITHIN = 4.0
"""Seconds after which the Node shows it completely: increases are written when they have been stable for a second."""


@define
class Findings:
    """Differences, and how much was compared."""

    differences: list[str] = field(factory=list)
    counts: Counter[str] = field(factory=Counter)

    def expect(self, kind: str, holds: bool, text: str) -> None:
        self.counts[kind] += 1
        if not holds:
            self.differences.append(f"{kind}: {text}")


@frozen(kw_only=True)
class State:
    """What a Node shows of its lease."""

    policy: str
    open: bool
    effect: str
    amounts: Mapping[str, str]


def compared(seed: int) -> Findings:
    """Runs one world and compares everything."""
    world = ForetoldWorld(Branch([Schedule("foretold", "leases", seed)]))
    history, found = world.run(), Findings()
    foretold = world.foretold
    assert foretold.plan is not None, history.problems
    for problem in history.problems:
        found.expect("problems", False, problem)
    observer = _Observer(history, foretold, found)
    observer.evictions(foretold.plan.calendar)
    observer.changes(foretold.plan.calendar)
    for each in foretold.observed:
        _explained(each, found)
    return found


def second_of(instant: datetime) -> float:
    return (instant - START).total_seconds()


def _state(node: Body) -> State:
    taints = [each for each in node["spec"].get("taints") or () if each["key"] == keys.TAINT_CLOSED]
    return State(
        policy=keys.deciding_policy(node["metadata"].get("annotations") or {}),
        open=not taints,
        effect=taints[0]["effect"] if taints else "",
        amounts=node["status"].get("allocatable") or {},
    )


def _vnode(name: str) -> str:
    return keys.vnode_name(BINDING, name)


class _Observer:
    """The writes of one run."""

    def __init__(self, history: History, foretold: Foretold, found: Findings) -> None:
        self._foretold, self._found = foretold, found
        self._until = (foretold.second + HORIZON) // GRID * GRID - 1.0
        """Before an instant of the grid, so that what happens at earlier ones is over."""
        self._ours = history.ours
        self._history = history
        self._states: dict[str, list[tuple[float, State]]] = {}
        """Of each node, from when on it showed what."""
        for entry in history.entries:
            if entry.cluster == "hub" and entry.resource == "nodes" and entry.new is not None:
                self._seen(entry.name, entry.seconds, _state(entry.new))

    def _seen(self, node: str, second: float, state: State) -> None:
        known = self._states.setdefault(node, [])
        if not known or known[-1][1] != state:
            known.append((second, state))

    # --- Evictions ---

    def evictions(self, calendar: Calendar) -> None:
        """Compares pods and times in both directions."""
        observed = self._removed()
        foretold: set[str] = set()
        skipped: set[str] = set()
        for edge in (calendar.now, *calendar.edges):
            second = second_of(edge.at)
            if second > self._until:
                break
            for each in edge.evictions:
                foretold.add(each.pod.name)
                if each.node in skipped:
                    continue
                if each.blocked_by:
                    self._blocked(calendar, edge, each, observed)
                else:
                    self._is_at("eviction", each.pod.name, second, observed.get(each.pod.name))
            # What a node that changes at a deadline does with the pod is not foretold, nor what follows from that.
            skipped |= {each.node for each in edge.evictions if each.decided_again is not None}
        for name, at in observed.items():
            if self._foretold.second < at < self._until and self._node_of(name) not in skipped:
                text = f"{name} on {self._node_of(name)} was evicted at {at:.3f} s, which was not foretold"
                self._found.expect("eviction", name in foretold, text)

    def _blocked(self, calendar: Calendar, edge: Edge, each: Eviction, observed: Mapping[str, float]) -> None:
        """Checks a pod that a budget holds: it leaves at its deadline, unless it may stay before that."""
        name, second, deadline = each.pod.name, second_of(edge.at), second_of(each.deadline)
        self._found.expect("blocked", name in self._foretold.guarded and deadline > second, f"{name} is blocked by {each.blocked_by}")
        attempts = self._attempts(name)
        tried = [at for at in attempts if at >= second]
        # An eviction that was refused before the reading is repeated after its back-off, not at the moment of the reading.
        if edge is not calendar.now or tried == attempts:
            self._is_at("attempt", name, second, tried[0] if tried else None)
        gone = observed.get(name)
        if each.stays is not None:
            text = f"{name} was foretold to stay from {second_of(each.stays):.0f} s on, and left at {gone}"
            self._found.expect("kept", gone is None or gone > second_of(each.stays) + ACTED_WITHIN, text)
        elif each.decided_again is not None:
            self._found.expect(
                "kept", gone is None or gone >= deadline, f"{name} was foretold to stay until {deadline:.0f} s, and left at {gone}"
            )
        elif deadline < self._until:
            self._is_at("deadline", name, deadline, gone)

    def _is_at(self, kind: str, name: str, second: float, observed: float | None) -> None:
        near = observed is not None and second <= observed <= second + ACTED_WITHIN
        self._found.expect(kind, near, f"{name} was foretold for {second:.0f} s, and observed at {observed}")

    def _removed(self) -> dict[str, float]:
        """The second at which the process requested the deletion of each pod that had not terminated, by name."""
        found: dict[str, float] = {}
        for entry in self._pod_writes():
            if entry.old is None or entry.user not in self._ours or entry.old["metadata"].get("deletionTimestamp"):
                continue
            ends = entry.new is None or entry.new["metadata"].get("deletionTimestamp")
            if ends and entry.old["status"].get("phase") not in ("Succeeded", "Failed"):
                found.setdefault(entry.name, entry.seconds)
        return found

    def _pod_writes(self) -> Iterator[Entry]:
        return (each for each in self._history.entries if each.cluster == "hub" and each.resource == "pods")

    def _attempts(self, name: str) -> list[float]:
        """The seconds at which the process requested an eviction, granted or not."""
        target = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
        return [each.time for each in self._history.sent if each.target == target]

    def _node_of(self, name: str) -> str:
        nodes = [(each.new or each.old or {})["spec"].get("nodeName", "") for each in self._pod_writes() if each.name == name]
        return str(next(filter(None, nodes), "")).removeprefix(_vnode(""))

    # --- Nodes ---

    def changes(self, calendar: Calendar) -> None:
        """Compares the changes of all nodes at each edge, and that nothing changes between edges."""
        edges = [edge for edge in calendar.edges if second_of(edge.at) < self._until]
        known = [second_of(edge.at) for edge in edges if edge.changes]
        for edge in edges:
            for change in edge.changes:
                self._changed(second_of(edge.at), change)
        for node, states in self._states.items():
            for second, state in states:
                if not self._foretold.second < second < self._until:
                    continue
                last = known[bisect(known, second) - 1] if bisect(known, second) else -1.0
                named = [change for edge in edges if second_of(edge.at) == last for change in edge.changes]
                about = [change for change in named if node in map(_vnode, change.nodes)]
                text = f"{node} shows {state} at {second:.3f} s, which was not foretold"
                self._found.expect("change", second <= last + SHOWN_WITHIN and bool(about), text)

    def _changed(self, second: float, change: Change) -> None:
        nodes = [_vnode(name) for name in change.nodes]
        before = [self._shown(node, second - 0.001) for node in nodes]
        after = [self._shown(node, second + SHOWN_WITHIN) for node in nodes]
        for states, offer, when in ((before, change.before, "before"), (after, change.after, "after")):
            text = f"{', '.join(nodes)} {when} {second:.0f} s: foretold {offer}, observed {states}"
            self._found.expect("offer", _is_like(states, offer), text)
        for node in nodes:
            moved = [at for at, _ in self._states[node] if second <= at <= second + SHOWN_WITHIN]
            self._found.expect("time", bool(moved), f"{node} was foretold to change at {second:.0f} s, and did not")
            if moved and change.before.open and not change.after.open:
                text = f"{node} was foretold to close at {second:.0f} s, and changed at {moved}"
                self._found.expect("close", moved[0] <= second + ACTED_WITHIN, text)

    def _shown(self, node: str, second: float) -> State | None:
        found = [state for at, state in self._states.get(node, ()) if at <= second]
        return found[-1] if found else None


def _is_like(states: Sequence[State | None], offer: Offer) -> bool:
    shown = [each for each in states if each is not None]
    alike = all((each.policy, each.open, each.effect) == (offer.policy, offer.open, offer.effect) for each in shown)
    return len(shown) == len(states) and alike and _sum(each.amounts for each in shown) == format_resources(offer.amounts)


def _sum(amounts: Iterator[Mapping[str, str]]) -> Mapping[str, str]:
    return format_resources(sum_resources(map(parse_resources, amounts)))


# --- Explanations -------------------------------------------------------------------------------------------------------------------------


def _explained(seen: Observed, found: Findings) -> None:
    for made, node in seen.nodes:
        where = f"{made.virtual} at {seen.seconds:.0f} s"
        if node is None:
            found.expect("node", made.state == "NotLeased", f"{where}: {made.state}, but it does not exist")
            continue
        state = _state(node)
        offered = {each.resource: str(each.offered) for each in made.amounts}
        found.expect("node", not made.outdated and offered == state.amounts, f"{where}: {offered}, not {state.amounts}; {made.outdated}")
        found.expect("node", made.policy == state.policy, f"{where}: decided by {made.policy}, not {state.policy}")
        found.expect("node", (made.state == "Open") == state.open, f"{where}: {made.state}, and {state}")
        decides = [each.policy for each in made.policies if each.decides]
        found.expect("node", decides == [state.policy], f"{where}: {decides} decide, not {state.policy}")
    for explained, body in seen.policies:
        _policy(explained, body.get("status") or {}, found, where=f"{explained.policy} at {seen.seconds:.0f} s")
    for pod, live, physical in seen.pods:
        _pod(pod, live, physical, found)


def _policy(explained: object, status: Body, found: Findings, *, where: str) -> None:
    made = {name: getattr(explained, name) for name in ("state", "next_edge", "nodes", "offered")}
    edge = datetime.fromisoformat(status["nextEdge"]) if status.get("nextEdge") else None
    found.expect("policy", made["state"] == status.get("phase"), f"{where}: {made['state']}, not {status.get('phase')}")
    found.expect("policy", made["next_edge"] == edge, f"{where}: next edge {made['next_edge']}, not {edge}")
    nodes = sorted(each.node for each in made["nodes"] if each.decides)
    found.expect("policy", nodes == (status.get("nodes") or []), f"{where}: decides about {nodes}, not {status.get('nodes')}")


def _pod(made: object, live: Body, physical: Body | None, found: Findings) -> None:
    name, phase = live["metadata"]["name"], live["status"].get("phase")
    why, node, where = (getattr(made, key) for key in ("why", "node", "physical_node"))
    found.expect("pod", node == live["spec"].get("nodeName", ""), f"{name}: on {node}, not {live['spec'].get('nodeName')}")
    if phase == "Running" and not live["metadata"].get("deletionTimestamp"):
        found.expect("pod", not why, f"{name} runs: {why}")
        runs = physical is not None and physical["spec"].get("nodeName") == where and node == _vnode(where)
        found.expect("pod", runs, f"{name}: physical node {where}, not {physical and physical['spec'].get('nodeName')}")
    else:
        found.expect("pod", bool(why), f"{name} is {phase} without a reason")
        if phase == "Failed":
            found.expect("pod", live["status"]["reason"] in why[0], f"{name}: {why}, not {live['status']['reason']}")
