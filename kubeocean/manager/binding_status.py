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
from vkubelet.api.conditions import get_condition, set_condition
from vkubelet.api.shapes import Json, JsonView

PERMITTED = "Permitted"
GUARDED = "Guarded"
STALLED = "Stalled"
RIGHTS_MISSING = "RightsMissing"
INITIALIZING = "Initializing"
_NAMED = 12
_NOT_ASKED = "the worker cluster was not asked yet"


@frozen(kw_only=True)
class View:
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
    return f"spec.secretRef: in the worker cluster the kubeconfig's user may not {named}{more}; grant it there"


def unguarded_text(gains: Sequence[str]) -> str:
    """Describes what the worker's owner should close, and how."""
    remedy = "install the admission policies of the chart kubeocean-worker there, and set a Pod Security level on the mount namespace"
    return f"in the worker cluster, the identity of this binding can {'; '.join(gains)}; {remedy}"


def first_status(*, generation: int, now: datetime) -> Json:
    """Returns the status patch of a binding that has not been checked yet."""
    ready = _condition(READY, "False", INITIALIZING, "the binding is being checked")
    return {"status": {"phase": "Pending", "conditions": set_condition([], {**ready, "observedGeneration": generation}, now=now)}}


def status_patch(status: JsonView, view: View, *, generation: int, now: datetime, serving: bool) -> Json | None:
    """Returns the merge patch to the desired status, None when nothing differs; `serving`: also phase and the process's conditions."""
    before: Sequence[JsonView] = status.get("conditions") or ()
    after: list[Json] = [dict(condition) for condition in before]
    wanted = _own(view, before) + (_served(view) if serving else [])
    for condition in wanted:
        after = set_condition(after, {**condition, "observedGeneration": generation}, now=now)
    change: Json = {"observedGeneration": generation, "conditions": after}
    if serving:
        change["phase"] = _phase(view)
    changed = {key: value for key, value in change.items() if value != status.get(key)}
    return {"status": changed} if changed else None


def _own(view: View, before: Sequence[JsonView]) -> list[Json]:
    out = []
    if view.missing:
        out.append(_condition(PERMITTED, "False", RIGHTS_MISSING, rights_text(view.missing)))
    elif view.missing is not None:
        out.append(_condition(PERMITTED, "True", "RightsGranted", "the kubeconfig's user may do all that is needed"))
    elif get_condition(before, PERMITTED) is None:
        out.append(_condition(PERMITTED, "Unknown", INITIALIZING, _NOT_ASKED))
    if view.unguarded:
        out.append(_condition(GUARDED, "False", "NotRefused", unguarded_text(view.unguarded)))
    elif view.unguarded is not None:
        out.append(_condition(GUARDED, "True", "Refused", "the worker cluster refuses what the lease does not include"))
    if view.problem is not None and view.problem.reason != CONNECTIVITY_FAILED:
        out.append(_condition(STALLED, "True", view.problem.reason, view.problem.message))
    elif get_condition(before, STALLED) is not None:
        out.append(_condition(STALLED, "False", "Progressing", "nothing that a person has to mend is known"))
    return out


def _served(view: View) -> list[Json]:
    absent = view.syncer or Failure(STARTING, "the process of the binding starts")
    problem = view.problem or absent
    out = [_condition(READY, "False", problem.reason, problem.message), _connected(view)]
    return out + [_condition(kind, "False", absent.reason, absent.message) for kind in (SYNCER_READY, PROXIER_READY)]


def _connected(view: View) -> Json:
    if view.connected:
        return _condition(CONNECTED, "True", "ConnectivityPassed", "the worker cluster answers")
    problem = view.problem
    if view.connected is None or problem is None:
        return _condition(CONNECTED, "Unknown", INITIALIZING, _NOT_ASKED)
    return _condition(CONNECTED, "False", CONNECTIVITY_FAILED, problem.message)


def _phase(view: View) -> str:
    if view.problem is not None:
        return "Failed"
    return "Pending" if view.syncer is None or view.syncer.reason == STARTING else "Failed"


def _condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message}
