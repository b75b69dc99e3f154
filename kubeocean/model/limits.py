"""Computes how much of the free resources of a node is leased: percentages and quantities are upper bounds.

Invariant: no result is below zero, above what was available, or finer than the API server accepts for that resource.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from vkubelet.api.quantity import ZERO, Quantity, Resources

CPU = "cpu"


@frozen
class ResourceLimit:
    """One entry of `spec.resourceLimits`; of `quantity` and `percent` the smaller bound counts, None sets none."""

    resource: str
    quantity: Quantity | None = None
    percent: int | None = None

    def bound(self, available: Quantity) -> Quantity:
        """Returns the upper bound of what is leased of `available`."""
        bounds = [available]
        if self.quantity is not None:
            bounds.append(self.quantity)
        if self.percent is not None:
            bounds.append(available.percent(self.percent))
        return min(bounds)

    def __str__(self) -> str:
        """Formatted as in the annotation policy-details: `cpu=4/80%`."""
        parts = [] if self.quantity is None else [str(self.quantity)]
        if self.percent is not None:
            parts.append(f"{self.percent}%")
        return f"{self.resource}={'/'.join(parts)}"


def left_over(allocatable: Resources, used: Resources) -> dict[str, Quantity]:
    """Returns what local pods leave free of a node's resources; never below zero."""
    return {name: whole(name, max(ZERO, amount - used.get(name, ZERO))) for name, amount in allocatable.items()}


def leased(available: Resources, limits: Iterable[ResourceLimit]) -> dict[str, Quantity]:
    """Applies all limits to `available` in order; each acts on the result of those before it, unknown resources are ignored."""
    amounts = dict(available)
    for limit in limits:
        if limit.resource in amounts:
            amounts[limit.resource] = whole(limit.resource, limit.bound(amounts[limit.resource]))
    return amounts


def whole(resource: str, amount: Quantity) -> Quantity:
    """Rounds down to what the API server accepts: thousandths of a CPU, integers of everything else."""
    return amount.floor("m" if resource == CPU else "1")
