"""Decides which evictions PodDisruptionBudgets forbid, as kube-apiserver does (pkg/registry/core/pod/storage/eviction.go). Pure.

Invariant: a budget counts only what its status contains, which the disruption controller of the hub writes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Self

from attrs import define, field, frozen

from vkubelet.api.objects import Pod, Unknown, get_condition
from vkubelet.api.selectors import match_label_selector

_UNPROTECTED: Final = ("Pending", "Succeeded", "Failed")


@frozen(kw_only=True)
class Budgets:
    """The budgets of leased pods at one moment."""

    of_pod: Mapping[str, str] = field(factory=dict)
    """Budget of each pod that one counts, by UID, as `namespace/name`; several, joined by a comma, forbid each eviction."""
    allowed: Mapping[str, int] = field(factory=dict)
    """Disruptions that each of them allows now."""

    @classmethod
    def of(cls, budgets: Iterable[Unknown], pods: Iterable[Pod]) -> Self:
        """Reads the budgets of these pods."""
        by_namespace: dict[str, list[Unknown]] = defaultdict(list)
        for budget in budgets:
            by_namespace[budget.metadata.namespace].append(budget)
        found = {pod.metadata.uid: _counting(by_namespace[pod.metadata.namespace], pod) for pod in pods}
        allowed = {_names(counting): _allowed(counting) for counting in found.values() if counting}
        return cls(of_pod={uid: _names(counting) for uid, counting in found.items() if counting}, allowed=allowed)

    def forbidding(self, uid: str) -> str:
        """Returns the budget that allows no eviction of a pod now; empty when there is none."""
        name = self.of_pod.get(uid, "")
        return name if name and not self.allowed[name] else ""


@define
class Disruptions:
    """The evictions at one instant: each one that is allowed leaves fewer for the other pods of its budget."""

    budgets: Budgets
    _granted: Counter[str] = field(factory=Counter)

    def blocking(self, uid: str) -> str:
        """Returns the budget that forbids the eviction of a pod; empty when it is granted, and then counted."""
        name = self.budgets.of_pod.get(uid, "")
        if not name:
            return ""
        if self._granted[name] >= self.budgets.allowed[name]:
            return name
        self._granted[name] += 1
        return ""

    def keeps(self, name: str) -> bool:
        """Checks that a budget holds its pods for as long as they may be evicted: others are replaced, and allow the next eviction."""
        return bool(name) and not self.budgets.allowed[name]


def _counting(budgets: Sequence[Unknown], pod: Pod) -> list[Unknown]:
    """Returns the budgets that are asked about the eviction of a pod: none for one that is not running, or unhealthy beyond its budget."""
    if pod.phase in _UNPROTECTED or pod.terminating:
        return []
    found = [each for each in budgets if match_label_selector(each.body["spec"].get("selector"), pod.metadata.labels)]
    return [] if len(found) == 1 and _is_unhealthy_beyond(found[0], pod) else found


def _is_unhealthy_beyond(budget: Unknown, pod: Pod) -> bool:
    """Checks that the pod is not Ready, and that its budget does not protect such pods, or enough others are healthy."""
    if (get_condition(pod.status.get("conditions") or (), "Ready") or {}).get("status") == "True":
        return False
    status, always = budget.body.get("status") or {}, budget.body["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
    return bool(always or status.get("currentHealthy", 0) >= status.get("desiredHealthy", 0) > 0)


def _allowed(budgets: Sequence[Unknown]) -> int:
    """Returns the disruptions that are allowed: none while the status is that of an earlier spec, and none by several budgets of a pod."""
    status = budgets[0].body.get("status") or {}
    current = status.get("observedGeneration", 0) >= budgets[0].body["metadata"].get("generation", 0)
    return int(status.get("disruptionsAllowed") or 0) if current and len(budgets) == 1 else 0


def _names(budgets: Sequence[Unknown]) -> str:
    return ", ".join(sorted(f"{each.metadata.namespace}/{each.metadata.name}" for each in budgets))
