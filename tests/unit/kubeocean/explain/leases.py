"""Random leases, and what the deciding code does with them over time.

Invariant: the observer decides at every instant of a grid and keeps its state as a process does, in the virtual Node; it knows no edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from attrs import define, evolve, field, frozen
from hypothesis import strategies as st

from kubeocean.explain.calendar import Offer
from kubeocean.explain.lease import Lease, LeasedNode
from kubeocean.leasing.policy import Decision, NodeFacts, Terms, decide
from kubeocean.leasing.reclaim import LeasedPod, Order
from kubeocean.model import keys
from kubeocean.model.crds import ResourceLeasingPolicy
from kubeocean.nodes.describe import closed_since, describe, lease_record
from kubeocean.nodes.reclaim_orders import ReclaimPlanner
from tests.unit.kubeocean.builders import at, binding, limit, node, policy
from vkubelet.api.objects import Node, Pod
from vkubelet.api.quantity import Resources, parse_resources
from vkubelet.provider import NodeDescription
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost, make_pod

GRID = timedelta(minutes=10)
BINDING = binding()
TERMS = Terms.of(BINDING)
ZONES = ("", "UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# Ordinary days, and those on which a clock of the zones above changes.
STARTS = tuple(map(at, ("2026-01-05 00:00", "2026-03-28 12:00", "2026-03-07 18:00", "2026-10-24 12:00", "2026-10-31 20:00")))


@st.composite
def windows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Windows that open and close on the grid."""
    tens = st.integers(0, 143)
    made = []
    for _ in range(draw(st.integers(0, 3))):
        first, last = draw(tens), draw(tens)
        days = draw(st.lists(st.sampled_from(DAYS), max_size=4, unique=True))
        made.append({"start": _clock(first * 10), "end": _clock(last * 10 + 9), "days": days})
    return made


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


@st.composite
def policies(draw: st.DrawFn) -> list[ResourceLeasingPolicy]:
    made = []
    for number in range(draw(st.integers(1, 4))):
        limits = []
        if draw(st.booleans()):
            limits.append(
                limit(
                    "cpu", **draw(st.sampled_from(({"percent": 50}, {"quantity": "1"}, {"percent": 0}, {"quantity": "3", "percent": 80})))
                )
            )
        if draw(st.booleans()):
            limits.append(limit("memory", percent=draw(st.integers(0, 100))))
        spec = {
            "timeWindows": draw(windows()),
            "timeZone": draw(st.sampled_from(ZONES)),
            "resourceLimits": limits,
            "priority": draw(st.integers(-1, 1)),
            "forceReclaim": draw(st.booleans()),
            "gracefulReclaimPeriodSeconds": draw(st.integers(0, 12)) * 600,
            "allowOutOfWindowPods": draw(st.booleans()),
            **({"nodeSelector": _only("node-1")} if draw(st.integers(0, 4)) == 0 else {}),
        }
        made.append(policy(f"p{number}", spec, uid=f"p{number}", generation=draw(st.integers(1, 2))))
    return made


def _only(name: str) -> dict[str, Any]:
    return {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]}


@st.composite
def pods(draw: st.DrawFn, on: str) -> list[Pod]:
    made = []
    for number in range(draw(st.integers(0, 5))):
        requests = {"cpu": f"{draw(st.integers(0, 4)) * 500}m", "memory": f"{draw(st.integers(0, 3))}Gi"}
        tolerations = [{"key": keys.TAINT_CLOSED, "operator": "Exists"}] if draw(st.booleans()) else []
        spec = {
            "containers": [{"name": "main", "image": "i", "resources": {"requests": requests}}],
            "priority": draw(st.integers(0, 2)),
            "tolerations": tolerations,
        }
        created = f"2026-01-01T00:00:{draw(st.integers(0, 3)):02}Z"
        made.append(make_pod(f"{on}-{number}", node=on, spec=spec, metadata={"creationTimestamp": created}))
    return made


@frozen(kw_only=True)
class Sample:
    """Policies, nodes with what is used of them locally, pods by virtual node, a start, and how long the process runs before it."""

    policies: Sequence[ResourceLeasingPolicy]
    used: dict[str, Resources]
    pods: dict[str, list[Pod]]
    start: datetime
    before: int
    """Instants of the grid at which the process decides before the calendar is made."""


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    names = [f"node-{number}" for number in range(draw(st.integers(1, 2)))]
    used = {name: parse_resources({"cpu": f"{draw(st.integers(0, 9)) * 500}m", "pods": "3"}) for name in names}
    return Sample(
        policies=draw(policies()),
        used=used,
        pods={name: draw(pods(keys.vnode_name("demo", name))) for name in names},
        start=draw(st.sampled_from(STARTS)) + GRID * draw(st.integers(0, 143)),
        before=draw(st.sampled_from((0, 1, 30))),
    )


def physical_node(name: str) -> Node:
    return node(status={"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}, name=name, uid=name)


@frozen
class Seen:
    """An observed state of a node, or an eviction of a pod."""

    at: datetime
    node: str
    what: Any


@define
class Observer:
    """Decides about all nodes of a sample at each instant of the grid, by the planner of the process on a manual clock."""

    sample: Sample
    host: RecordingHost = field(init=False)
    planner: ReclaimPlanner = field(init=False)
    nodes: dict[str, NodeDescription] = field(factory=dict)
    offers: list[Seen] = field(factory=list)
    evictions: list[Seen] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.host = RecordingHost(clock=ManualClock(self.sample.start - GRID * self.sample.before))
        self.planner = ReclaimPlanner(self.host, self, counts=lambda pod: True)
        for each in self.sample.pods.values():
            for pod in each:
                self.host.pods.put(pod)

    @property
    def current(self) -> Sequence[ResourceLeasingPolicy]:
        return self.sample.policies

    def deleted_at(self, name: str) -> datetime | None:
        return None

    def run(self, instants: int) -> None:
        """Decides at so many instants, the present one first."""
        for _ in range(instants):
            for name in self.sample.used:
                self._decide(name)
            self.host.manual_clock.stand_still(GRID.total_seconds())

    def _decide(self, name: str) -> None:
        now, last = self.host.clock.now(), self.nodes.get(name)
        physical, record = physical_node(name), lease_record(last)
        facts = NodeFacts.of(physical)
        since = closed_since(last, record)
        used = self.sample.used[name]
        decision = decide(facts, self.sample.policies, terms=TERMS, used=used, instant=now, closed_since=since)
        self.offers.append(Seen(now, name, offer_of(decision)))
        if not decision.exists:
            return
        virtual = keys.vnode_name("demo", name)
        plan = self.planner.plan_for_declared(virtual, decision, facts=facts, terms=TERMS, record=record)
        assert plan is not None
        described = describe(physical, decision, binding=BINDING)
        annotations = {**described.annotations, keys.LEASE_RECORD: plan.record.encode()}
        self.nodes[name] = evolve(described, annotations=annotations)
        self._evict(name, plan.orders, now)

    def _evict(self, name: str, orders: Sequence[Order], now: datetime) -> None:
        """Lets the ordered pods leave; each deleted pod triggers another decision about its node."""
        for order in orders:
            self.evictions.append(Seen(now, name, (order.pod, max(order.until, now), order.why)))
            evicted = self.host.pods.get(order.pod)
            assert evicted is not None
            self.host.pods.remove(evicted)
        if orders:
            self.offers.pop()
            self._decide(name)

    def lease(self) -> Lease:
        """What can be read of the state so far: objects of the API servers, and nothing that the process remembers."""
        nodes = []
        for name, used in self.sample.used.items():
            virtual, last = keys.vnode_name("demo", name), self.nodes.get(name)
            record = lease_record(last)
            leased = [LeasedPod.of(pod) for pod in self.host.pods.on_node(virtual)]
            facts = NodeFacts.of(physical_node(name))
            nodes.append(
                LeasedNode(facts=facts, virtual=virtual, used=used, pods=leased, record=record, closed_since=closed_since(last, record))
            )
        return Lease(terms=TERMS, policies=self.sample.policies, nodes=nodes)


def offer_of(decision: Decision) -> Offer:
    name = decision.deciding.name if decision.deciding else ""
    return Offer(policy=name, open=decision.open, effect=decision.effect, amounts=decision.amounts)


def changes(seen: Sequence[Seen]) -> Iterator[tuple[datetime, str, Offer, Offer]]:
    """Yields the instants at which the offer of a node differs from that of the instant before."""
    last: dict[str, Offer] = {}
    for each in seen:
        before = last.get(each.node)
        if before is not None and before != each.what:
            yield each.at, each.node, before, each.what
        last[each.node] = each.what
