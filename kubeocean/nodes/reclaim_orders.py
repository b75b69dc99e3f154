"""Decides which virtual pods have to leave a node, and by when: it is closed, a policy reduced its capacity, or it is retired.

Invariant: pods leave only by the rules of a policy that stopped applying or shrank, or with their node. Growing local use alone terminates
no pod, and neither does a restart: whether all pods have fitted is read from the record on the Node, not from the memory of a process.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from attrs import frozen

from kubeocean.leasing.policy import Decision, NodeFacts, Terms, ended
from kubeocean.leasing.reclaim import LeasedPod, ReclaimRules, Step, excess, reclaim, reclaim_order, shortage
from kubeocean.leasing.record import LeaseRecord, PolicyEnd, PolicyVersion
from kubeocean.model.crds import ResourceLeasingPolicy
from kubeocean.nodes.reclaim import Order
from vkubelet.api.objects import Pod
from vkubelet.provider import Host


class KnownPolicies(Protocol):
    """The policies as needed here: those for this binding, and since when one is being deleted."""

    @property
    def current(self) -> Sequence[ResourceLeasingPolicy]: ...

    def deleted_at(self, name: str) -> datetime | None: ...


@frozen
class ReclaimPlan:
    """The desired record of a node, and the orders for its pods."""

    record: LeaseRecord
    orders: Sequence[Order] = ()


class ReclaimPlanner:
    """Decides for one node at a time. `counts(pod)`: the pod leaves the hub; any other uses no leased capacity, so it is not reclaimed."""

    def __init__(self, host: Host, policies: KnownPolicies, *, counts: Callable[[Pod], bool]) -> None:
        self._host = host
        self._policies = policies
        self._counts = counts
        self._retired: dict[str, datetime] = {}
        self._pods: dict[str, dict[str, tuple[bytes, LeasedPod]]] = {}
        """Pods by node and UID, with the spec they were read from: each new pod triggers a decision for its node; most are unchanged."""

    def plan_for_declared(
        self, node: str, decision: Decision, *, facts: NodeFacts, terms: Terms, record: LeaseRecord | None
    ) -> ReclaimPlan | None:
        """Decides for a declared node with its current record; None when no policy decides about it."""
        self._retired.pop(node, None)
        policy, now = decision.deciding, self._host.clock.now()
        if policy is None:
            return None
        known, leased = record or LeaseRecord.fitting(policy), self._leased(node)
        if not decision.open:
            rules = ReclaimRules.of(policy)
            why = f"the time window of ResourceLeasingPolicy {policy.name} has ended"
            orders = self._orders(rules, decision.closed_since or now, reclaim_order(leased, rules), why=why)
            return ReclaimPlan(known.decided(policy), orders)
        if record is None or not shortage(leased, decision.amounts):
            return ReclaimPlan(LeaseRecord.fitting(policy))
        if known.fitted == PolicyVersion.of(policy):
            return ReclaimPlan(known.decided(policy))
        end = self._end(known, policy, facts=facts, terms=terms)
        why = f"ResourceLeasingPolicy {end.policy} ended or shrank, and the node offers less than its pods request"
        orders = self._orders(end.rules, end.at, excess(leased, decision.amounts, end.rules), why=why)
        return ReclaimPlan(known.decided(policy, ended=end), orders)

    def plan_for_retired(
        self, node: str, policy: ResourceLeasingPolicy | None, *, record: LeaseRecord | None, at_once: bool
    ) -> Sequence[Order]:
        """Orders the termination of every pod of a withdrawn node; a deleted policy grants its own grace period from its deletion on."""
        now = self._host.clock.now()
        began = self._retired.setdefault(node, now)
        name = policy.name if policy is not None else record.decided_by.name if record is not None else ""
        until = now
        if name and not at_once:
            grace = policy.grace if policy is not None else record.rules.grace if record is not None else timedelta()
            until = (self._policies.deleted_at(name) or began) + grace
        why = f"its node is withdrawn; ResourceLeasingPolicy {name} leased it" if name else "its node is withdrawn"
        return [Order(pod.ref, until, why) for pod in self._host.pods.on_node(node) if not pod.terminating]

    def remove(self, node: str) -> None:
        """Drops the state of a deleted node."""
        self._pods.pop(node, None)
        self._retired.pop(node, None)

    def _end(self, known: LeaseRecord, policy: ResourceLeasingPolicy, *, facts: NodeFacts, terms: Terms) -> PolicyEnd:
        """Finds which PolicyEnd caused the excess. By the clock only if that policy decided last: an older hand-over is not the cause."""
        if known.ended is not None and known.decided_by == PolicyVersion.of(policy):
            return known.ended
        now = self._host.clock.now()
        over = ended(self._policies.current, node=facts, terms=terms, instant=now)
        if over is not None and PolicyVersion.of(over.policy) == known.decided_by:
            return PolicyEnd(over.policy.name, ReclaimRules.of(over.policy), over.at)
        # Observed just now: the earlier policy was deleted or displaced, or this one was edited.
        rules = ReclaimRules.of(policy) if known.decided_by.name == policy.name else known.rules
        return PolicyEnd(known.decided_by.name, rules, now)

    def _leased(self, node: str) -> list[LeasedPod]:
        before, now = self._pods.get(node, {}), {}
        for pod in self._host.pods.on_node(node):
            if not pod.terminating and not pod.terminal and self._counts(pod):
                spec, known = before.get(pod.metadata.uid, (b"", None))
                now[pod.metadata.uid] = (pod.spec_json, known if known is not None and spec == pod.spec_json else LeasedPod.of(pod))
        self._pods[node] = now
        return [leased for _, leased in now.values()]

    def _orders(self, rules: ReclaimRules, since: datetime, pods: Sequence[LeasedPod], *, why: str) -> Sequence[Order]:
        verdict = reclaim(rules, since=since, instant=self._host.clock.now())
        if verdict.step is Step.NOTHING or verdict.deadline is None:
            return ()
        return [Order(pod.ref, verdict.deadline, why) for pod in pods]
