"""A worker that stays silent is given up if its binding says so: the pods are deleted at home, so that their owners make others.

Invariant: nothing is deleted because we lost our way: only a worker that was asked, and has not answered for the whole time, counts. So a
process counts from its own start, whatever an earlier one saw: nobody asked in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from attrs import frozen

from kubeocean.bottomup.binding import BindingReconciler
from kubeocean.bottomup.reclaim import Order, Reclaimer
from kubeocean.bottomup.virtual_nodes import VirtualNodes
from kubeocean.crds import FAIL_OVER, ClusterBinding
from kubeocean.worker import Reach
from vkubelet.api.objects import Pod
from vkubelet.provider import Host

_LOOK_EVERY = 1.0
_LOOK_AGAIN = 5.0
"""Seconds between two looks at all pods; one that appears on a closed node is in no hurry."""
_UNREACHABLE = "node.kubernetes.io/unreachable"


@frozen(kw_only=True)
class FailOverParts:
    """What it works with."""

    host: Host
    binding: BindingReconciler
    virtual: VirtualNodes
    reach: Reach
    reclaimer: Reclaimer


class FailOver:
    """Rule 10 of layout.md section 16, second half; deleted pods stay Terminating until the worker, which may still run them, is back."""

    def __init__(self, parts: FailOverParts) -> None:
        self._parts = parts
        self._ordered: set[str] = set()
        self._since: datetime | None = None

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            self.look()
            await self._parts.host.clock.sleep(_LOOK_AGAIN if self._ordered and self._parts.reach.lost else _LOOK_EVERY)

    def look(self) -> None:
        """Order the end of all pods as soon as the time has come, and take the order back as soon as the worker is."""
        parts, binding = self._parts, self._parts.binding.current
        if binding is None or parts.binding.ending or not is_due(binding, parts.reach):
            for node in self._ordered:
                parts.reclaimer.order(node, ())
            self._ordered.clear()
            self._since = None
            return
        if self._since is None:
            self._since = parts.host.clock.now()
            text = f"the worker cluster has not answered for {parts.reach.silent_for:.0f} s; its pods are deleted here and made elsewhere"
            parts.binding.event("FailingOver", text, warning=True)
        why = "the worker cluster does not answer, and its binding asks for failing over"
        for declared in parts.virtual:
            node = declared.description.name
            self._ordered.add(node)
            parts.reclaimer.order(node, [Order(pod.ref, self._since, why, "FailingOver") for pod in leaving(parts.host.pods.on_node(node))])


def gives_up(binding: ClusterBinding | None) -> bool:
    """The binding asks for failing over."""
    return binding is not None and binding.on_unreachable.mode == FAIL_OVER


def is_due(binding: ClusterBinding, reach: Reach) -> bool:
    """The worker, which was asked, has been silent for as long as the binding says."""
    return gives_up(binding) and reach.lost and bool(reach.error) and reach.silent_for >= binding.on_unreachable.after


def leaving(pods: Sequence[Pod]) -> list[Pod]:
    """Those that are given up: not what has ended, and not what stays on unreachable nodes for ever, as pods of DaemonSets do."""
    return [pod for pod in pods if not (pod.terminating or pod.terminal or _stays(pod))]


def _stays(pod: Pod) -> bool:
    return any(
        toleration.get("key") in (None, "", _UNREACHABLE)
        and toleration.get("effect") in (None, "", "NoExecute")
        and (toleration.get("operator") == "Exists" or not toleration.get("value"))
        and toleration.get("tolerationSeconds") is None
        and (toleration.get("key") or toleration.get("operator") == "Exists")
        for toleration in pod.spec.get("tolerations") or ()
    )
