"""Decides which virtual pods have to leave a node, and by when: it is closed, a policy reduced its capacity, or it is retired.

Invariant: pods leave only by the rules of a policy that stopped applying or shrank, or with their node. Growing local use alone terminates
no pod, and neither does a restart: whether all pods have fitted is read from the record on the Node, not from the memory of a process.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from kubeocean.leasing.policy import Decision, Ended, NodeFacts, Terms, ended
from kubeocean.leasing.reclaim import LeasedPod, Order
from kubeocean.leasing.reclaim_plan import ReclaimPlan, reclaim_plan
from kubeocean.leasing.record import LeaseRecord
from kubeocean.model.crds import ResourceLeasingPolicy
from vkubelet.api.objects import Pod
from vkubelet.provider import Host


class KnownPolicies(Protocol):
    """The policies as needed here: those for this binding, and since when one is being deleted."""

    @property
    def current(self) -> Sequence[ResourceLeasingPolicy]: ...

    def deleted_at(self, name: str) -> datetime | None: ...


class ReclaimPlanner:
    """Decides for one node at a time. `counts(pod)`: the pod leaves the hub; any other uses no leased capacity, so it is not reclaimed."""

    def __init__(self, host: Host, policies: KnownPolicies, *, counts: Callable[[Pod], bool]) -> None:
        self._host = host
        self._policies = policies
        self._counts = counts
        self._retired: dict[str, datetime] = {}
        self._pods: dict[str, dict[str, LeasedPod]] = {}
        """Pods by node and UID: each new pod triggers a decision for its node; most are unchanged."""

    def plan_for_declared(
        self, node: str, decision: Decision, *, facts: NodeFacts, terms: Terms, record: LeaseRecord | None
    ) -> ReclaimPlan | None:
        """Decides for a declared node with its current record; None when no policy decides about it."""
        self._retired.pop(node, None)
        now = self._host.clock.now()

        def last_ended() -> Ended | None:
            return ended(self._policies.current, node=facts, terms=terms, instant=now)

        return reclaim_plan(decision, self._leased(node), record=record, last_ended=last_ended, now=now)

    def plan_for_retired(
        self, node: str, policy: ResourceLeasingPolicy | None, *, record: LeaseRecord | None, at_once: bool
    ) -> Sequence[Order]:
        """Orders the termination of every pod of a withdrawn node; a deleted policy grants its own grace period from its deletion on."""
        now = self._host.clock.now()
        # Not later than now, should the clock have been set back.
        began = self._retired[node] = min(self._retired.get(node, now), now)
        name = policy.name if policy is not None else record.decided_by.name if record is not None else ""
        until = now
        if name and not at_once:
            grace = policy.grace if policy is not None else record.rules.grace if record is not None else timedelta()
            # The clock of the API server may be ahead of ours; a policy is not deleted later than we observe it.
            until = min(self._policies.deleted_at(name) or began, began) + grace
        why = f"its node is withdrawn; ResourceLeasingPolicy {name} leased it" if name else "its node is withdrawn"
        return [Order(pod.ref, until, why) for pod in self._host.pods.on_node(node) if not pod.terminating]

    def remove(self, node: str) -> None:
        """Drops the state of a deleted node."""
        self._pods.pop(node, None)
        self._retired.pop(node, None)

    def _leased(self, node: str) -> list[LeasedPod]:
        before, now = self._pods.get(node, {}), {}
        for pod in self._host.pods.on_node(node):
            if not pod.terminating and not pod.terminal and self._counts(pod):
                known = before.get(pod.metadata.uid)
                now[pod.metadata.uid] = known if known is not None and known.made_of == pod.spec_hash else LeasedPod.of(pod)
        self._pods[node] = now
        return list(now.values())
