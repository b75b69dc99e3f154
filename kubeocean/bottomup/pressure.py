"""Which virtual pods have to leave a node, and by when: because it is closed, because a policy gave it less, or because it is retired.

Invariant: pods leave only by the rules of a policy that ended or shrank, or with their node; growing local use alone drives nobody out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from attrs import frozen

from kubeocean.bottomup.reclaim import Order
from kubeocean.crds import ResourceLeasingPolicy
from kubeocean.leasing.policy import Decision, Ended, NodeFacts, Terms, ended
from kubeocean.leasing.reclaim import LeasedPod, Step, excess, reclaim, reclaim_order
from vkubelet.provider import Host

_Version = tuple[str, str, int]


@frozen
class _Seen:
    """The policy by which a node was last decided, and since when its pods have not fitted."""

    policy: ResourceLeasingPolicy
    fitted_by: _Version | None = None
    ended: Ended | None = None


class KnownPolicies(Protocol):
    """What is asked of the policies: those for this binding, and since when one is being deleted."""

    @property
    def current(self) -> Sequence[ResourceLeasingPolicy]: ...

    def deleted_at(self, name: str) -> datetime | None: ...


class Pressure:
    """Remembers per virtual node what is needed to tell a policy's end from ordinary use."""

    def __init__(self, host: Host, policies: KnownPolicies) -> None:
        self._host = host
        self._policies = policies
        self._seen: dict[str, _Seen] = {}
        self._retired: dict[str, datetime] = {}
        self._pods: dict[str, dict[str, tuple[bytes, LeasedPod]]] = {}
        """By node and uid, with the spec they were read from: a node is looked at with each pod that comes, and most stay as they are."""

    def last_policy(self, node: str) -> ResourceLeasingPolicy | None:
        """By which policy a virtual node was decided last."""
        seen = self._seen.get(node)
        return seen.policy if seen is not None else None

    def of_declared(self, node: str, decision: Decision, *, facts: NodeFacts, terms: Terms) -> Sequence[Order]:
        """Orders for a node that exists; a moment without excess settles what went before."""
        self._retired.pop(node, None)
        policy, now = decision.deciding, self._host.clock.now()
        if policy is None:
            return ()
        if not decision.open:
            seen = self._seen.get(node)
            self._seen[node] = _Seen(policy, fitted_by=seen.fitted_by if seen is not None else None)
            since = decision.closed_since or now
            return self._orders(policy, since, reclaim_order(self._leased(node)), why=f"the time window of policy {policy.name} has ended")
        too_many = excess(self._leased(node), decision.amounts)
        if not too_many:
            self._seen[node] = _Seen(policy, fitted_by=_version(policy))
            return ()
        over = self._whose_end(node, policy, facts=facts, terms=terms)
        if over is None:
            return ()
        why = f"policy {over.policy.name} ended or shrank, and the node offers less than its pods request"
        return self._orders(over.policy, over.at, too_many, why=why)

    def of_retired(self, node: str, policy: ResourceLeasingPolicy | None, *, at_once: bool) -> Sequence[Order]:
        """Every pod of a node that goes; a policy that was deleted gives its own grace from then on."""
        now = self._host.clock.now()
        began = self._retired.setdefault(node, now)
        until = now
        if policy is not None and not at_once:
            until = (self._policies.deleted_at(policy.name) or began) + policy.grace
        why = "its node is withdrawn" if policy is None else f"its node is withdrawn; it was leased by policy {policy.name}"
        return [Order(pod.ref, until, why) for pod in self._host.pods.on_node(node) if not pod.terminating]

    def forget(self, node: str) -> None:
        """The node is gone."""
        self._pods.pop(node, None)
        self._seen.pop(node, None)
        self._retired.pop(node, None)

    def _whose_end(self, node: str, policy: ResourceLeasingPolicy, *, facts: NodeFacts, terms: Terms) -> Ended | None:
        """The policy by whose rules the excess goes; None when no policy changed since everything fitted."""
        seen = self._seen.get(node)
        if seen is not None and seen.fitted_by == _version(policy):
            return None
        if seen is not None and seen.ended is not None and _version(seen.policy) == _version(policy):
            return seen.ended
        over = ended(self._policies.current, node=facts, terms=terms, instant=self._host.clock.now())
        if over is None and seen is not None:
            # Noticed just now: the earlier policy was deleted or displaced, or this one was edited.
            over = Ended(seen.policy if seen.policy.name != policy.name else policy, self._host.clock.now())
        self._seen[node] = _Seen(policy, ended=over)
        return over

    def _leased(self, node: str) -> list[LeasedPod]:
        before, now = self._pods.get(node, {}), {}
        for pod in self._host.pods.on_node(node):
            if not pod.terminating and not pod.terminal:
                spec, known = before.get(pod.metadata.uid, (b"", None))
                now[pod.metadata.uid] = (pod.spec_json, known if known is not None and spec == pod.spec_json else LeasedPod.of(pod))
        self._pods[node] = now
        return [leased for _, leased in now.values()]

    def _orders(self, policy: ResourceLeasingPolicy, since: datetime, pods: Sequence[LeasedPod], *, why: str) -> Sequence[Order]:
        verdict = reclaim(policy, since=since, instant=self._host.clock.now())
        if verdict.step is Step.NOTHING or verdict.deadline is None:
            return ()
        return [Order(pod.ref, verdict.deadline, why) for pod in pods]


def _version(policy: ResourceLeasingPolicy) -> _Version:
    return (policy.name, policy.uid, policy.generation)
