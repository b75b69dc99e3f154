"""Decides which pods have to leave a node of the hub, and by when: it is closed, or a policy expired or shrank. Pure.

Invariant: pods leave only by the rules of a policy that stopped applying or shrank. Growing local use alone terminates no pod, and neither
does a restart: whether all pods have fitted is read from the record on the Node.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from attrs import evolve, frozen

from kubeocean.leasing.capacity import leased
from kubeocean.leasing.policy import Decision, Ended
from kubeocean.leasing.reclaim import LeasedPod, Order, ReclaimRules, Step, excess, reclaim, reclaim_order, shortage
from kubeocean.leasing.record import LeaseRecord, PolicyEnd, PolicyVersion
from kubeocean.model.crds import ResourceLeasingPolicy
from vkubelet.api.quantity import ZERO


@frozen
class ReclaimPlan:
    """The desired record of a node, and the orders for its pods."""

    record: LeaseRecord
    orders: Sequence[Order] = ()


LastEnded = Callable[[], Ended | None]
"""Returns the policy whose lease of the node expired last by the clock, see `leasing.policy.ended`."""


def reclaim_plan(
    decision: Decision, pods: Sequence[LeasedPod], *, record: LeaseRecord | None, last_ended: LastEnded, now: datetime
) -> ReclaimPlan | None:
    """Decides for a declared node with its current record and leased pods; None when no policy decides about it."""
    policy = decision.deciding
    if policy is None:
        return None
    known = record or LeaseRecord.fitting(policy)
    if not decision.open:
        rules = ReclaimRules.of(policy)
        why = f"the time window of ResourceLeasingPolicy {policy.name} has ended"
        orders = _orders(rules, decision.closed_since or now, reclaim_order(pods, rules), now=now, why=why)
        return ReclaimPlan(known.decided(policy), orders)
    short = shortage(pods, decision.amounts)
    if known.fitted == PolicyVersion.of(policy) or not short or not _shrank(known, decision, short):
        return ReclaimPlan(LeaseRecord.fitting(policy))
    end = _end(known, policy, last_ended=last_ended, now=now)
    why = f"ResourceLeasingPolicy {end.policy} ended or shrank, and the node offers less than its pods request"
    orders = _orders(end.rules, end.at, excess(pods, decision.amounts, end.rules), now=now, why=why)
    return ReclaimPlan(known.decided(policy, ended=end), orders)


def _shrank(known: LeaseRecord, decision: Decision, resources: Iterable[str]) -> bool:
    """Checks whether less of one of these resources is leased than the policy under which the pods fitted would lease now, with the same
    local use. An edit of another field, or a policy that leases more, did not cause an excess. True for a record without limits."""
    if known.limits is None:
        return True
    before = leased(decision.available, known.limits)
    return any(decision.amounts.get(name, ZERO) < before.get(name, ZERO) for name in resources)


def _end(known: LeaseRecord, policy: ResourceLeasingPolicy, *, last_ended: LastEnded, now: datetime) -> PolicyEnd:
    """Finds which PolicyEnd caused the excess. By the clock only if that policy decided last: an older hand-over is not the cause."""
    if known.ended is not None and known.decided_by == PolicyVersion.of(policy):
        # Not later than now, should the clock have been set back.
        return evolve(known.ended, at=min(known.ended.at, now))
    over = last_ended()
    if over is not None and PolicyVersion.of(over.policy) == known.decided_by:
        return PolicyEnd(over.policy.name, ReclaimRules.of(over.policy), over.at)
    # Observed just now: the earlier policy was deleted or displaced, or this one was edited.
    rules = ReclaimRules.of(policy) if known.decided_by.name == policy.name else known.rules
    return PolicyEnd(known.decided_by.name, rules, now)


def _orders(rules: ReclaimRules, since: datetime, pods: Sequence[LeasedPod], *, now: datetime, why: str) -> Sequence[Order]:
    verdict = reclaim(rules, since=since, instant=now)
    if verdict.step is Step.NOTHING or verdict.deadline is None:
        return ()
    return [Order(pod.ref, verdict.deadline, why) for pod in pods]
