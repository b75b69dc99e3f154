"""Records of the containers of one pod, and of the operations in progress.

Invariant: a run counts when its start succeeded or the provider reported it; a report of an earlier run changes nothing.
"""

import enum
import math
from collections.abc import Sequence
from datetime import datetime

from attrs import define, field, frozen

from vkubelet.api.objects import JsonView, PodRef
from vkubelet.containers.plan import ContainerKind, ContainerPlan, PodPlan, ProbeKind
from vkubelet.provider import ContainerReport, ContainerState, PodFailure, Running, Sandbox, Terminated, Waiting

FIRST_BACKOFF, LONGEST_BACKOFF = 10.0, 300.0
"""Seconds between the termination of a container and its next start; doubled each time."""

FORGIVEN = 2 * LONGEST_BACKOFF
"""Seconds of running after which earlier terminations do not count any more."""


class Stage(enum.Enum):
    """Current operation of the runtime on a container."""

    IDLE = "idle"
    STARTING = "starting"
    """`start_container` is retried until it succeeds."""
    HOOKING = "hooking"
    """The container runs, and so does its postStart hook."""


@define
class CrashLoop:
    """The kubelet's back-off: none before the first restart, then 10 s, doubled up to 300 s. Times are monotonic seconds."""

    delay: float = 0.0
    restarted_at: float | None = None

    def wait(self, ended_at: float) -> float:
        """Returns the seconds between this termination and the next start."""
        if self.restarted_at is None or ended_at - self.restarted_at > FORGIVEN:
            return 0.0
        return self.delay

    def note_restart(self, ended_at: float, *, now: float) -> None:
        waited = self.wait(ended_at)
        self.delay = min(2 * waited, LONGEST_BACKOFF) if waited else FIRST_BACKOFF
        self.restarted_at = now


@define
class Stop:
    """A termination in progress until `until` (monotonic seconds): the hook first, then the provider is called."""

    until: float
    hook_due: bool = False
    hook_runs: bool = False
    killed_by: float | None = None
    """When the provider should have killed it, by the last stop_container that was decided; that call is retried until it succeeds."""
    again: bool = False
    """Whether it is started again after it has terminated."""
    hook_cut: bool = False
    """Whether the hook was still running at its timeout."""


@define
class ManagedContainer:
    """One container. `attempt` is the restart count of the attempted start; `run` changes with every run, so probes notice."""

    plan: ContainerPlan
    state: ContainerState = field(factory=lambda: Waiting("ContainerCreating"))
    created: bool = False
    reached: bool = False
    """Whether it started since the last initialization of the pod."""
    image: str | None = None
    """Image of the run, or of the attempted start."""
    restarts: int = 0
    id: str = ""
    image_id: str = ""
    last: Terminated | None = None
    stage: Stage = Stage.IDLE
    attempt: int = 0
    failures: int = 0
    """Consecutive starts that failed."""
    reading: bool = False
    """Whether the last part of its log is being read."""
    with_provider: bool = False
    """Whether the provider's call to start it is in progress."""
    unanswered: float | None = None
    """When the last start failed in a way that leaves open whether it took effect (monotonic seconds)."""
    run: int = 0
    since: float = 0.0
    ended_at: float = 0.0
    ended_before: float | None = None
    """When the run before the current one terminated."""
    again: bool = False
    """Whether the runtime terminated it to start it again, and its back-off allows that at once."""
    crashes: CrashLoop = field(factory=CrashLoop)
    stop: Stop | None = None
    hooked: bool = True
    failed_hook: bool = False
    hook_error: str = ""
    """Why the last postStart hook has failed."""
    verdicts: dict[ProbeKind, bool] = field(factory=dict)
    """Verdict of each probe on this run."""
    resources: JsonView = field(factory=dict)
    """Resources that were allocated to it."""
    actual: JsonView = field(factory=dict)
    """Resources that it runs with."""
    needs_resize_restart: bool = False
    """Whether it is restarted to get other resources."""

    @property
    def running(self) -> bool:
        return isinstance(self.state, Running)

    @property
    def exit_code(self) -> int | None:
        """Exit code; None: it has not terminated, or runs again."""
        return self.state.exit_code if isinstance(self.state, Terminated) else None

    @property
    def started(self) -> bool:
        """Whether it runs, its postStart hook has completed, and its startup probe has succeeded."""
        needs = ProbeKind.STARTUP in self.plan.probes
        return self.running and self.hooked and (not needs or self.verdicts.get(ProbeKind.STARTUP, False))

    @property
    def ready(self) -> bool:
        needs = ProbeKind.READINESS in self.plan.probes
        return self.started and (not needs or self.verdicts.get(ProbeKind.READINESS, False))

    def fails(self) -> ProbeKind | None:
        """Returns the probe because of which this run has to be terminated."""
        for kind in (ProbeKind.LIVENESS, ProbeKind.STARTUP):
            if self.verdicts.get(kind) is False:
                return kind
        return None

    @property
    def changed(self) -> bool:
        """Whether it runs another image than its current spec names."""
        return self.image is not None and self.image != self.plan.spec.get("image", "")

    @property
    def busy(self) -> bool:
        """Whether it is being started; one whose start has failed blocks no other."""
        return self.stage is Stage.HOOKING or (self.stage is Stage.STARTING and (self.with_provider or not self.failures))

    @property
    def begun(self) -> bool:
        """Whether the provider has reported the run whose start is still retried."""
        return self.stage is Stage.STARTING and not isinstance(self.state, Waiting)

    # --- events ---

    def set_plan(self, plan: ContainerPlan) -> None:
        """Sets the current spec. With another image or other resources the back-off starts from zero."""
        before, self.plan = self.plan, plan
        if any(before.spec.get(key) != plan.spec.get(key) for key in ("image", "resources")):
            self.crashes = CrashLoop()

    def begin_start(self, *, now: float) -> None:
        """Starts an attempt to start it."""
        if isinstance(self.state, Terminated):
            self.last = self.state
            if not self.again or self.ended_before is not None:
                self.crashes.note_restart(self.ended_at, now=now)
            self.ended_before = self.ended_at
        self.stage, self.attempt = Stage.STARTING, self.restarts + 1 if self.created else 0
        self.state, self.unanswered = Waiting("ContainerCreating"), None

    def end_start(self) -> None:
        """Completes the start: its call succeeded, or its run was reported whatever the result of the call."""
        self.stage = Stage.HOOKING if self.running and not self.hooked else Stage.IDLE
        self.unanswered = None

    def begin_run(self, started_at: datetime | None, *, now: float) -> None:
        """Records that the attempted start has succeeded."""
        self.created, self.reached, self.restarts, self.run = True, True, self.attempt, self.run + 1
        self.state, self.since, self.id = Running(started_at), now, ""
        self.actual, self.needs_resize_restart = self.resources, False
        self.verdicts, self.stop, self.failed_hook, self.failures, self.again = {}, None, False, 0, False
        self.hooked = self.plan.post_start is None

    def end_run(self, end: Terminated, *, now: float) -> None:
        # A kubelet kills and starts in one step, in which it knows no later termination than that of the run before.
        before = -math.inf if self.ended_before is None else self.ended_before + self.crashes.wait(self.ended_before)
        self.again = self.stop is not None and self.stop.again and before <= now
        self.state, self.ended_at, self.stop, self.hooked = end, now, None, True
        self.stage = Stage.IDLE if self.stage is not Stage.STARTING else self.stage

    def on_report(self, reported: ContainerReport, *, now: float, wall: datetime) -> bool:
        """Records a report of the provider; returns whether it changed anything."""
        before = (self.state, self.id, self.image_id, self.restarts)
        starting = self.stage is Stage.STARTING and reported.restarts == self.attempt and not isinstance(reported.state, Waiting)
        if not starting and (not self.created or reported.restarts < self.restarts):
            self.image_id = reported.image_id or self.image_id
            return self.image_id != before[2]
        if starting and (isinstance(self.state, Waiting) or self.restarts != self.attempt):
            self.begin_run(getattr(reported.state, "started_at", None), now=now)
        self.id, self.image_id = reported.id or self.id, reported.image_id or self.image_id
        if isinstance(reported.state, Terminated) and self.running:
            self.end_run(_timed(reported.state, self.state, wall), now=now)
        elif isinstance(reported.state, Running) and self.running and reported.state.started_at is not None:
            self.state = reported.state
        return (self.state, self.id, self.image_id, self.restarts) != before


def _timed(end: Terminated, before: ContainerState, wall: datetime) -> Terminated:
    """Adds the time of the termination, which orders what follows."""
    started = end.started_at or (before.started_at if isinstance(before, Running) else None)
    return Terminated(end.exit_code, end.reason, end.message, started_at=started, finished_at=end.finished_at or wall)


@define
class Termination:
    """Termination of all containers of the pod until `until` (monotonic seconds); `remove`: then everything of it is removed."""

    until: float
    remove: bool = False


@frozen(kw_only=True)
class Resize:
    """State of a resize: one of the two conditions, or neither."""

    pending: str = ""
    """Infeasible or Deferred."""
    running: bool = False
    message: str = ""
    failed: bool = False


@define
class ManagedPod:
    """One pod. `began_at` and `deadline_at` are monotonic seconds."""

    ref: PodRef
    plan: PodPlan
    sandbox: Sandbox = field(factory=Sandbox)
    containers: dict[str, ManagedContainer] = field(factory=dict)
    initialized: bool = False
    began: datetime | None = None
    deadline_at: float | None = None
    failure: PodFailure | None = None
    termination: Termination | None = None
    removing: bool = False
    resize: Resize = field(factory=Resize)
    generation: int = 0

    def of(self, *kinds: ContainerKind) -> Sequence[ManagedContainer]:
        return [c for c in self.containers.values() if c.plan.kind in kinds]

    @property
    def init_containers(self) -> Sequence[ManagedContainer]:
        """Init containers and sidecars, in the order of the spec."""
        return self.of(ContainerKind.INIT, ContainerKind.SIDECAR)

    def is_restarted(self, container: ManagedContainer) -> bool:
        """Checks whether a terminated container is started again, now or later."""
        code = container.exit_code
        return code is not None and (container.again or self.plan.may_restart(container.plan, code))

    @property
    def quiet(self) -> bool:
        """Whether nothing runs, and nothing may start."""
        return not any(c.running or c.with_provider or c.stage is Stage.STARTING for c in self.containers.values())

    def set_plan(self, plan: PodPlan) -> None:
        """Sets the current spec: existing containers keep their records, ephemeral ones may be new."""
        self.plan = plan
        known, self.containers = self.containers, {}
        for each in plan.containers:
            managed = known.get(each.name) or ManagedContainer(each, resources=dict(each.spec.get("resources") or {}))
            managed.set_plan(each)
            self.containers[each.name] = managed

    def end(self, until: float, *, remove: bool = False) -> None:
        """Terminates all containers; a second call can only shorten it."""
        if self.termination is None:
            self.termination = Termination(until, remove)
            return
        self.termination.until, self.termination.remove = min(self.termination.until, until), self.termination.remove or remove
