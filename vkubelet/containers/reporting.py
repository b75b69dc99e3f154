"""Computes the report of a pod whose containers the runtime manages, from which its status follows. Pure.

Invariant: reasons and messages of waiting containers are the kubelet's.
"""

from __future__ import annotations

from vkubelet.api.shapes import Json
from vkubelet.containers.decide import LOOKS_AGAIN, start_time
from vkubelet.containers.hooks import full_name
from vkubelet.containers.life import ContainerLife, PodLife, Resize, Stage
from vkubelet.containers.plan import Kind
from vkubelet.provider import ContainerReport, ContainerState, PodReport, Running, Terminated, Waiting


def report_of(life: PodLife, now: float) -> PodReport:
    """Reports all containers of the pod; an ephemeral one is omitted until it is started."""
    shown = [c for c in life.containers.values() if c.plan.kind is not Kind.EPHEMERAL or c.created or c.stage is not Stage.IDLE]
    return PodReport(
        life.ref,
        [_container(life, c, now) for c in shown],
        life.sandbox.ips,
        failure=life.failure,
        conditions=resize_conditions(life.resize, life.generation),
    )


def _container(life: PodLife, container: ContainerLife, now: float) -> ContainerReport:
    state, last = _state(life, container, now), container.last
    hooking = container.stage is Stage.HOOKING and isinstance(state, Waiting)
    if isinstance(container.state, Terminated) and isinstance(state, Waiting):
        last = container.state
    # A kubelet reports no resources of a container that has not started; of all others it does, even if there are none.
    tells = container.created and container.plan.kind is not Kind.EPHEMERAL
    return ContainerReport(
        container.plan.name,
        state,
        id="" if hooking else container.id,
        image_id=container.image_id,
        restarts=max(0, container.restarts - 1) if hooking else container.restarts,
        ready=container.ready,
        started=container.started,
        last=last,
        resources=(container.actual if container.running else container.resources) if tells else None,
        allocated=container.resources.get("requests") or None if tells else None,
    )


def _state(life: PodLife, container: ContainerLife, now: float) -> ContainerState:
    state = container.state
    if life.ending is None and container.stage is not Stage.IDLE:
        state = _beginning(life, container)
    if isinstance(state, Waiting):
        first = state.reason == "ContainerCreating" and life.starters
        return Waiting("PodInitializing", state.message) if first else state
    if not isinstance(state, Terminated) or life.ending is not None or not life.goes_on(container):
        return state
    if not life.plan.may_restart(container.plan, state.exit_code):
        return Running(state.started_at)
    if container.hook_error and now < container.ended_at + LOOKS_AGAIN:
        return _hook_failed(container)
    if start_time(container) > now:
        waited = container.crashes.wait(container.ended_at)
        text = f"back-off {duration(waited)} restarting failed container={container.plan.name} pod={full_name(life.ref)}"
        return Waiting("CrashLoopBackOff", text)
    return state


def _beginning(life: PodLife, container: ContainerLife) -> ContainerState:
    """Returns the state during a start: a kubelet checks a container again when its start is complete, including the postStart hook."""
    state, last = container.state, container.last
    if container.plan.kind is Kind.APP and last is not None and not life.plan.may_restart(container.plan, last.exit_code):
        # Reported as waiting, a pod whose containers have all terminated would become terminal.
        return Running(last.started_at)
    if container.hook_error and not container.failures:
        return _hook_failed(container)
    return Waiting("ContainerCreating") if container.stage is Stage.HOOKING else state


def _hook_failed(container: ContainerLife) -> Waiting:
    return Waiting("PostStartHookError", container.hook_error)


def duration(seconds: float) -> str:
    """Formats integer seconds as Go does: 40s, 1m20s, 5m0s."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def resize_conditions(resize: Resize, generation: int) -> list[Json]:
    """Returns PodResizePending and PodResizeInProgress, if they apply."""
    seen: Json = {"observedGeneration": generation} if generation else {}
    found: list[Json] = []
    if resize.pending:
        found.append({"type": "PodResizePending", "status": "True", "reason": resize.pending, "message": resize.message, **seen})
    if resize.running:
        failed: Json = {"reason": "Error", "message": resize.message} if resize.failed else {}
        found.append({"type": "PodResizeInProgress", "status": "True", **failed, **seen})
    return found
