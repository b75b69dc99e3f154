"""Grace period with which the physical pod of a deleted virtual pod is deleted (pure).

Invariant: grace 0 makes the worker remove the Pod object without its kubelet, while containers may still run. So it needs a forced deletion
in the hub, or a physical Node that is deleted or out of service; a grace period that has expired stays at one second.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Final

from vkubelet.api.conditions import get_condition
from vkubelet.api.objects import Node, Pod
from vkubelet.clock import parse_rfc3339

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Taint by which an administrator states that the machine of a node is shut down (KEP-2268)."""
_SILENT: Final = timedelta(seconds=60)
"""Time a physical node has to be NotReady before a forced deletion removes its pods without its kubelet (layout.md section 16, rule 5)."""


def grace_in_worker(grace: float, *, pod: Pod | None, node: Node | None, now: datetime) -> int:
    """Returns the gracePeriodSeconds for the deletion of a physical pod.

    `pod` is the virtual pod, None when the hub has deleted it; `node` is the physical node, None when the worker has deleted it.
    """
    if grace > 0:
        return max(1, math.ceil(grace))
    if node is None or is_out_of_service(node):
        return 0
    forced = pod is None or pod.metadata.deletion_grace_period_seconds == 0
    return 0 if forced and _is_silent(node, now) else 1


def is_out_of_service(node: Node) -> bool:
    """Checks for the out-of-service taint; the node also has to be NotReady, as for the worker's own garbage collection of pods."""
    return _not_ready_since(node) is not None and any(taint.get("key") == OUT_OF_SERVICE for taint in node.spec.get("taints") or ())


def _is_silent(node: Node, now: datetime) -> bool:
    since = _not_ready_since(node)
    return since is not None and now - since > _SILENT


def _not_ready_since(node: Node) -> datetime | None:
    """Returns the time since which the node is NotReady, None when it is Ready or has never reported."""
    ready = get_condition(node.status.get("conditions") or (), "Ready")
    if ready is None or ready.get("status") == "True":
        return None
    return parse_rfc3339(ready.get("lastTransitionTime") or node.metadata.creation_timestamp)
