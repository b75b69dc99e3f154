"""A person who does not wait: pods are created, changed, deleted and created again while the product still acts on the change before.

Invariant: at the end every pod exists, is not being deleted, and was changed last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.faults.simulation.actors import NAMESPACE, Body, ControlPlane

_ACTIONS = ("change", "change", "delete", "force")
_GRACES = (None, 1, 5)
_GAPS = (0.0, 0.001, 0.003, 0.005, 0.01, 0.03, 0.06, 0.4, 2.0)
"""Seconds between two actions: most are shorter than a request and its answer."""


async def churn(
    plane: ControlPlane, names: Sequence[str], *, actions: int, body: Callable[[str], Body], change: Callable[[str, str], None]
) -> None:
    """Acts on the pods of these names in an order that the seed decides; `change(name, value)` writes a value that the pod must get."""
    rng = plane.world.rng
    for number in range(actions):
        _act(plane, rng.choice(names), rng.choice(_ACTIONS), str(number), body=body, change=change)
        await plane.world.pause(rng.choice(_GAPS))
    for name in names:
        pod = plane.pod(name)
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            plane.create_pod(body(name))
        await plane.created(name)
    for name in names:
        change(name, "last")


def _act(
    plane: ControlPlane, name: str, action: str, value: str, *, body: Callable[[str], Body], change: Callable[[str, str], None]
) -> None:
    if plane.pod(name) is None:
        plane.attempt("person", "POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body(name))
    elif action == "change":
        change(name, value)
    else:
        plane.delete_pod(name, grace=0 if action == "force" else plane.world.rng.choice(_GRACES))
