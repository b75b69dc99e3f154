"""Decides whether a running pod gets the changed resources of its spec. Pure.

Invariant: allocated resources change only by `grant`; a resize that is not granted leaves the containers unchanged.

Source: pkg/kubelet/allocation/allocation_manager.go (KEP-1287).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from vkubelet.api.quantity import Quantity, Resources, add_resources, parse_resources
from vkubelet.api.scheduling import effective_requests
from vkubelet.api.shapes import Json, JsonView
from vkubelet.containers.life import ContainerLife, PodLife
from vkubelet.containers.plan import Kind

INFEASIBLE, DEFERRED = "Infeasible", "Deferred"
UNSUPPORTED = "the provider of this node can not change the resources of running containers"

_RESIZABLE = ("cpu", "memory")
_ZERO = Quantity()


def wishes(life: PodLife) -> Sequence[ContainerLife]:
    """Returns the containers whose desired resources differ from the allocated ones."""
    return [c for c in life.of(Kind.APP, Kind.SIDECAR) if _differs(wanted(c), c.resources)]


def wanted(container: ContainerLife) -> JsonView:
    found: JsonView = container.plan.spec.get("resources") or {}
    return found


def unfinished(life: PodLife) -> Sequence[ContainerLife]:
    """Returns running containers whose actual resources differ from the allocated ones."""
    return [c for c in life.of(Kind.APP, Kind.SIDECAR) if c.running and _differs(c.resources, c.actual)]


def judge(spec: JsonView, *, allocatable: Mapping[str, str], others: Iterable[JsonView]) -> tuple[str, str]:
    """Returns Infeasible or Deferred, and why; empty texts: it fits. `others` are the specs of the node's other pods, as allocated."""
    room, asks = parse_resources(allocatable), effective_requests(spec)
    for name in reversed(_RESIZABLE):
        if name in room and asks.get(name, _ZERO) > room[name]:
            text = f"{name}, requested: {_number(name, asks[name])}, capacity: {_number(name, room[name])}"
            return INFEASIBLE, f"Node didn't have enough capacity: {text}"
    used: Resources = {}
    for other in others:
        used = add_resources(used, effective_requests(other))
    for name in _RESIZABLE:
        ask, taken = asks.get(name, _ZERO), used.get(name, _ZERO)
        if name in room and ask and ask + taken > room[name]:
            numbers = f"requested: {_number(name, ask)}, used: {_number(name, taken)}, capacity: {_number(name, room[name])}"
            return DEFERRED, f"Node didn't have enough resource: {name}, {numbers}"
    return "", ""


def grant(life: PodLife) -> None:
    """Allocates all desired resources, and marks containers whose policy requires a restart."""
    for container in wishes(life):
        before, container.resources = container.resources, dict(wanted(container))
        container.outgrown = container.running and _needs_restart(container, before)


def granted_spec(spec: JsonView, life: PodLife | None) -> Json:
    """Returns a pod's spec with the resources that were allocated to its containers."""
    if life is None:
        return dict(spec)
    granted = {name: c.resources for name, c in life.containers.items()}
    lists = {key: [{**c, "resources": granted.get(c["name"], c.get("resources") or {})} for c in spec.get(key) or ()] for key in _LISTS}
    return {**spec, **lists}


def granted_text(life: PodLife) -> str:
    """Formats the allocated resources of the containers as a kubelet does."""
    kinds = {"initContainers": life.starters, "containers": life.of(Kind.APP)}
    parts = ("limits", "requests")
    told = {
        key: [{"name": c.plan.name, "resources": {part: c.resources[part] for part in parts if c.resources.get(part)}} for c in found]
        for key, found in kinds.items()
        if found
    }
    return json.dumps(told, separators=(",", ":"), sort_keys=False)


_LISTS = ("initContainers", "containers")


def _needs_restart(container: ContainerLife, before: JsonView) -> bool:
    policies = {each.get("resourceName"): each.get("restartPolicy") for each in container.plan.spec.get("resizePolicy") or ()}
    return any(
        policies.get(name) == "RestartContainer" and _amounts(before, name) != _amounts(container.resources, name) for name in _RESIZABLE
    )


def _differs(one: JsonView, other: JsonView) -> bool:
    return any(_amounts(one, name) != _amounts(other, name) for name in _RESIZABLE)


def _amounts(resources: JsonView, name: str) -> tuple[Quantity | None, ...]:
    found = ((resources.get(part) or {}).get(name) for part in ("requests", "limits"))
    return tuple(None if amount is None else Quantity.parse(amount) for amount in found)


def _number(name: str, amount: Quantity) -> int:
    return amount.milli() if name == "cpu" else amount.value()
