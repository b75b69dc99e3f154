"""Computes whether the process of a binding runs, from its Deployment and its pods (pure).

Invariant: while a container of it runs, the process itself reports how the binding is served; another writer may only when none does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from kubeocean.binding.conditions import SYNCER_FAILED, Failure
from kubeocean.manager.workloads import CONTAINER
from vkubelet.api.objects import JsonView, Pod, Unknown

STARTING = "SyncerStarting"
_HARMLESS = frozenset({"", "ContainerCreating", "PodInitializing"})


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
