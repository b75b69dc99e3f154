"""States of virtual nodes as `kubeocean status` and the dashboard name them, from the Node object alone (pure).

Invariant: every Node has exactly one state, and each place that shows it takes it from here. A Node that is not Ready is NotReady whatever
its taints are: they are of a process that may not run any more.
"""

from typing import Final

from attrs import frozen

from kubeocean.model import keys
from vkubelet.api.objects import Node, get_condition

OPEN, CLOSED, NOT_READY, UNREACHABLE, CORDONED, WITHDRAWN = "Open", "Closed", "NotReady", "Unreachable", "Cordoned", "Withdrawn"
STATES: Final = (OPEN, CLOSED, CORDONED, WITHDRAWN, UNREACHABLE, NOT_READY)
"""All states, in the order in which they are shown."""
_BY_TAINT: Final = {
    keys.TAINT_DELETING: WITHDRAWN,
    keys.TAINT_WORKER_UNREACHABLE: UNREACHABLE,
    keys.TAINT_CLOSED: CLOSED,
    keys.TAINT_UNSCHEDULABLE: CORDONED,
    "node.kubernetes.io/unschedulable": CORDONED,
}


@frozen
class State:
    """A state, and the reason that a condition or a taint of the Node reports; `taint` is the key of that taint."""

    name: str
    why: str = ""
    taint: str = ""


def state_of(node: Node) -> State:
    """Returns the state of a virtual node."""
    ready = get_condition(node.status.get("conditions") or (), "Ready") or {}
    if ready.get("status") != "True":
        return State(NOT_READY, str(ready.get("message") or ready.get("reason") or "no process reports its condition Ready"))
    taints = {str(taint.get("key")): taint for taint in node.spec.get("taints") or ()}
    for key, name in _BY_TAINT.items():
        if key in taints:
            why = str(ready.get("message") or "") if name == UNREACHABLE else f"taint {key}:{taints[key].get('effect', '')}"
            return State(name, why, key)
    # The controller of nodes adds the taint a moment later.
    return State(CORDONED, "spec.unschedulable is true") if node.spec.get("unschedulable") else State(OPEN)
