"""The one state of a virtual node, which `kubeocean status` and the dashboard show."""

from __future__ import annotations

import pytest

from kubeocean.model import keys
from kubeocean.model.node_state import CLOSED, CORDONED, NOT_READY, OPEN, STATES, UNREACHABLE, WITHDRAWN, state_of
from tests.unit.kubeocean.builders import node

IS_READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def taint(*names: str) -> dict[str, object]:
    return {"taints": [{"key": keys.TAINT_VNODE, "effect": "NoSchedule"}, *({"key": name, "effect": "NoExecute"} for name in names)]}


@pytest.mark.parametrize(
    ("spec", "status", "state"),
    [
        ({}, IS_READY, OPEN),
        (taint(keys.TAINT_CLOSED), IS_READY, CLOSED),
        (taint(keys.TAINT_CLOSED, keys.TAINT_DELETING), IS_READY, WITHDRAWN),
        (taint(keys.TAINT_UNSCHEDULABLE), IS_READY, CORDONED),
        ({"unschedulable": True}, IS_READY, CORDONED),
        (taint(keys.TAINT_CLOSED, keys.TAINT_WORKER_UNREACHABLE), IS_READY, UNREACHABLE),
        (taint(keys.TAINT_CLOSED), {}, NOT_READY),
        (taint(keys.TAINT_WORKER_UNREACHABLE), {"conditions": [{"type": "Ready", "status": "Unknown", "message": "m"}]}, NOT_READY),
    ],
)
def test_the_state_of_a_node_follows_from_its_condition_and_taints(spec: dict[str, object], status: dict[str, object], state: str) -> None:
    assert state_of(node(spec, status=status)).name == state and state in STATES


def test_a_state_has_the_reason_that_the_node_reports() -> None:
    assert state_of(node({}, status={"conditions": [{"type": "Ready", "status": "False", "message": "gone"}]})).why == "gone"
    closed = state_of(node(taint(keys.TAINT_CLOSED), status=IS_READY))
    assert (closed.why, closed.taint) == (f"taint {keys.TAINT_CLOSED}:NoExecute", keys.TAINT_CLOSED)
    assert "no process" in state_of(node({}, status={})).why and state_of(node({}, status=IS_READY)).why == ""
