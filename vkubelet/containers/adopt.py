"""Restores the state of a pod after a restart from what the backend has, and from the published status. Pure.

Invariant: a container that runs according to the backend is never started again; one that ran and is missing has terminated, with the exit
code of a termination that was not observed.
"""

import asyncio
from datetime import datetime

from attrs import evolve

from vkubelet.api.objects import JsonView, PodRef
from vkubelet.api.podspec import CONTAINER_STATUSES
from vkubelet.clock import Clock, parse_rfc3339
from vkubelet.containers.managed import FIRST_BACKOFF, LONGEST_BACKOFF, CrashLoop, ManagedContainer, ManagedPod
from vkubelet.containers.plan import ContainerKind, ContainerPlan, PodPlan, ProbeKind
from vkubelet.control.backoff import with_timeout
from vkubelet.provider import ContainerProvider, ContainerReport, PodReport, Running, Terminated, Waiting

UNSEEN = 137
"""Exit code of a termination that was not observed."""

_DOUBLINGS = 10


def adopt(managed: ManagedPod, status: JsonView, held: PodReport | None, *, now: float, wall: datetime) -> None:
    """Fills `managed`; `held` is what the backend has of the pod, None: nothing."""
    published = {entry["name"]: entry for name in CONTAINER_STATUSES for entry in status.get(name) or ()}
    reported = {c.name: c for c in held.containers} if held is not None else {}
    for name, container in managed.containers.items():
        was = published.get(name) or {}
        _adopt_container(container, was, reported.get(name), now=now, wall=wall)
        container.resources = dict(_granted(container, was))
        container.actual = dict(was.get("resources") or container.resources)
    managed.initialized = any(c.created for c in managed.of(ContainerKind.APP))
    if held is None and any(c.created for c in managed.containers.values()) and _has_work_left(managed):
        _reset_initialization(managed)


def _has_work_left(managed: ManagedPod) -> bool:
    """Checks whether some app container has to run, for the first time or again."""
    apps = managed.of(ContainerKind.APP)
    return not any(c.created for c in apps) or any(c.exit_code is None or managed.is_restarted(c) for c in apps)


def orphan(held: PodReport) -> PodPlan:
    """Returns the plan of a pod without an object: it has only to be terminated."""
    return PodPlan(containers=[ContainerPlan(name=c.name, kind=ContainerKind.APP, spec={"name": c.name}) for c in held.containers])


def _reset_initialization(managed: ManagedPod) -> None:
    """Resets a pod of which the backend has nothing left, as after a reboot: the sandbox is missing, so its containers are initialized
    again."""
    managed.initialized = False
    for container in managed.init_containers:
        container.reached = False
    for container in managed.of(ContainerKind.INIT):
        if isinstance(container.state, Terminated):
            container.last, container.state = container.state, Waiting("PodInitializing")


def _adopt_container(container: ManagedContainer, was: JsonView, reported: ContainerReport | None, *, now: float, wall: datetime) -> None:
    if reported is not None:
        _restore_from_report(container, reported)
    else:
        _restore_from_status(container, was, wall)
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


def _restore_from_report(container: ManagedContainer, reported: ContainerReport) -> None:
    container.id, container.image_id, container.last = reported.id, reported.image_id, reported.last
    container.restarts = reported.restarts
    if isinstance(reported.state, Waiting):
        # Nothing runs; the previous termination counts.
        container.created, container.last = reported.last is not None, None
        container.state = reported.last or reported.state
        return
    container.created, container.state = True, reported.state


def _restore_from_status(container: ManagedContainer, was: JsonView, wall: datetime) -> None:
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


def _crashes(container: ManagedContainer, then: float, now: float, wall: datetime) -> CrashLoop:
    """Restores the back-off of that many restarts."""
    if container.restarts == 0:
        return CrashLoop()
    state = container.state
    began = getattr(state, "started_at", None)
    started = now - max(0.0, (wall - began).total_seconds()) if began is not None else then
    doubled = min(container.restarts - 1, _DOUBLINGS)
    return CrashLoop(min(FIRST_BACKOFF * 2.0**doubled, LONGEST_BACKOFF), started)


def _granted(container: ManagedContainer, was: JsonView) -> JsonView:
    """Returns the resources allocated before a change that is not decided yet; the status contains the requests, the limits are those in
    use."""
    wanted: JsonView = container.plan.spec.get("resources") or {}
    granted = was.get("allocatedResources")
    if granted is None or granted == (wanted.get("requests") or {}):
        return wanted
    actual: JsonView = was.get("resources") or {}
    return {**actual, "requests": granted}


class RetainedReports:
    """Retained pod reports; adopted pods have to be removed from it."""

    def __init__(self, provider: ContainerProvider, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._nodes: dict[str, dict[str, PodReport]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._meanwhile: dict[str, list[PodReport]] = {}

    async def of(self, ref: PodRef) -> PodReport | None:
        """Returns the retained report; None: there was nothing of the pod, and what exists by now was started by this process."""
        async with self._locks.setdefault(ref.node, asyncio.Lock()):
            if ref.node not in self._nodes:
                await self._list(ref.node)
        return self._nodes[ref.node].get(ref.uid)

    async def _list(self, node: str) -> None:
        self._meanwhile[node] = []
        try:
            call = self._provider.list_containers(node)
            found = {report.pod.uid: report for report in await with_timeout(call, f"list_containers of node {node}", clock=self._clock)}
        finally:
            meanwhile = self._meanwhile.pop(node)
        self._nodes[node] = found
        for report in meanwhile:
            self.on_report(report)

    def on_report(self, report: PodReport) -> None:
        """Handles a report of a pod that is not adopted yet."""
        node, uid = report.pod.node, report.pod.uid
        if node in self._meanwhile:
            self._meanwhile[node].append(report)
        known = self._nodes.get(node, {}).get(uid)
        if known is None:
            return
        containers = {c.name: c for c in (*known.containers, *report.containers)}
        self._nodes[node][uid] = evolve(known, containers=list(containers.values()), ips=report.ips or known.ips)

    def remove(self, ref: PodRef) -> None:
        """Drops a pod that is adopted or deleted."""
        self._nodes.get(ref.node, {}).pop(ref.uid, None)
