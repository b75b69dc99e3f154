"""Sums the requests of the pods on each physical node, updated pod by pod.

Invariant: the sums of a node are those of the Running and Pending pods last put under each UID, in whatever order changes arrived.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

from vkubelet.api.objects import Pod
from vkubelet.api.quantity import Quantity, Resources, add_resources, subtract_resources
from vkubelet.api.scheduling import effective_requests, reserved_spec

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
        requests = {name: amount for name, amount in effective_requests(reserved_spec(pod.spec, pod.status)).items() if amount}
        now = _Counted(pod.node, leased, add_resources(requests, _ONE_POD))
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

    def clear(self) -> None:
        """Removes all pods, before another cluster is counted."""
        self._pods.clear()
        self._sums.clear()
