"""Checks evictions against PodDisruptionBudgets as kube-apiserver does (pkg/registry/core/pod/storage/eviction.go).

Invariant: a budget counts only what its status says, which a disruption controller writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from tests.faults.model.refusals import Cause, Refusal
from tests.faults.model.request import timestamp
from tests.faults.model.selectors import selector

Body = dict[str, Any]

_VIOLATED: Final = "Cannot evict pod as it would violate the pod's disruption budget."
_UNPROTECTED: Final = ("Pending", "Succeeded", "Failed")
_OPERATORS: Final = {"In": "{} in ({})", "NotIn": "{} notin ({})", "Exists": "{}", "DoesNotExist": "!{}"}


def spent(pod: Body, budgets: Sequence[Body], *, now: datetime) -> Body | None:
    """Returns the changed budget of a pod that may be evicted, None when no budget counts it. Raises Refusal."""
    if pod["status"].get("phase") in _UNPROTECTED or pod["metadata"].get("deletionTimestamp"):
        return None
    found = [budget for budget in budgets if _selects(budget["spec"].get("selector"), pod)]
    if len(found) > 1:
        text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise Refusal(code=500, reason="InternalError", message=text)
    if not found or _is_unhealthy_beyond(pod, found[0]):
        return None
    return _decremented(found[0], pod["metadata"]["name"], now)


def _is_unhealthy_beyond(pod: Body, budget: Body) -> bool:
    """Whether the pod is not healthy itself, and enough others are."""
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions") or ())
    status, always = budget.get("status") or {}, budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
    desired = status.get("desiredHealthy", 0)
    return not ready and (always or (status.get("currentHealthy", 0) >= desired > 0))


def _decremented(budget: Body, pod: str, now: datetime) -> Body:
    status, name = dict(budget.get("status") or {}), budget["metadata"]["name"]
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _refused(f"The disruption budget {name} is still being processed by the server.", retry_after=10)
    if not status.get("disruptionsAllowed"):
        needed, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        raise _refused(f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently")
    status["disruptionsAllowed"] -= 1
    status["disruptedPods"] = {**status.get("disruptedPods", {}), pod: timestamp(now)}
    return {**budget, "metadata": dict(budget["metadata"]), "status": status}


def _refused(why: str, *, retry_after: int = 0) -> Refusal:
    cause = Cause(field="", message=why, reason="DisruptionBudget")
    return Refusal(code=429, reason="TooManyRequests", message=_VIOLATED, causes=[cause], retry_after=retry_after)


def _selects(wanted: Body | None, pod: Body) -> bool:
    if wanted is None:
        return False
    parts = [f"{key}={value}" for key, value in (wanted.get("matchLabels") or {}).items()]
    parts += [
        _OPERATORS[each["operator"]].format(each["key"], ",".join(each.get("values") or ()))
        for each in wanted.get("matchExpressions") or ()
    ]
    check = selector(",".join(parts), "", "Pod")
    return check is None or check(pod)
