"""Decides whether a running pod gets the changed resources of its spec. Pure.

Invariant: allocated resources change only by `grant`; a resize that is not granted leaves the containers unchanged.

Source: pkg/kubelet/allocation/allocation_manager.go (KEP-1287).
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence

from vkubelet.api.objects import PODS, Json, JsonView, Pod
from vkubelet.api.podspec import PLANNED_CONTAINERS
from vkubelet.api.quantity import Quantity, parse_resources, sum_resources
from vkubelet.api.scheduling import effective_requests
from vkubelet.containers.managed import ManagedContainer, ManagedPod, Resize
from vkubelet.containers.plan import ContainerKind
from vkubelet.control.recorder import ObjectReference
from vkubelet.provider import ContainerProvider, Host, NodeDescription, SupportsResize

INFEASIBLE, DEFERRED = "Infeasible", "Deferred"
UNSUPPORTED = "the provider of this node does not support changing the resources of running containers; recreate the pod"

_RESIZABLE = ("cpu", "memory")
_ZERO = Quantity()
AGAIN = 60.0
"""Seconds between two checks of a deferred resize, if no pod of the node is removed before."""
_EVENTS = {INFEASIBLE: "ResizeInfeasible", DEFERRED: "ResizeDeferred"}


def wishes(managed: ManagedPod) -> Sequence[ManagedContainer]:
    """Returns the containers whose desired resources differ from the allocated ones."""
    return [c for c in managed.of(ContainerKind.APP, ContainerKind.SIDECAR) if _differs(wanted(c), c.resources)]


def wanted(container: ManagedContainer) -> JsonView:
    found: JsonView = container.plan.spec.get("resources") or {}
    return found


def unfinished(managed: ManagedPod) -> Sequence[ManagedContainer]:
    """Returns running containers whose actual resources differ from the allocated ones."""
    return [c for c in managed.of(ContainerKind.APP, ContainerKind.SIDECAR) if c.running and _differs(c.resources, c.actual)]


def judge(spec: JsonView, *, allocatable: Mapping[str, str], others: Iterable[JsonView]) -> tuple[str, str]:
    """Returns Infeasible or Deferred, and why; empty texts: it fits. `others` are the specs of the node's other pods, as allocated."""
    room, asks = parse_resources(allocatable), effective_requests(spec)
    for name in reversed(_RESIZABLE):
        if name in room and asks.get(name, _ZERO) > room[name]:
            text = f"{name}, requested: {_number(name, asks[name])}, capacity: {_number(name, room[name])}"
            return INFEASIBLE, f"Node didn't have enough capacity: {text}"
    used = sum_resources(map(effective_requests, others))
    for name in _RESIZABLE:
        ask, taken = asks.get(name, _ZERO), used.get(name, _ZERO)
        if name in room and ask and ask + taken > room[name]:
            numbers = f"requested: {_number(name, ask)}, used: {_number(name, taken)}, capacity: {_number(name, room[name])}"
            return DEFERRED, f"Node didn't have enough resource: {name}, {numbers}"
    return "", ""


def grant(managed: ManagedPod) -> None:
    """Allocates all desired resources, and marks containers whose policy requires a restart."""
    for container in wishes(managed):
        before, container.resources = container.resources, dict(wanted(container))
        container.needs_resize_restart = container.running and _needs_restart(container, before)


def granted_spec(spec: JsonView, managed: ManagedPod | None) -> Json:
    """Returns a pod's spec with the resources that were allocated to its containers."""
    if managed is None:
        return dict(spec)
    granted = {name: c.resources for name, c in managed.containers.items()}
    lists = {
        key: [{**c, "resources": granted.get(c["name"], c.get("resources") or {})} for c in spec.get(key) or ()]
        for key in PLANNED_CONTAINERS
    }
    return {**spec, **lists}


def granted_text(managed: ManagedPod) -> str:
    """Formats the allocated resources of the containers as a kubelet does."""
    kinds = {"initContainers": managed.init_containers, "containers": managed.of(ContainerKind.APP)}
    parts = ("limits", "requests")
    reported = {
        key: [{"name": c.plan.name, "resources": {part: c.resources[part] for part in parts if c.resources.get(part)}} for c in found]
        for key, found in kinds.items()
        if found
    }
    return json.dumps(reported, separators=(",", ":"), sort_keys=False)


def _needs_restart(container: ManagedContainer, before: JsonView) -> bool:
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


class Resizer:
    """Resizer of all pods; `managed_pods` are all pods of the provider, `nodes` the descriptions of its nodes."""

    def __init__(
        self, provider: ContainerProvider, host: Host, *, managed_pods: Mapping[str, ManagedPod], nodes: Mapping[str, NodeDescription]
    ) -> None:
        self._can = isinstance(provider, SupportsResize)
        self._host = host
        self._managed = managed_pods
        self._nodes = nodes
        self._checked_at: dict[str, float] = {}

    def check(self, managed: ManagedPod, pod: Pod) -> None:
        """Judges the desired resources of the current spec."""
        if not wishes(managed):
            self._checked_at.pop(managed.ref.uid, None)
            if managed.resize.pending:
                managed.resize = Resize(running=managed.resize.running)
            return
        if managed.termination is not None:
            return
        self._checked_at[managed.ref.uid] = self._host.clock.monotonic()
        reason, message = self._judge(pod) if self._can else (INFEASIBLE, UNSUPPORTED)
        if not reason:
            grant(managed)
            managed.resize = Resize(running=bool(unfinished(managed)))
            return
        if (reason, message) != (managed.resize.pending, managed.resize.message):
            self._host.events.event(ObjectReference.of(PODS, pod), _EVENTS[reason], message, warning=True)
        managed.resize = Resize(pending=reason, message=message, running=managed.resize.running)

    def follow(self, managed: ManagedPod) -> bool:
        """Checks whether allocated resources still have to be applied; reports their completion."""
        left = unfinished(managed)
        if not left and managed.resize.running:
            managed.resize = Resize(pending=managed.resize.pending, message=managed.resize.message if managed.resize.pending else "")
            pod = self._host.pods.get(managed.ref)
            if pod is not None:
                self._host.events.event(ObjectReference.of(PODS, pod), "ResizeCompleted", f"Pod resize completed: {granted_text(managed)}")
        return self._can and any(not c.needs_resize_restart for c in left) and not managed.resize.failed

    def next_check(self, managed: ManagedPod, pod: Pod | None, now: float) -> float:
        """Returns when to check a deferred resize again (monotonic seconds); checks it if that is due."""
        if managed.resize.pending != DEFERRED or pod is None:
            return math.inf
        due = self._checked_at.get(managed.ref.uid, now) + AGAIN
        if now >= due:
            self.check(managed, pod)
            return now
        return due

    def _judge(self, pod: Pod) -> tuple[str, str]:
        node = self._nodes.get(pod.node)
        if node is None:
            return DEFERRED, "the provider has not declared the node"
        others = (other for other in self._host.pods.on_node(pod.node) if other.metadata.uid != pod.metadata.uid and not other.terminal)
        specs = [granted_spec(other.spec, self._managed.get(other.metadata.uid)) for other in others]
        return judge(pod.spec, allocatable=node.allocatable or node.capacity, others=specs)
