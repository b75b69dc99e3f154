"""Decides the next actions for the containers of one pod. Pure.

Invariant: the order is the kubelet's (kuberuntime_manager.go, computePodActions): init containers one by one, a sidecar lets the next start
once it is started, one start at a time, and a start that fails blocks no other; at termination sidecars are last and in reverse order.
"""

import math

from attrs import define, field, frozen

from vkubelet.containers.managed import ManagedContainer, ManagedPod, Stage, Stop
from vkubelet.containers.plan import ContainerKind, ProbeKind

MIN_GRACE = 2.0
"""Seconds every container gets between the request to terminate and the kill (kuberuntime, minimumGracePeriodInSeconds)."""

HOOK_ERROR_SHOWN = 10.0
"""Seconds for which a kubelet reports a failed hook before it reports the back-off (its backOffPeriod)."""

REPEAT = 30.0
"""Seconds after the time at which a container should have been killed; if it still runs then, the provider is called again."""

_SHORTER = 0.5
"""Seconds by which a deadline must move forward for the provider to be called again."""


@frozen
class Start:
    """Attempt to start the container."""

    container: str


@frozen
class Terminate:
    """Start of a termination, for this reason, within `grace` seconds: the event, then the preStop hook if there is one.

    `again`: it is started again after it has terminated.
    """

    container: str
    message: str
    grace: float
    again: bool = False


@frozen
class Kill:
    """Call of the provider to stop it within `grace` seconds; a hook that still runs is cancelled."""

    container: str
    grace: float


@frozen
class TerminatePod:
    """The pod has terminated by itself: its remaining containers are terminated, too."""


@frozen
class ExceedDeadline:
    """The pod was active for longer than its deadline."""


@frozen
class Remove:
    """Nothing runs any more: everything of the pod is removed."""


Action = Start | Terminate | Kill | TerminatePod | ExceedDeadline | Remove


@define
class Decision:
    """Actions, and `due`: when to decide again if nothing happens before (monotonic seconds; infinite: never)."""

    actions: list[Action] = field(factory=list)
    due: float = math.inf

    def wait(self, moment: float) -> None:
        self.due = min(self.due, moment)


def decide(managed: ManagedPod, now: float) -> Decision:
    """Returns the next actions; decided again after each of them has had its effect."""
    decision = Decision()
    if managed.termination is None and managed.failure is None and managed.deadline_at is not None:
        if now >= managed.deadline_at:
            return Decision([ExceedDeadline()])
        decision.wait(managed.deadline_at)
    if managed.termination is not None:
        _end(managed, decision, now)
        return decision
    for container in managed.containers.values():
        _end_run(managed, container, decision, now)
    _start(managed, decision, now)
    return decision


# --- Terminating -------------------------------------------------------------------------------------------------------------------------


def _end(managed: ManagedPod, decision: Decision, now: float) -> None:
    termination = managed.termination
    assert termination is not None
    for container in managed.containers.values():
        if not container.running:
            continue
        stop = container.stop
        if stop is None:
            decision.actions.append(Terminate(container.plan.name, f"Stopping container {container.plan.name}", termination.until - now))
            continue
        # The pod's grace period can only shorten what a probe has granted.
        stop.until = min(stop.until, termination.until)
        _continue_stop(container, stop, decision, now, turn=_has_turn(managed, container))
    if termination.remove and managed.quiet and not managed.removing:
        decision.actions.append(Remove())


def _has_turn(managed: ManagedPod, container: ManagedContainer) -> bool:
    """Checks the order: a sidecar waits for all app containers and for the sidecars after it."""
    if container.plan.kind is not ContainerKind.SIDECAR:
        return True
    if any(c.running for c in managed.of(ContainerKind.APP)):
        return False
    sidecars = managed.of(ContainerKind.SIDECAR)
    return not any(c.running for c in sidecars[sidecars.index(container) + 1 :])


def _end_run(managed: ManagedPod, container: ManagedContainer, decision: Decision, now: float) -> None:
    """Terminates one container of a pod that continues."""
    if not container.running:
        return
    if container.stop is not None:
        _continue_stop(container, container.stop, decision, now, turn=True)
        return
    begin = _reason(managed, container)
    if begin is not None:
        decision.actions.append(begin)


def _reason(managed: ManagedPod, container: ManagedContainer) -> Terminate | None:
    bare, grace = container.plan.name, managed.plan.grace
    name, will = ("Init container", "") if container.plan.kind is ContainerKind.SIDECAR else ("Container", ", will be restarted")
    if container.changed and container.plan.kind in (ContainerKind.SIDECAR, ContainerKind.APP):
        return Terminate(bare, f"{name} {bare} definition changed{will}", grace, again=True)
    probe = container.fails()
    if probe is not None:
        own, again = container.plan.probes[probe].grace, managed.plan.may_restart(container.plan, 1)
        text = f"{name} {bare} failed {_WORDS[probe]} probe{will if again else ''}"
        return Terminate(bare, text, grace if own is None else own, again)
    if container.failed_hook:
        return Terminate(bare, "FailedPostStartHook", grace)
    if container.needs_resize_restart:
        return Terminate(bare, f"Container {bare} resize requires restart", grace, again=True)
    return None


_WORDS = {ProbeKind.LIVENESS: "liveness", ProbeKind.STARTUP: "startup"}


def _continue_stop(container: ManagedContainer, stop: Stop, decision: Decision, now: float, *, turn: bool) -> None:
    over = now >= stop.until
    if not over and (stop.hook_due or stop.hook_runs or not turn):
        decision.wait(stop.until)
        return
    grace = max(MIN_GRACE, stop.until - now)
    if stop.killed_by is None or now + grace < stop.killed_by - _SHORTER or now >= stop.killed_by + REPEAT:
        decision.actions.append(Kill(container.plan.name, grace))
    else:
        decision.wait(stop.killed_by + REPEAT)


# --- Starting ----------------------------------------------------------------------------------------------------------------------------


def _start(managed: ManagedPod, decision: Decision, now: float) -> None:
    decision.actions += [Start(c.plan.name) for c in managed.of(ContainerKind.EPHEMERAL) if not c.created and c.stage is Stage.IDLE]
    if _init_failed(managed):
        decision.actions.append(TerminatePod())
        return
    wanted, through = _init_turn(managed)
    if through:
        apps = _apps(managed)
        if not apps:
            decision.actions.append(TerminatePod())
            return
        wanted += apps
    busy = any(c.busy for c in managed.containers.values() if c.plan.kind is not ContainerKind.EPHEMERAL)
    for container in wanted:
        if container.stage is not Stage.IDLE or container.running:
            continue
        moment = start_time(container)
        if moment > now:
            decision.wait(moment)
            if container.hook_error and container.ended_at + HOOK_ERROR_SHOWN > now:
                decision.wait(container.ended_at + HOOK_ERROR_SHOWN)
        elif not busy:
            decision.actions.append(Start(container.plan.name))
            busy = True


def start_time(container: ManagedContainer) -> float:
    """Returns when a container that has terminated, or never started, may start (monotonic seconds)."""
    if container.exit_code is None or container.again:
        return -math.inf
    return container.ended_at + container.crashes.wait(container.ended_at)


def _init_turn(managed: ManagedPod) -> tuple[list[ManagedContainer], bool]:
    """Returns the sidecars and the one init container that run or should run by now, and whether the app containers have their turn."""
    wanted: list[ManagedContainer] = []
    init_containers = managed.init_containers
    # Everything before a container that has started was completed then, and blocks nothing any more, whatever happens to it.
    latest = max((number for number, container in enumerate(init_containers) if container.reached), default=0)
    for number, container in enumerate(init_containers):
        holds = number >= latest and not managed.initialized
        if container.plan.kind is ContainerKind.SIDECAR:
            wanted.append(container)
            if holds and not container.started:
                return wanted, False
        elif holds and container.exit_code != 0:
            return [*wanted, container], False
    return wanted, True


def _init_failed(managed: ManagedPod) -> bool:
    """Checks whether an init container has failed permanently."""
    if managed.initialized:
        return False
    ends = [(c, c.exit_code) for c in managed.of(ContainerKind.INIT)]
    return any(code not in (None, 0) and not managed.plan.may_restart(c.plan, code or 0) for c, code in ends)


def _apps(managed: ManagedPod) -> list[ManagedContainer]:
    """Returns the app containers that run or should run; none: all have terminated permanently."""
    return [c for c in managed.of(ContainerKind.APP) if c.exit_code is None or managed.is_restarted(c)]
