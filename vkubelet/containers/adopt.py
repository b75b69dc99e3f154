"""Restores the state of a pod after a restart from what the backend has, and from the published status. Pure.

Invariant: a container that runs according to the backend is never started again; one that ran and is missing has terminated, with the exit
code of a termination that was not observed.
"""

from __future__ import annotations

from datetime import datetime

from vkubelet.api.shapes import JsonView
from vkubelet.clock import parse_rfc3339
from vkubelet.containers.life import FIRST_BACKOFF, LONGEST_BACKOFF, ContainerLife, CrashLoop, PodLife
from vkubelet.containers.plan import ContainerPlan, Kind, PodPlan, ProbeKind
from vkubelet.provider import ContainerReport, PodReport, Running, Terminated, Waiting

_LISTS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
UNSEEN = 137
"""Exit code of a termination that was not observed."""

_DOUBLINGS = 10


def adopt(life: PodLife, status: JsonView, held: PodReport | None, *, now: float, wall: datetime) -> None:
    """Fills `life`; `held` is what the backend has of the pod, None: nothing."""
    published = {entry["name"]: entry for name in _LISTS for entry in status.get(name) or ()}
    told = {c.name: c for c in held.containers} if held is not None else {}
    for name, container in life.containers.items():
        was = published.get(name) or {}
        _adopt_container(container, was, told.get(name), now=now, wall=wall)
        container.resources = dict(_granted(container, was))
        container.actual = dict(was.get("resources") or container.resources)
    life.initialized = any(c.created for c in life.of(Kind.APP))
    if held is None and any(c.created for c in life.containers.values()) and _goes_on(life):
        _begin_anew(life)


def _goes_on(life: PodLife) -> bool:
    """Checks whether some app container has to run, for the first time or again."""
    apps = life.of(Kind.APP)
    return not any(c.created for c in apps) or any(c.exit_code is None or life.goes_on(c) for c in apps)


def orphan(held: PodReport) -> PodPlan:
    """Returns the plan of a pod without an object: it has only to be terminated."""
    return PodPlan(containers=[ContainerPlan(name=c.name, kind=Kind.APP, spec={"name": c.name}) for c in held.containers])


def _begin_anew(life: PodLife) -> None:
    """Resets a pod of which the backend has nothing left, as after a reboot: the sandbox is missing, so its containers are initialized
    again."""
    life.initialized = False
    for container in life.starters:
        container.reached = False
    for container in life.of(Kind.INIT):
        if isinstance(container.state, Terminated):
            container.last, container.state = container.state, Waiting("PodInitializing")


def _adopt_container(container: ContainerLife, was: JsonView, told: ContainerReport | None, *, now: float, wall: datetime) -> None:
    if told is not None:
        _take_report(container, told)
    else:
        _take_status(container, was, wall)
    if not container.created:
        return
    state = container.state
    container.reached, container.image = True, was.get("image")
    if container.last is not None and container.last.finished_at is not None:
        container.ended_before = now - max(0.0, (wall - container.last.finished_at).total_seconds())
    moment = state.started_at if isinstance(state, Running) else getattr(state, "finished_at", None)
    then = now - max(0.0, (wall - moment).total_seconds()) if moment is not None else now
    if isinstance(state, Running):
        container.since, container.run = then, 1
        if was.get("started"):
            container.verdicts[ProbeKind.STARTUP] = True
        if was.get("ready"):
            container.verdicts[ProbeKind.READINESS] = True
    else:
        container.ended_at = then
    container.crashes = CrashLoop() if container.changed else _crashes(container, then, now, wall)


def _take_report(container: ContainerLife, told: ContainerReport) -> None:
    container.id, container.image_id, container.last = told.id, told.image_id, told.last
    container.restarts = told.restarts
    if isinstance(told.state, Waiting):
        # Nothing runs; the previous termination counts.
        container.created, container.last = told.last is not None, None
        container.state = told.last or told.state
        return
    container.created, container.state = True, told.state


def _take_status(container: ContainerLife, was: JsonView, wall: datetime) -> None:
    state, last = was.get("state") or {}, was.get("lastState") or {}
    container.image_id, container.restarts = was.get("imageID", ""), was.get("restartCount", 0)
    container.id = was.get("containerID", "")
    if "running" in state:
        text = "The container could not be located when the pod was looked at"
        began = _time(state["running"].get("startedAt"))
        container.state = Terminated(UNSEEN, "ContainerStatusUnknown", text, started_at=began, finished_at=wall)
        container.last = _ended(last.get("terminated"))
        container.created = True
        return
    found = _ended(state.get("terminated")) or _ended(last.get("terminated"))
    if found is not None:
        container.state, container.created = found, True
        container.last = _ended(last.get("terminated")) if "terminated" in state else None


def _ended(body: JsonView | None) -> Terminated | None:
    if not body:
        return None
    return Terminated(
        int(body.get("exitCode", UNSEEN)),
        body.get("reason") or "",
        body.get("message") or "",
        started_at=_time(body.get("startedAt")),
        finished_at=_time(body.get("finishedAt")),
    )


def _time(text: str | None) -> datetime | None:
    return parse_rfc3339(text) if text else None


def _crashes(container: ContainerLife, then: float, now: float, wall: datetime) -> CrashLoop:
    """Restores the back-off of that many restarts."""
    if container.restarts == 0:
        return CrashLoop()
    state = container.state
    began = getattr(state, "started_at", None)
    started = now - max(0.0, (wall - began).total_seconds()) if began is not None else then
    doubled = min(container.restarts - 1, _DOUBLINGS)
    return CrashLoop(min(FIRST_BACKOFF * 2.0**doubled, LONGEST_BACKOFF), started)


def _granted(container: ContainerLife, was: JsonView) -> JsonView:
    """Returns the resources allocated before a change that is not decided yet; the status contains the requests, the limits are those in
    use."""
    wanted: JsonView = container.plan.spec.get("resources") or {}
    granted = was.get("allocatedResources")
    if granted is None or granted == (wanted.get("requests") or {}):
        return wanted
    actual: JsonView = was.get("resources") or {}
    return {**actual, "requests": granted}
