"""Computes the status of a binding, as far as the manager writes it (pure).

Invariant: `Permitted`, `Guarded`, `Stalled` and `status.observedGeneration` are the manager's. The phase and the conditions that state how
the binding is served are written here only while no process of the binding writes them, so the two never overwrite one another in turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from attrs import frozen

from kubeocean.binding.conditions import CONNECTED, CONNECTIVITY_FAILED, PROXIER_READY, READY, SYNCER_READY, Failure
from kubeocean.manager.deployment_health import STARTING
from kubeocean.rbac.rules import Check
from vkubelet.api.shapes import Json, JsonView, get_condition, set_condition

PERMITTED = "Permitted"
GUARDED = "Guarded"
STALLED = "Stalled"
RIGHTS_MISSING = "RightsMissing"
INITIALIZING = "Initializing"
_NAMED = 12
_NOT_CHECKED = "no request was sent to the worker cluster yet"


@frozen(kw_only=True)
class ObservedBinding:
    """The binding as observed by the manager. `missing` None: the worker could not be queried for our rights."""

    problem: Failure | None = None
    connected: bool | None = None
    missing: Sequence[Check] | None = None
    unguarded: Sequence[str] | None = None
    """What the hub could do in the worker beyond its lease; None: not tried."""
    syncer: Failure | None = None
    """Why no process serves the binding; None where a process reports for itself."""


def rights_text(missing: Sequence[Check]) -> str:
    """Lists the rights by name, the essential ones first."""
    ordered = sorted(missing, key=lambda check: not check.essential)
    named = ", ".join(str(check) for check in ordered[:_NAMED])
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return f"spec.secretRef: the user of the kubeconfig may not {named}{more} in the worker cluster; grant these rights there"


def unguarded_text(gains: Sequence[str]) -> str:
    """Describes what the worker's owner should close, and how."""
    remedy = "install the admission policies of the chart kubeocean-worker there, and label the mount namespace with a Pod Security level"
    return f"spec.secretRef: the user of the kubeconfig can {'; '.join(gains)} in the worker cluster; {remedy}"


def first_status(*, generation: int, now: datetime) -> Json:
    """Returns the status patch of a binding that has not been checked yet."""
    ready = _condition(READY, "False", INITIALIZING, "the manager checks the spec and the worker cluster")
    return {"status": {"phase": "Pending", "conditions": set_condition([], {**ready, "observedGeneration": generation}, now=now)}}


def status_patch(status: JsonView, view: ObservedBinding, *, generation: int, now: datetime, serving: bool) -> Json | None:
    """Returns the merge patch to the desired status, None when nothing differs; `serving`: also phase and the process's conditions."""
    before: Sequence[JsonView] = status.get("conditions") or ()
    after: list[Json] = [dict(condition) for condition in before]
    wanted = _manager_conditions(view, before) + (_serving_conditions(view) if serving else [])
    for condition in wanted:
        after = set_condition(after, {**condition, "observedGeneration": generation}, now=now)
    change: Json = {"observedGeneration": generation, "conditions": after}
    if serving:
        change["phase"] = _phase(view)
    changed = {key: value for key, value in change.items() if value != status.get(key)}
    return {"status": changed} if changed else None


def _manager_conditions(view: ObservedBinding, before: Sequence[JsonView]) -> list[Json]:
    out = []
    if view.missing:
        out.append(_condition(PERMITTED, "False", RIGHTS_MISSING, rights_text(view.missing)))
    elif view.missing is not None:
        out.append(
            _condition(PERMITTED, "True", "RightsGranted", "the worker cluster grants the user of the kubeconfig all required rights")
        )
    elif get_condition(before, PERMITTED) is None:
        out.append(_condition(PERMITTED, "Unknown", INITIALIZING, _NOT_CHECKED))
    if view.unguarded:
        out.append(_condition(GUARDED, "False", "NotRefused", unguarded_text(view.unguarded)))
    elif view.unguarded is not None:
        out.append(_condition(GUARDED, "True", "Refused", "the guards of the worker cluster refuse requests beyond the lease"))
    if view.problem is not None and view.problem.reason != CONNECTIVITY_FAILED:
        out.append(_condition(STALLED, "True", view.problem.reason, view.problem.message))
    elif get_condition(before, STALLED) is not None:
        out.append(_condition(STALLED, "False", "Progressing", "no problem is known that needs a manual fix"))
    return out


def _serving_conditions(view: ObservedBinding) -> list[Json]:
    absent = view.syncer or Failure(STARTING, "the process of the binding is starting")
    problem = view.problem or absent
    out = [_condition(READY, "False", problem.reason, problem.message), _connected(view)]
    return out + [_condition(kind, "False", absent.reason, absent.message) for kind in (SYNCER_READY, PROXIER_READY)]


def _connected(view: ObservedBinding) -> Json:
    if view.connected:
        return _condition(CONNECTED, "True", "ConnectivityPassed", "the API server of the worker cluster responds")
    problem = view.problem
    if view.connected is None or problem is None:
        return _condition(CONNECTED, "Unknown", INITIALIZING, _NOT_CHECKED)
    return _condition(CONNECTED, "False", CONNECTIVITY_FAILED, problem.message)


def _phase(view: ObservedBinding) -> str:
    if view.problem is not None:
        return "Failed"
    return "Pending" if view.syncer is None or view.syncer.reason == STARTING else "Failed"


def _condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message}
