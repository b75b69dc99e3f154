"""Computes whether the process of a binding runs, and the status of the binding, as far as the manager writes it (pure).

Invariant: `Permitted`, `Guarded`, `Stalled` and `status.observedGeneration` are the manager's. The phase and the conditions that state how
the binding is served are written here only while no process of the binding writes them, so the two never overwrite one another in turns.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from attrs import frozen

from kubeocean.binding.conditions import (
    CONNECTED,
    CONNECTIVITY_FAILED,
    PROXIER_READY,
    READY,
    RIGHTS_MISSING,
    SYNCER_FAILED,
    SYNCER_READY,
    Failure,
    permitted,
)
from kubeocean.manager.workloads import CONTAINER
from vkubelet.api.objects import Json, JsonView, Pod, Unknown, get_condition, set_condition
from vkubelet.api.rbac import Check
from vkubelet.logformat import few

PERMITTED = "Permitted"
GUARDED = "Guarded"
STALLED = "Stalled"
INITIALIZING = "Initializing"
_NAMED = 12
_NOT_CHECKED = "no request was sent to the worker cluster yet"

STARTING = "SyncerStarting"
_HARMLESS = frozenset({"", "ContainerCreating", "PodInitializing"})


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
    named = few(map(str, ordered), _NAMED)
    return f"spec.secretRef: the user of the kubeconfig may not {named} in the worker cluster; grant these rights there"


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
    return {"type": kind, "status": status, "reason": reason, "message": permitted(message)}


@frozen(kw_only=True)
class ProcessHealth:
    """State of the process. `reports`: one runs that writes the binding's conditions. `failure`: why none does; None where one does."""

    exists: bool = False
    available: bool = False
    reports: bool = False
    failure: Failure | None = None


def process_health(name: str, deployment: Unknown | None, pods: Iterable[Pod]) -> ProcessHealth:
    """Computes the state from the cached Deployment of this name and its pods."""
    if deployment is None:
        return ProcessHealth(
            failure=Failure(STARTING, f"Deployment {name}: does not exist yet; the manager creates it when the checks pass")
        )
    status = deployment.body.get("status") or {}
    alive = sorted((pod for pod in pods if not (pod.terminal or pod.terminating)), key=_age)
    available = (status.get("availableReplicas") or 0) > 0
    stuck = _overdue(status)
    reports = available or not stuck and any(_container_runs(pod) for pod in alive)
    if reports:
        return ProcessHealth(exists=True, available=available, reports=True)
    return ProcessHealth(exists=True, failure=_why(name, status, alive))


def _why(name: str, status: JsonView, pods: Sequence[Pod]) -> Failure:
    for pod in pods:
        for trouble in (_waiting(pod), _unscheduled(pod)):
            if trouble:
                return Failure(SYNCER_FAILED, f"Pod {pod.metadata.name}: {trouble}")
    for condition in status.get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return Failure(SYNCER_FAILED, f"Deployment {name}: {condition.get('reason')}: {condition.get('message')}")
    if _overdue(status):
        return Failure(SYNCER_FAILED, f"Deployment {name}: no pod became ready in time; see the logs of its pods")
    return Failure(STARTING, f"Deployment {name}: waiting for its first pod")


def _overdue(status: JsonView) -> bool:
    conditions = status.get("conditions") or ()
    return any(each["type"] == "Progressing" and each.get("reason") == "ProgressDeadlineExceeded" for each in conditions)


def _containers(pod: Pod) -> Sequence[JsonView]:
    statuses: Sequence[JsonView] = pod.status.get("containerStatuses") or ()
    return [each for each in statuses if each.get("name") == CONTAINER]


def _container_runs(pod: Pod) -> bool:
    return any((each.get("state") or {}).get("running") is not None for each in _containers(pod))


def _waiting(pod: Pod) -> str:
    """Returns why the container does not start: ImagePullBackOff, CrashLoopBackOff and the like."""
    for each in _containers(pod):
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason", "") not in _HARMLESS:
            ended = ((each.get("lastState") or {}).get("terminated") or {}).get("exitCode")
            last = f", the last run ended with exit code {ended}" if ended is not None else ""
            return f"{waiting['reason']}{last}"
    return ""


def _unscheduled(pod: Pod) -> str:
    for each in pod.status.get("conditions") or ():
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return f"{each.get('reason')}: {each.get('message')}"
    return ""


def _age(pod: Pod) -> tuple[str, str]:
    return (pod.metadata.creation_timestamp, pod.metadata.name)
