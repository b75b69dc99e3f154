"""Computes the report of a pod whose containers the runtime manages, from which its status follows. Pure.

Invariant: reasons and messages of waiting containers are the kubelet's.
"""

import json
from collections.abc import Collection

from vkubelet.api.objects import Json, PodRef
from vkubelet.containers.checks import CheckResult
from vkubelet.containers.decide import HOOK_ERROR_SHOWN, start_time
from vkubelet.containers.managed import ManagedContainer, ManagedPod, Resize, Stage
from vkubelet.containers.plan import ContainerKind, ContainerPlan
from vkubelet.provider import ContainerReport, ContainerState, PodReport, Running, Terminated, Waiting


def report_of(managed: ManagedPod, now: float) -> PodReport:
    """Reports all containers of the pod; an ephemeral one is omitted until it is started."""
    shown = [c for c in managed.containers.values() if c.plan.kind is not ContainerKind.EPHEMERAL or c.created or c.stage is not Stage.IDLE]
    return PodReport(
        managed.ref,
        [_container(managed, c, now) for c in shown],
        managed.sandbox.ips,
        failure=managed.failure,
        conditions=resize_conditions(managed.resize, managed.generation),
    )


def _container(managed: ManagedPod, container: ManagedContainer, now: float) -> ContainerReport:
    state, last = _state(managed, container, now), container.last
    hooking = container.stage is Stage.HOOKING and isinstance(state, Waiting)
    if isinstance(container.state, Terminated) and isinstance(state, Waiting):
        last = container.state
    # A kubelet reports no resources of a container that has not started; of all others it does, even if there are none.
    has_resources = container.created and container.plan.kind is not ContainerKind.EPHEMERAL
    return ContainerReport(
        container.plan.name,
        state,
        id="" if hooking else container.id,
        image_id=container.image_id,
        restarts=max(0, container.restarts - 1) if hooking else container.restarts,
        ready=container.ready,
        started=container.started,
        last=last,
        resources=(container.actual if container.running else container.resources) if has_resources else None,
        allocated=container.resources.get("requests") or None if has_resources else None,
    )


def _state(managed: ManagedPod, container: ManagedContainer, now: float) -> ContainerState:
    state = container.state
    if managed.termination is None and container.stage is not Stage.IDLE:
        state = _beginning(managed, container)
    if isinstance(state, Waiting):
        first = state.reason == "ContainerCreating" and managed.init_containers
        return Waiting("PodInitializing", state.message) if first else state
    if not isinstance(state, Terminated) or managed.termination is not None or not managed.is_restarted(container):
        return state
    if not managed.plan.may_restart(container.plan, state.exit_code):
        return Running(state.started_at)
    if container.hook_error and now < container.ended_at + HOOK_ERROR_SHOWN:
        return _hook_failed(container)
    if start_time(container) > now:
        waited = container.crashes.wait(container.ended_at)
        text = f"back-off {duration(waited)} restarting failed container={container.plan.name} pod={full_name(managed.ref)}"
        return Waiting("CrashLoopBackOff", text)
    return state


def _beginning(managed: ManagedPod, container: ManagedContainer) -> ContainerState:
    """Returns the state during a start: a kubelet checks a container again when its start is complete, including the postStart hook."""
    state, last = container.state, container.last
    if container.plan.kind is ContainerKind.APP and last is not None and not managed.plan.may_restart(container.plan, last.exit_code):
        # Reported as waiting, a pod whose containers have all terminated would become terminal.
        return Running(last.started_at)
    if container.hook_error and not container.failures:
        return _hook_failed(container)
    return Waiting("ContainerCreating") if container.stage is Stage.HOOKING else state


def _hook_failed(container: ManagedContainer) -> Waiting:
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


def hooks_of(container: ManagedContainer) -> Collection[str]:
    """Returns the hooks that fail when the container terminates now: they run, and in it or against it."""
    found = []
    if container.stage is Stage.HOOKING and _needs_container(container.plan.post_start):
        found.append("postStart")
    stop = container.stop
    if stop is not None and (stop.hook_runs or stop.hook_cut) and _needs_container(container.plan.pre_stop):
        found.append("preStop")
    return found


def _needs_container(action: object) -> bool:
    return isinstance(action, dict) and action.get("sleep") is None


def hook_failure(ref: PodRef, plan: ContainerPlan, outcome: CheckResult) -> str:
    """Returns why a postStart hook has failed, for the status of its container."""
    action = plan.post_start or {}
    where = f"for Container {_quoted(plan.name)} in Pod {_quoted(full_name(ref))} failed - error: {outcome.error or outcome.output}"
    if action.get("exec") is not None:
        output = outcome.output if outcome.error else ""
        return f"Exec lifecycle hook ([{' '.join(action['exec'].get('command') or ())}]) {where}, message: {_quoted(output)}"
    if action.get("httpGet") is not None:
        return f"HTTP lifecycle hook ({action['httpGet'].get('path') or ''}) {where}"
    return f"Cannot run handler: {outcome.output}"


def full_name(ref: PodRef) -> str:
    """Formats a pod name as the kubelet does in messages."""
    return f"{ref.name}_{ref.namespace}({ref.uid})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
