"""Which amounts of a running pod have to change in the worker, and what is said at home while they can not (pure).

Invariant: the lease is the limit: a pod does not grow beyond what its virtual node offers beside its other pods, however much room the
physical node has. What waits stands on the physical pod until it was sent, so that no restart forgets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from attrs import frozen

from kubeocean.model import keys
from vkubelet.api.objects import ObjectMeta, Pod
from vkubelet.api.quantity import ZERO, Quantity, Resources, add_resources
from vkubelet.api.scheduling import effective_requests
from vkubelet.api.shapes import Json, JsonView

CONDITION: Final = "PodResizePending"
DEFERRED: Final = "Deferred"
INFEASIBLE: Final = "Infeasible"

_RESIZABLE: Final = ("cpu", "memory")


@frozen
class Room:
    """What a virtual node offers, and what its other pods request of that."""

    allocatable: Resources
    others: Resources


@frozen
class Pending:
    """Why a resize was not sent; the reasons are those of KEP-1287."""

    reason: str
    message: str

    @classmethod
    def of(cls, meta: ObjectMeta) -> Self | None:
        """What stands on a physical pod."""
        reason, _, message = meta.annotations.get(keys.RESIZE_PENDING, "").partition(": ")
        return cls(reason, message) if message else None

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    @property
    def condition(self) -> Json:
        return {"type": CONDITION, "status": "True", "reason": self.reason, "message": self.message}


def resized(wanted: JsonView, there: JsonView) -> Json:
    """The spec to send to pods/resize, empty when the physical pod has all amounts."""
    spec: Json = {}
    for kind in ("initContainers", "containers"):
        live = {container["name"]: container for container in there.get(kind) or ()}
        changed = [{"name": each["name"], "resources": change} for each in wanted.get(kind) or () if (change := _resized(each, live))]
        if changed:
            spec[kind] = changed
    return spec


def unfit(wanted: JsonView, there: JsonView, room: Room) -> Pending | None:
    """Why a pod must not grow to what is wanted; the worker's kubelet would judge by the physical node, of which a part only is leased."""
    now = effective_requests(there)
    growing = {name: amount for name, amount in effective_requests(wanted).items() if amount > now.get(name, ZERO)}
    never = sorted(name for name, amount in growing.items() if amount > room.allocatable.get(name, ZERO))
    if never:
        return Pending(INFEASIBLE, f"the virtual node does not lease so much: {', '.join(never)}")
    together = add_resources(room.others, growing)
    not_now = sorted(name for name in growing if together[name] > room.allocatable.get(name, ZERO))
    if not_now:
        return Pending(DEFERRED, f"other pods have too much of what the virtual node leases: {', '.join(not_now)}")
    return None


def noted(metadata: JsonView, physical: Pod, pending: Pending | None) -> Json:
    """The metadata of a patch, with what is to stand on the physical pod about a resize, if that is another."""
    text = str(pending) if pending is not None else ""
    if text == physical.metadata.annotations.get(keys.RESIZE_PENDING, ""):
        return dict(metadata)
    return {**metadata, "annotations": {**metadata.get("annotations", {}), keys.RESIZE_PENDING: text or None}}


def _resized(container: JsonView, live: Mapping[str, JsonView]) -> Json:
    if container["name"] not in live:
        return {}
    there: JsonView = live[container["name"]].get("resources") or {}
    change: Json = {}
    for kind in ("requests", "limits"):
        amounts: JsonView = (container.get("resources") or {}).get(kind) or {}
        have: JsonView = there.get(kind) or {}
        differing = {name: amounts[name] for name in _RESIZABLE if name in amounts and not _equal(amounts[name], have.get(name))}
        if differing:
            change[kind] = differing
    return change


def _equal(one: str | int | float, other: str | int | float | None) -> bool:
    return other is not None and Quantity.parse(one) == Quantity.parse(other)
