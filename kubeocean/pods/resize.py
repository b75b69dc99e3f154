"""Resizes of running pods: the amounts to change in the worker, and the condition in the hub while they cannot change (pure).

Invariant: the lease is the limit: a pod does not grow beyond what its virtual node offers beside its other pods, however much room the
physical node has. A pending resize is recorded on the physical pod until it was sent, so that it survives restarts.
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
    """Allocatable amounts of a virtual node, and the requests of its other pods."""

    allocatable: Resources
    others: Resources


@frozen
class Pending:
    """Reason and message of a resize that was not sent; the reasons are those of KEP-1287."""

    reason: str
    message: str

    @classmethod
    def of(cls, meta: ObjectMeta) -> Self | None:
        """Reads the record on a physical pod, None when there is none."""
        reason, _, message = meta.annotations.get(keys.RESIZE_PENDING, "").partition(": ")
        return cls(reason, message) if message else None

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    @property
    def condition(self) -> Json:
        return {"type": CONDITION, "status": "True", "reason": self.reason, "message": self.message}


def resized(wanted: JsonView, there: JsonView) -> Json:
    """Returns the spec to send to pods/resize, empty when the physical pod has all amounts."""
    spec: Json = {}
    for kind in ("initContainers", "containers"):
        live = {container["name"]: container for container in there.get(kind) or ()}
        changed = [{"name": each["name"], "resources": change} for each in wanted.get(kind) or () if (change := _resized(each, live))]
        if changed:
            spec[kind] = changed
    return spec


def unfit(wanted: JsonView, there: JsonView, room: Room) -> Pending | None:
    """Returns why a pod must not grow to the desired amounts.

    The worker's kubelet would decide by the physical node, of which only a part is leased.
    """
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
    """Returns the metadata of a patch, with the record of a pending resize added or removed if it differs from the physical pod's."""
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
