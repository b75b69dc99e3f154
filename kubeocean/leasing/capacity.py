"""Capacity of the physical nodes: the requests of their pods, what these leave free, and how much of that the limits of a policy lease.

Invariant: the sums of a node are those of the Running and Pending pods last put under each UID, in whatever order changes arrived. Nothing
that is leased is below zero, above what is free, or finer than the API server accepts for that resource.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from attrs import frozen

from kubeocean.model.crds import ResourceLimit
from vkubelet.api.objects import Pod
from vkubelet.api.quantity import ZERO, Quantity, Resources, add_resources, shared_resources, subtract_resources
from vkubelet.api.scheduling import effective_requests, is_resized, requests_of, reserved_spec

CPU: Final = "cpu"
_COUNTED: Final = frozenset({"Running", "Pending", ""})
_ONE_POD: Final = {"pods": Quantity.of(1)}


@frozen
class _Counted:
    node: str
    leased: bool
    requests: Resources


class Usage:
    """Sums of requests per node, separately for local pods and for pods leased by this binding."""

    def __init__(self) -> None:
        self._pods: dict[str, _Counted] = {}
        self._sums: dict[tuple[str, bool], dict[str, Quantity]] = {}

    def put(self, pod: Pod, *, leased: bool) -> frozenset[str]:
        """Counts a pod in its current state in place of its UID's previous one; returns the nodes whose sums changed."""
        before = self._pods.get(pod.metadata.uid)
        if not pod.node or pod.phase not in _COUNTED:
            return self.remove(pod.metadata.uid)
        now = _Counted(pod.node, leased, requested(pod))
        if before == now:
            return frozenset()
        changed = self.remove(pod.metadata.uid)
        self._pods[pod.metadata.uid] = now
        self._sums[now.node, leased] = add_resources(self._sums.get((now.node, leased), {}), now.requests)
        return changed | {now.node}

    def remove(self, uid: str) -> frozenset[str]:
        """Removes a pod; returns the node whose sums changed, or none."""
        before = self._pods.pop(uid, None)
        if before is None:
            return frozenset()
        slot = before.node, before.leased
        rest = {name: amount for name, amount in subtract_resources(self._sums[slot], before.requests).items() if amount}
        if rest:
            self._sums[slot] = rest
        else:
            del self._sums[slot]
        return frozenset({before.node})

    def local(self, node: str) -> Resources:
        """Returns the requests of pods that are not leased by this binding; "pods" counts them."""
        return self._sums.get((node, False), {})

    def leased(self, node: str) -> Resources:
        """Returns the requests of pods leased by this binding; "pods" counts them."""
        return self._sums.get((node, True), {})


def requested(pod: Pod) -> Resources:
    """Returns what a pod requests, as the scheduler counts it; "pods" counts the pod itself."""
    amounts = requests_of(pod.spec_json) if not is_resized(pod.status_json) else effective_requests(reserved_spec(pod.spec, pod.status))
    return shared_resources(add_resources({name: amount for name, amount in amounts.items() if amount}, _ONE_POD))


def left_over(allocatable: Resources, used: Resources) -> dict[str, Quantity]:
    """Returns what local pods leave free of a node's resources; never below zero."""
    return {name: whole(name, max(ZERO, amount - used.get(name, ZERO))) for name, amount in allocatable.items()}


def leased(available: Resources, limits: Iterable[ResourceLimit]) -> dict[str, Quantity]:
    """Applies all limits to `available` in order; each acts on the result of those before it, unknown resources are ignored."""
    return {**available, **{limit.resource: amount for limit, amount in bounded(available, limits)}}


def bounded(available: Resources, limits: Iterable[ResourceLimit]) -> Iterator[tuple[ResourceLimit, Quantity]]:
    """Yields each limit of an available resource, in order, with the amount that it leaves of that resource."""
    amounts = dict(available)
    for limit in limits:
        if limit.resource in amounts:
            amounts[limit.resource] = whole(limit.resource, limit.bound(amounts[limit.resource]))
            yield limit, amounts[limit.resource]


def whole(resource: str, amount: Quantity) -> Quantity:
    """Rounds down to what the API server accepts: thousandths of a CPU, integers of everything else."""
    return amount.floor("m" if resource == CPU else "1")
