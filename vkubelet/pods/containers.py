"""Computes the container statuses of a PodStatus from the provider's report. Pure.

Invariant: a container that may not be restarted never leaves Terminated, and a published time stays as long as its state does.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from attrs import frozen

from vkubelet.api.objects import Json, JsonView
from vkubelet.api.podspec import CONTAINER_STATUSES
from vkubelet.clock import rfc3339
from vkubelet.provider import ContainerReport, PodReport, Running, Terminated, Waiting

LISTS = CONTAINER_STATUSES

UNKNOWN_EXIT = 137
"""Exit code that Kubernetes writes, with the reason ContainerStatusUnknown, for a container whose exit was not observed."""

_MESSAGES = 12 * 1024
"""Bytes for the termination messages of all containers of a pod together (kubelet)."""


@frozen
class Containers:
    """Containers of a pod by type; sidecars are init containers with restartPolicy Always."""

    init: Sequence[JsonView]
    sidecars: Sequence[JsonView]
    apps: Sequence[JsonView]
    ephemeral: Sequence[JsonView]

    @classmethod
    def of(cls, spec: JsonView) -> Containers:
        starting = spec.get("initContainers", ())
        return cls(
            [c for c in starting if c.get("restartPolicy") != "Always"],
            [c for c in starting if c.get("restartPolicy") == "Always"],
            spec.get("containers", ()),
            spec.get("ephemeralContainers", ()),
        )


@frozen(kw_only=True)
class _PodFacts:
    """Facts shared by all containers of one pod; `reported` is False until the provider has reported the pod."""

    now: datetime
    reported: bool
    terminating: bool
    restart_policy: str
    message_limit: int
    waiting: Waiting


def container_statuses(
    spec: JsonView,
    report: PodReport | None,
    *,
    previous: JsonView,
    now: datetime,
    terminating: bool = False,
    waiting: Waiting | None = None,
) -> Json:
    """Returns the container status lists by field name; a list without entries is omitted.

    `previous` is the status published last, `waiting` why the pod cannot start. Init statuses keep the order of the spec, the others are
    sorted by name. A container that the provider does not report keeps its status, unless it was running: then it exited with 137,
    ContainerStatusUnknown.
    """
    starting = spec.get("initContainers", ())
    kinds = Containers.of(spec)
    count = len(starting) + len(kinds.apps) + len(kinds.ephemeral)
    facts = _PodFacts(
        now=now,
        reported=report is not None,
        terminating=terminating,
        restart_policy=spec.get("restartPolicy", "Always"),
        message_limit=_MESSAGES // max(1, count),
        waiting=waiting or Waiting("PodInitializing" if starting else "ContainerCreating"),
    )
    reported = {c.name: c for c in report.containers} if report is not None else {}
    result: Json = {}
    for name, containers in zip(LISTS, (starting, kinds.apps, kinds.ephemeral), strict=True):
        was = {s["name"]: s for s in previous.get(name, ())}
        listed = [c for c in containers if name != LISTS[2] or c["name"] in reported or c["name"] in was]
        statuses = [_status(c, reported.get(c["name"]), was.get(c["name"]), facts) for c in listed]
        if name == LISTS[0]:
            _mark_completed(kinds.init, statuses)
        else:
            statuses.sort(key=lambda status: str(status["name"]))
        if statuses:
            result[name] = statuses
    return result


def ended(status: JsonView, *, now: datetime) -> Json:
    """Returns the status of a container that is known not to run any more; one that is Terminated is unchanged."""
    state = status.get("state", {})
    if "terminated" in state:
        return dict(status)
    end = Terminated(UNKNOWN_EXIT, "ContainerStatusUnknown", "The container could not be located when the pod was terminated")
    return {
        **status,
        "state": {"terminated": _terminated(end, state, now=now, limit=_MESSAGES)},
        "ready": False,
        "started": False,
    }


def exit_code(status: JsonView) -> int | None:
    """Returns the exit code of a terminated container, or None while it has not terminated."""
    code: int | None = status.get("state", {}).get("terminated", {}).get("exitCode")
    return code


def ever_ran(status: JsonView) -> bool:
    """Checks whether the container is running or has terminated at least once."""
    state = status.get("state", {})
    return "running" in state or "terminated" in state or "terminated" in status.get("lastState", {})


def _status(container: JsonView, reported: ContainerReport | None, was: JsonView | None, facts: _PodFacts) -> Json:
    if reported is None:
        return _unreported(container, was, facts)
    was = was or {}
    state_was = was.get("state", {})
    if "terminated" in state_was and not isinstance(reported.state, Terminated) and not _may_restart(container, state_was, facts):
        return dict(was)
    restarts = max(reported.restarts, was.get("restartCount", 0))
    restarted = restarts > was.get("restartCount", 0)
    status = _frame(container, was, restarts)
    status["imageID"] = reported.image_id or status["imageID"]
    status["state"] = _state(reported.state, {} if restarted else state_was, facts)
    status["lastState"] = _last_state(reported, was, restarted=restarted, facts=facts)
    running = isinstance(reported.state, Running)
    status["started"] = running and reported.started is not False
    status["ready"] = running and reported.ready is not False
    amounts = (("resources", reported.resources), ("allocatedResources", reported.allocated))
    status.update({key: value for key, value in amounts if value is not None})
    identity = reported.id or ("" if restarted else was.get("containerID", ""))
    if identity:
        status["containerID"] = identity
        if "terminated" in status["state"]:
            status["state"]["terminated"]["containerID"] = identity
    return status


def _frame(container: JsonView, was: JsonView, restarts: int) -> Json:
    same_image = was.get("image") == container.get("image")
    mounts = [_mount(each) for each in container.get("volumeMounts") or ()]
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": was.get("imageID", "") if same_image else "",
        "restartCount": restarts,
        "lastState": {},
        **({"volumeMounts": mounts} if mounts else {}),
    }


def _mount(body: JsonView) -> Json:
    """Renders a volume mount of the spec for the status; mounts below a read-only one are not made read-only with it."""
    found: Json = {"name": body["name"], "mountPath": body["mountPath"]}
    return {**found, "readOnly": True, "recursiveReadOnly": "Disabled"} if body.get("readOnly") else found


def _mark_completed(init: Sequence[JsonView], statuses: Sequence[Json]) -> None:
    """Marks init containers that have succeeded as ready."""
    names = {c["name"] for c in init}
    for status in statuses:
        if status["name"] in names:
            status["ready"] = exit_code(status) == 0


def _may_restart(container: JsonView, state: JsonView, facts: _PodFacts) -> bool:
    if container.get("restartPolicy") == "Always" or facts.restart_policy == "Always":
        return True
    return facts.restart_policy == "OnFailure" and state["terminated"].get("exitCode") != 0


def _unreported(container: JsonView, was: JsonView | None, facts: _PodFacts) -> Json:
    """Returns the status of a container that the provider did not report."""
    state = was.get("state", {}) if was is not None else {}
    if was is None or "waiting" in state or not state:
        status = _frame(container, was or {}, (was or {}).get("restartCount", 0))
        status.update(lastState=(was or {}).get("lastState", {}), ready=False, started=False)
        shown = facts.waiting if was is None or not ever_ran(was) else Waiting(**_waiting_of(state))
        return {**status, "state": _state(shown, state, facts)}
    if not facts.reported or "terminated" in state:
        return dict(was)
    vanished = Terminated(UNKNOWN_EXIT, "ContainerStatusUnknown", "The container could not be located when the pod was looked at")
    return {
        **was,
        "state": _state(vanished, state, facts),
        "restartCount": was.get("restartCount", 0) + (0 if facts.terminating else 1),
        "ready": False,
        "started": False,
    }


def _waiting_of(state: JsonView) -> dict[str, str]:
    waiting = state.get("waiting", {})
    return {"reason": waiting.get("reason", ""), "message": waiting.get("message", "")}


def _state(state: Waiting | Running | Terminated, was: JsonView, facts: _PodFacts) -> Json:
    match state:
        case Waiting():
            parts = {"reason": state.reason, "message": state.message}
            return {"waiting": {key: value for key, value in parts.items() if value}}
        case Running():
            known = was.get("running", {}).get("startedAt")
            return {"running": {"startedAt": rfc3339(state.started_at) if state.started_at else known or rfc3339(facts.now)}}
        case Terminated():
            return {"terminated": _terminated(state, was, now=facts.now, limit=facts.message_limit)}


def _last_state(reported: ContainerReport, was: JsonView, *, restarted: bool, facts: _PodFacts) -> Json:
    """Returns how the previous run terminated: as reported, else as published.

    A Terminated state that another state follows becomes the last state.
    """
    state_was, last_was = was.get("state", {}), was.get("lastState", {})
    moved = "terminated" in state_was and (restarted or not isinstance(reported.state, Terminated))
    source = state_was if moved else last_was
    if reported.last is not None:
        return {"terminated": _terminated(reported.last, source, now=facts.now, limit=facts.message_limit)}
    return {"terminated": dict(source["terminated"])} if "terminated" in source else {}


def _terminated(end: Terminated, was: JsonView, *, now: datetime, limit: int) -> Json:
    before = was.get("terminated") or {}
    started = rfc3339(end.started_at) if end.started_at else before.get("startedAt") or was.get("running", {}).get("startedAt")
    finished = rfc3339(end.finished_at) if end.finished_at else before.get("finishedAt") or rfc3339(now)
    result: Json = {
        "exitCode": end.exit_code,
        "reason": end.reason or ("Completed" if end.exit_code == 0 else "Error"),
        "startedAt": started,
        "finishedAt": finished,
    }
    message = end.message.encode()[:limit].decode(errors="ignore")
    if message:
        result["message"] = message
    if before.get("containerID"):
        result["containerID"] = before["containerID"]
    return result
