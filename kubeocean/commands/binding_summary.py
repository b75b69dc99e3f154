"""Summarizes the status of a ClusterBinding for users who wait for it or inspect it (pure).

Invariant: a condition that was written for an older generation of the binding counts as not written yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from kubeocean.binding.conditions import CONNECTIVITY_FAILED, READY, RETIREMENT_HELD, VALIDATION_FAILED
from kubeocean.manager.binding_status import RIGHTS_MISSING
from vkubelet.api.shapes import Json, JsonView

_WANTED_FALSE = frozenset({RETIREMENT_HELD, "Stalled", "Reconciling"})
_LASTING = frozenset({VALIDATION_FAILED, CONNECTIVITY_FAILED, RIGHTS_MISSING})
"""Reasons that require action; others may be transient."""


@frozen
class Outlook:
    """Readiness and its reason; `lasting` when waiting alone will hardly fix the problem."""

    ready: bool
    text: str
    seen: bool = True
    lasting: bool = False


def outlook(body: JsonView) -> Outlook:
    """Computes the summary of a binding as returned by the API server."""
    conditions = current(body)
    ready = next((each for each in conditions if each.get("type") == READY), None)
    if ready is None:
        return Outlook(ready=False, seen=False, text="nobody has looked at the binding yet")
    if ready.get("status") == "True":
        return Outlook(ready=True, text="Ready")
    others = [each for each in wrong(conditions) if each.get("message") != ready.get("message")]
    told = "; ".join(said(each) for each in (ready, *(each for each in others if each.get("type") != READY)))
    return Outlook(ready=False, text=told, lasting=ready.get("reason") in _LASTING)


def current(body: JsonView) -> list[Json]:
    """Returns the conditions of the current generation."""
    generation = (body.get("metadata") or {}).get("generation") or 0
    conditions: Sequence[JsonView] = (body.get("status") or {}).get("conditions") or ()
    return [dict(each) for each in conditions if each.get("observedGeneration", generation) >= generation]


def wrong(conditions: Sequence[JsonView]) -> list[Json]:
    """Returns the conditions that differ from the desired status."""
    return [dict(each) for each in conditions if each.get("status") != ("False" if each.get("type") in _WANTED_FALSE else "True")]


def said(condition: JsonView) -> str:
    """Formats a condition: `Connected=False, ConnectivityFailed: the worker cluster does not answer`."""
    reason = f", {condition['reason']}" if condition.get("reason") else ""
    message = f": {condition['message']}" if condition.get("message") else ""
    return f"{condition.get('type')}={condition.get('status')}{reason}{message}"
