"""Decides the next actions for the containers of one pod. Pure.

Invariant: the order is the kubelet's (kuberuntime_manager.go, computePodActions): init containers one by one, a sidecar lets the next start
once it is started, one start at a time, and a start that fails blocks no other; at termination sidecars are last and in reverse order.
"""

from __future__ import annotations

import math

from attrs import define, field, frozen

from vkubelet.containers.life import ContainerLife, PodLife, Stage, Stop
from vkubelet.containers.plan import Kind, ProbeKind

MIN_GRACE = 2.0
"""Seconds every container gets between the request to terminate and the kill (kuberuntime, minimumGracePeriodInSeconds)."""

LOOKS_AGAIN = 10.0
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
class Begin:
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
class Finish:
    """The pod has terminated by itself: its remaining containers are terminated, too."""


@frozen
class Overdue:
    """The pod was active for longer than its deadline."""


@frozen
class Remove:
    """Nothing runs any more: everything of the pod is removed."""


Action = Start | Begin | Kill | Finish | Overdue | Remove


@define
class Decision:
    """Actions, and `due`: when to decide again if nothing happens before (monotonic seconds; infinite: never)."""

    actions: list[Action] = field(factory=list)
    due: float = math.inf

    def wait(self, moment: float) -> None:
        self.due = min(self.due, moment)


def decide(life: PodLife, now: float) -> Decision:
    """Returns the next actions; decided again after each of them has had its effect."""
    decision = Decision()
    if life.ending is None and life.failure is None and life.deadline_at is not None:
        if now >= life.deadline_at:
            return Decision([Overdue()])
        decision.wait(life.deadline_at)
    if life.ending is not None:
        _end(life, decision, now)
        return decision
    for container in life.containers.values():
        _end_run(life, container, decision, now)
    _start(life, decision, now)
    return decision


# --- Terminating -------------------------------------------------------------------------------------------------------------------------


def _end(life: PodLife, decision: Decision, now: float) -> None:
    ending = life.ending
    assert ending is not None
    for container in life.containers.values():
        if not container.running:
            continue
        stop = container.stop
        if stop is None:
            decision.actions.append(Begin(container.plan.name, f"Stopping container {container.plan.name}", ending.until - now))
            continue
        # The pod's grace period can only shorten what a probe has granted.
        stop.until = min(stop.until, ending.until)
        _go_on(container, stop, decision, now, turn=_has_turn(life, container))
    if ending.remove and life.quiet and not life.removing:
        decision.actions.append(Remove())


def _has_turn(life: PodLife, container: ContainerLife) -> bool:
    """Checks the order: a sidecar waits for all app containers and for the sidecars after it."""
    if container.plan.kind is not Kind.SIDECAR:
        return True
    if any(c.running for c in life.of(Kind.APP)):
        return False
    sidecars = life.of(Kind.SIDECAR)
    return not any(c.running for c in sidecars[sidecars.index(container) + 1 :])


def _end_run(life: PodLife, container: ContainerLife, decision: Decision, now: float) -> None:
    """Terminates one container of a pod that continues."""
    if not container.running:
        return
    if container.stop is not None:
        _go_on(container, container.stop, decision, now, turn=True)
        return
    begin = _reason(life, container)
    if begin is not None:
        decision.actions.append(begin)


def _reason(life: PodLife, container: ContainerLife) -> Begin | None:
    bare, grace = container.plan.name, life.plan.grace
    name, will = ("Init container", "") if container.plan.kind is Kind.SIDECAR else ("Container", ", will be restarted")
    if container.changed and container.plan.kind in (Kind.SIDECAR, Kind.APP):
        return Begin(bare, f"{name} {bare} definition changed{will}", grace, again=True)
    probe = container.fails()
    if probe is not None:
        own, again = container.plan.probes[probe].grace, life.plan.may_restart(container.plan, 1)
        text = f"{name} {bare} failed {_WORDS[probe]} probe{will if again else ''}"
        return Begin(bare, text, grace if own is None else own, again)
    if container.failed_hook:
        return Begin(bare, "FailedPostStartHook", grace)
    if container.outgrown:
        return Begin(bare, f"Container {bare} resize requires restart", grace, again=True)
    return None


_WORDS = {ProbeKind.LIVENESS: "liveness", ProbeKind.STARTUP: "startup"}


def _go_on(container: ContainerLife, stop: Stop, decision: Decision, now: float, *, turn: bool) -> None:
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


def _start(life: PodLife, decision: Decision, now: float) -> None:
    decision.actions += [Start(c.plan.name) for c in life.of(Kind.EPHEMERAL) if not c.created and c.stage is Stage.IDLE]
    if _init_failed(life):
        decision.actions.append(Finish())
        return
    wanted, through = _starters(life)
    if through:
        apps = _apps(life)
        if not apps:
            decision.actions.append(Finish())
            return
        wanted += apps
    busy = any(c.busy for c in life.containers.values() if c.plan.kind is not Kind.EPHEMERAL)
    for container in wanted:
        if container.stage is not Stage.IDLE or container.running:
            continue
        moment = start_time(container)
        if moment > now:
            decision.wait(moment)
            if container.hook_error and container.ended_at + LOOKS_AGAIN > now:
                decision.wait(container.ended_at + LOOKS_AGAIN)
        elif not busy:
            decision.actions.append(Start(container.plan.name))
            busy = True


def start_time(container: ContainerLife) -> float:
    """Returns when a container that has terminated, or never started, may start (monotonic seconds)."""
    if container.exit_code is None or container.again:
        return -math.inf
    return container.ended_at + container.crashes.wait(container.ended_at)


def _starters(life: PodLife) -> tuple[list[ContainerLife], bool]:
    """Returns the sidecars and the one init container that run or should run by now, and whether the app containers have their turn."""
    wanted: list[ContainerLife] = []
    starters = life.starters
    # Everything before a container that has started was completed then, and blocks nothing any more, whatever happens to it.
    latest = max((number for number, container in enumerate(starters) if container.reached), default=0)
    for number, container in enumerate(starters):
        holds = number >= latest and not life.initialized
        if container.plan.kind is Kind.SIDECAR:
            wanted.append(container)
            if holds and not container.started:
                return wanted, False
        elif holds and container.exit_code != 0:
            return [*wanted, container], False
    return wanted, True


def _init_failed(life: PodLife) -> bool:
    """Checks whether an init container has failed permanently."""
    if life.initialized:
        return False
    ends = [(c, c.exit_code) for c in life.of(Kind.INIT)]
    return any(code not in (None, 0) and not life.plan.may_restart(c.plan, code or 0) for c, code in ends)


def _apps(life: PodLife) -> list[ContainerLife]:
    """Returns the app containers that run or should run; none: all have terminated permanently."""
    return [c for c in life.of(Kind.APP) if c.exit_code is None or life.goes_on(c)]
