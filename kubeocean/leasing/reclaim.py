"""Which leased pods have to go, in which order, and how hard: pure arithmetic for `bottomup.reclaim`.

Invariant: a pod that tolerates closed nodes is never named, and no more pods are named than it takes to fit.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from datetime import datetime

from attrs import frozen

from kubeocean.crds import ResourceLeasingPolicy
from kubeocean.keys import TAINT_CLOSED
from vkubelet.api.objects import Pod, PodRef
from vkubelet.api.quantity import ZERO, Quantity, Resources, add_resources, subtract_resources
from vkubelet.api.scheduling import effective_requests


class Step(enum.Enum):
    """How pods are ended now."""

    NOTHING = "Nothing"
    EVICT = "Evict"
    """By the Eviction API, which respects PodDisruptionBudgets."""
    DELETE = "Delete"


@frozen
class Reclaim:
    """`deadline` is when evictions turn into deletions; None without reclaiming."""

    step: Step
    deadline: datetime | None = None


@frozen(kw_only=True)
class LeasedPod:
    """A virtual pod as far as reclaiming asks for it; `created` is RFC 3339 text in UTC."""

    ref: PodRef
    priority: int
    created: str
    requests: Resources
    exempt: bool

    @classmethod
    def of(cls, pod: Pod) -> LeasedPod:
        """Exempt is whose toleration names exactly the key of the taint on closed nodes (spec/kubeocean.md 3.7)."""
        spec = pod.spec
        return cls(
            ref=pod.ref,
            priority=spec.get("priority") or 0,
            created=pod.metadata.creation_timestamp,
            requests=add_resources(effective_requests(spec), {"pods": Quantity.of(1)}),
            exempt=any(toleration.get("key") == TAINT_CLOSED for toleration in spec.get("tolerations") or ()),
        )


def reclaim(policy: ResourceLeasingPolicy, *, since: datetime, instant: datetime) -> Reclaim:
    """By the rules of the policy that ended at `since`: nothing unless it forces, evictions during its grace, deletions after it."""
    if not policy.force_reclaim:
        return Reclaim(Step.NOTHING)
    deadline = since + policy.grace
    return Reclaim(Step.EVICT if instant < deadline else Step.DELETE, deadline)


def reclaim_order(pods: Iterable[LeasedPod]) -> list[LeasedPod]:
    """Lowest priority first, then youngest; exempt ones are left out."""
    youngest_first = sorted((pod for pod in pods if not pod.exempt), key=lambda pod: (pod.created, pod.ref.uid), reverse=True)
    return sorted(youngest_first, key=lambda pod: pod.priority)


def excess(pods: Iterable[LeasedPod], amounts: Resources) -> list[LeasedPod]:
    """The pods that have to go so that the others fit into `amounts`: in reclaim order, those that hold what is short."""
    everything = list(pods)
    needed: Resources = {}
    for pod in everything:
        needed = add_resources(needed, pod.requests)
    over = {name: amount - amounts.get(name, ZERO) for name, amount in needed.items() if amount > amounts.get(name, ZERO)}
    chosen = []
    for pod in reclaim_order(everything):
        if any(pod.requests.get(name) for name in over):
            chosen.append(pod)
            over = {name: amount for name, amount in subtract_resources(over, pod.requests).items() if amount > ZERO}
    return chosen
