"""Selects which leased pods are reclaimed, in which order, and how: pure arithmetic for `nodes.reclaim`.

Invariant: no pod is selected without which the others fit as well, and none that the policy lets stay outside of its windows.
"""

import enum
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, Self

from attrs import field, frozen

from kubeocean.model.crds import ResourceLeasingPolicy
from kubeocean.model.keys import TAINT_CLOSED
from vkubelet.api.compact import shared, shared_string
from vkubelet.api.objects import Pod, PodRef
from vkubelet.api.quantity import ZERO, Quantity, Resources, add_resources, shared_resources, subtract_resources, sum_resources
from vkubelet.api.scheduling import requests_of, tolerates

_CLOSED: Final = {"key": TAINT_CLOSED, "effect": "NoExecute", "value": "true"}


class Step(enum.Enum):
    """How pods are terminated now."""

    NOTHING = "Nothing"
    EVICT = "Evict"
    """By the Eviction API, which respects PodDisruptionBudgets."""
    DELETE = "Delete"


@frozen
class Reclaim:
    """How pods are reclaimed; from `deadline` on evictions become deletions, None without reclaiming."""

    step: Step
    deadline: datetime | None = None


@frozen
class Order:
    """An order to terminate this pod: by eviction from now on, by plain deletion from `until` (UTC) on."""

    pod: PodRef
    until: datetime
    why: str
    reason: str = "Reclaiming"
    """Reason of the Event on the pod."""


@frozen(kw_only=True)
class ReclaimRules:
    """How a policy reclaims leased capacity; kept beside the policy, which may be deleted before its pods are."""

    force: bool = False
    grace: timedelta = timedelta()
    allow_out_of_window_pods: bool = False

    @classmethod
    def of(cls, policy: ResourceLeasingPolicy) -> Self:
        return cls(force=policy.force_reclaim, grace=policy.grace, allow_out_of_window_pods=policy.allow_out_of_window_pods)


@frozen(kw_only=True)
class LeasedPod:
    """The properties of a virtual pod that reclaiming needs; `created` is RFC 3339 text in UTC."""

    ref: PodRef
    priority: int
    created: str
    requests: Resources
    tolerates_closed: bool = False
    made_of: int = field(default=0, eq=False)
    """Hash of the spec that it was read from."""

    @classmethod
    def of(cls, pod: Pod) -> Self:
        """Reads the pod. Only a toleration without a limit counts: with `tolerationSeconds` the hub's taint eviction deletes it too."""
        spec = pod.spec
        endless = [each for each in spec.get("tolerations") or () if each.get("tolerationSeconds") is None]
        return cls(
            ref=shared(pod.ref),
            priority=spec.get("priority") or 0,
            created=shared_string(pod.metadata.creation_timestamp),
            requests=shared_resources(add_resources(requests_of(pod.spec_json), {"pods": Quantity.of(1)})),
            tolerates_closed=tolerates(endless, _CLOSED),
            made_of=pod.spec_hash,
        )


def reclaim(rules: ReclaimRules, *, since: datetime, instant: datetime) -> Reclaim:
    """Returns the step by the rules of the policy that applied until `since`: none unless forced, eviction in its grace, then deletion."""
    if not rules.force:
        return Reclaim(Step.NOTHING)
    deadline = since + rules.grace
    return Reclaim(Step.EVICT if instant < deadline else Step.DELETE, deadline)


def reclaim_order(pods: Iterable[LeasedPod], rules: ReclaimRules) -> list[LeasedPod]:
    """Returns the pods, lowest priority first, then youngest; without those that the rules let stay outside of the windows."""
    taken = [pod for pod in pods if not (rules.allow_out_of_window_pods and pod.tolerates_closed)]
    youngest_first = sorted(taken, key=lambda pod: (pod.created, pod.ref.uid), reverse=True)
    return sorted(youngest_first, key=lambda pod: pod.priority)


def shortage(pods: Iterable[LeasedPod], amounts: Resources) -> Resources:
    """Returns by how much the requests of all pods exceed `amounts`; empty when the pods fit."""
    needed = sum_resources(pod.requests for pod in pods)
    return {name: amount - amounts.get(name, ZERO) for name, amount in needed.items() if amount > amounts.get(name, ZERO)}


def excess(pods: Iterable[LeasedPod], amounts: Resources, rules: ReclaimRules) -> list[LeasedPod]:
    """Selects the pods to terminate so that the others fit into `amounts`: in reclaim order, then the last ones are spared if possible."""
    everything = list(pods)
    over = left = shortage(everything, amounts)
    chosen = []
    for pod in reclaim_order(everything, rules):
        if any(pod.requests.get(name) for name in left):
            chosen.append(pod)
            left = {name: amount for name, amount in subtract_resources(left, pod.requests).items() if amount > ZERO}
    return _without_spared(chosen, over)


def _without_spared(chosen: Sequence[LeasedPod], over: Resources) -> list[LeasedPod]:
    """Spares pods as the scheduler reprieves victims of a preemption: the most valuable first, if the others free enough without it."""
    freed = sum_resources(pod.requests for pod in chosen)
    needed = {name: min(amount, freed.get(name, ZERO)) for name, amount in over.items()}
    spared = set()
    for pod in reversed(chosen):
        without = subtract_resources(freed, pod.requests)
        if all(without.get(name, ZERO) >= amount for name, amount in needed.items()):
            freed = without
            spared.add(pod.ref.uid)
    return [pod for pod in chosen if pod.ref.uid not in spared]
