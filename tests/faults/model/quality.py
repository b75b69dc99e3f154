"""Quality of service class of a pod (k8s.io/kubernetes, pkg/apis/core/helper/qos).

Invariant: it is a function of the pod's spec.
"""

from __future__ import annotations

from typing import Any

from vkubelet.api.quantity import ZERO, Quantity

_COMPUTED = ("cpu", "memory")


def qos_class(spec: dict[str, Any]) -> str:
    """Returns BestEffort, Burstable or Guaranteed."""
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}
    guaranteed = True
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        for amounts, kind in ((requests, "requests"), (limits, "limits")):
            for name, text in (resources.get(kind) or {}).items():
                amount = Quantity.parse(text)
                if name in _COMPUTED and amount > ZERO:
                    amounts[name] = amounts.get(name, ZERO) + amount
        limited = {name for name, text in (resources.get("limits") or {}).items() if name in _COMPUTED and Quantity.parse(text) > ZERO}
        guaranteed = guaranteed and limited == set(_COMPUTED)
    if not requests and not limits:
        return "BestEffort"
    if guaranteed and len(requests) == len(limits) and all(requests.get(name) == amount for name, amount in limits.items()):
        return "Guaranteed"
    return "Burstable"
