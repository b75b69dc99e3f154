"""What is known of the containers of one pod, and of what was begun with them.

Invariant: a run counts when its start succeeded or the provider spoke of it; what is said of an earlier run changes nothing.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from datetime import datetime

from attrs import define, field, frozen

from vkubelet.api.objects import PodRef
from vkubelet.api.shapes import JsonView
from vkubelet.containers.plan import ContainerPlan, Kind, PodPlan, ProbeKind
from vkubelet.provider import ContainerReport, ContainerState, PodFailure, Running, Sandbox, Terminated, Waiting

FIRST_BACKOFF, LONGEST_BACKOFF = 10.0, 300.0
"""Seconds between the end of a container and its next start; doubled each time."""

FORGIVEN = 2 * LONGEST_BACKOFF
"""Seconds of running after which earlier ends count no more."""


class Stage(enum.Enum):
    """What the runtime does with a container at the moment."""

    IDLE = "idle"
    STARTING = "starting"
    """`start_container` is tried until it succeeds."""
    HOOKING = "hooking"
    """It runs, and so does its postStart hook."""


@define
class CrashLoop:
    """The kubelet's back-off: none before the first restart, then 10 s, doubled up to 300 s. Times are monotonic seconds."""

    delay: float = 0.0
    restarted_at: float | None = None

    def wait(self, ended_at: float) -> float:
        """Seconds between this end and the next start."""
        if self.restarted_at is None or ended_at - self.restarted_at > FORGIVEN:
            return 0.0
        return self.delay

    def note_restart(self, ended_at: float, *, now: float) -> None:
        waited = self.wait(ended_at)
        self.delay = min(2 * waited, LONGEST_BACKOFF) if waited else FIRST_BACKOFF
        self.restarted_at = now


@define
class Stop:
    """A container is being ended until `until` (monotonic seconds): the hook first, then the provider is asked."""

    until: float
    hook_due: bool = False
    hook_runs: bool = False
    killed_by: float | None = None
    """When the provider is to have killed it, by the last stop_container that was decided; that call is tried until it succeeds."""
    again: bool = False
    """It is ended to be started again, however it ends."""
    hook_cut: bool = False
    """It was still running when its time was over."""


@define
class ContainerLife:
    """One container. `attempt` is the restart count of the start that is tried; `run` changes with every run, so probes notice."""

    plan: ContainerPlan
    state: ContainerState = field(factory=lambda: Waiting("ContainerCreating"))
    created: bool = False
    reached: bool = False
    """It began since the pod was initialised last."""
    image: str | None = None
    """That of the run, or of the start that is tried."""
    restarts: int = 0
    id: str = ""
    image_id: str = ""
    last: Terminated | None = None
    stage: Stage = Stage.IDLE
    attempt: int = 0
    failures: int = 0
    """Starts in a row that failed."""
    reading: bool = False
    """The end of its log is being read."""
    with_provider: bool = False
    """The provider is just being asked to start it."""
    unanswered: float | None = None
    """When the last start failed in a way that leaves open whether it took effect (monotonic seconds)."""
    run: int = 0
    since: float = 0.0
    ended_at: float = 0.0
    ended_before: float | None = None
    """When the run before the present one ended."""
    again: bool = False
    """It was ended by the runtime to be started again, and its back-off allows that at once."""
    crashes: CrashLoop = field(factory=CrashLoop)
    stop: Stop | None = None
    hooked: bool = True
    failed_hook: bool = False
    hook_error: str = ""
    """Why the last postStart hook has failed."""
    verdicts: dict[ProbeKind, bool] = field(factory=dict)
    """What each probe has decided of this run."""
    resources: JsonView = field(factory=dict)
    """Those that it was granted."""
    actual: JsonView = field(factory=dict)
    """Those that it runs with."""
    outgrown: bool = False
    """It is restarted to get others."""

    @property
    def running(self) -> bool:
        return isinstance(self.state, Running)

    @property
    def exit_code(self) -> int | None:
        """How it ended; None: it has not, or runs again."""
        return self.state.exit_code if isinstance(self.state, Terminated) else None

    @property
    def started(self) -> bool:
        """It runs, its postStart hook is through, and its startup probe has succeeded."""
        needs = ProbeKind.STARTUP in self.plan.probes
        return self.running and self.hooked and (not needs or self.verdicts.get(ProbeKind.STARTUP, False))

    @property
    def ready(self) -> bool:
        needs = ProbeKind.READINESS in self.plan.probes
        return self.started and (not needs or self.verdicts.get(ProbeKind.READINESS, False))

    def fails(self) -> ProbeKind | None:
        """The probe by which this run is to be ended."""
        for kind in (ProbeKind.LIVENESS, ProbeKind.STARTUP):
            if self.verdicts.get(kind) is False:
                return kind
        return None

    @property
    def changed(self) -> bool:
        """It runs another image than its spec names by now."""
        return self.image is not None and self.image != self.plan.spec.get("image", "")

    @property
    def busy(self) -> bool:
        """It is just being started; one whose start has failed keeps nobody waiting."""
        return self.stage is Stage.HOOKING or (self.stage is Stage.STARTING and (self.with_provider or not self.failures))

    @property
    def begun(self) -> bool:
        """The provider has reported the run whose start is still tried."""
        return self.stage is Stage.STARTING and not isinstance(self.state, Waiting)

    # --- what happens to it ---

    def take(self, plan: ContainerPlan) -> None:
        """Its spec as it is now. With another image or other resources it is not the one that ended so often."""
        before, self.plan = self.plan, plan
        if any(before.spec.get(key) != plan.spec.get(key) for key in ("image", "resources")):
            self.crashes = CrashLoop()

    def begin_start(self, *, now: float) -> None:
        """A start is tried from now on."""
        if isinstance(self.state, Terminated):
            self.last = self.state
            if not self.again or self.ended_before is not None:
                self.crashes.note_restart(self.ended_at, now=now)
            self.ended_before = self.ended_at
        self.stage, self.attempt = Stage.STARTING, self.restarts + 1 if self.created else 0
        self.state, self.unanswered = Waiting("ContainerCreating"), None

    def end_start(self) -> None:
        """The start is over: its call succeeded, or its run was reported whatever the call came to."""
        self.stage = Stage.HOOKING if self.running and not self.hooked else Stage.IDLE
        self.unanswered = None

    def begin_run(self, started_at: datetime | None, *, now: float) -> None:
        """The start that was tried has succeeded."""
        self.created, self.reached, self.restarts, self.run = True, True, self.attempt, self.run + 1
        self.state, self.since, self.id = Running(started_at), now, ""
        self.actual, self.outgrown = self.resources, False
        self.verdicts, self.stop, self.failed_hook, self.failures, self.again = {}, None, False, 0, False
        self.hooked = self.plan.post_start is None

    def end_run(self, end: Terminated, *, now: float) -> None:
        # A kubelet kills and starts in one step, in which it knows of no later end than that of the run before.
        before = -math.inf if self.ended_before is None else self.ended_before + self.crashes.wait(self.ended_before)
        self.again = self.stop is not None and self.stop.again and before <= now
        self.state, self.ended_at, self.stop, self.hooked = end, now, None, True
        self.stage = Stage.IDLE if self.stage is not Stage.STARTING else self.stage

    def hear(self, told: ContainerReport, *, now: float, wall: datetime) -> bool:
        """Take over what the provider says of it; whether that was news."""
        before = (self.state, self.id, self.image_id, self.restarts)
        starting = self.stage is Stage.STARTING and told.restarts == self.attempt and not isinstance(told.state, Waiting)
        if not starting and (not self.created or told.restarts < self.restarts):
            self.image_id = told.image_id or self.image_id
            return self.image_id != before[2]
        if starting and (isinstance(self.state, Waiting) or self.restarts != self.attempt):
            self.begin_run(getattr(told.state, "started_at", None), now=now)
        self.id, self.image_id = told.id or self.id, told.image_id or self.image_id
        if isinstance(told.state, Terminated) and self.running:
            self.end_run(_timed(told.state, self.state, wall), now=now)
        elif isinstance(told.state, Running) and self.running and told.state.started_at is not None:
            self.state = told.state
        return (self.state, self.id, self.image_id, self.restarts) != before


def _timed(end: Terminated, before: ContainerState, wall: datetime) -> Terminated:
    """With the time of its end, which orders what follows."""
    started = end.started_at or (before.started_at if isinstance(before, Running) else None)
    return Terminated(end.exit_code, end.reason, end.message, started_at=started, finished_at=end.finished_at or wall)


@define
class Ending:
    """All containers of the pod are ended until `until` (monotonic seconds); `remove`: then everything of it goes."""

    until: float
    remove: bool = False


@frozen(kw_only=True)
class Resize:
    """What became of the wish for other resources: one of the two conditions, or neither."""

    pending: str = ""
    """Infeasible or Deferred."""
    running: bool = False
    message: str = ""
    failed: bool = False


@define
class PodLife:
    """One pod. `began_at` and `deadline_at` are monotonic seconds."""

    ref: PodRef
    plan: PodPlan
    sandbox: Sandbox = field(factory=Sandbox)
    containers: dict[str, ContainerLife] = field(factory=dict)
    initialized: bool = False
    began: datetime | None = None
    deadline_at: float | None = None
    failure: PodFailure | None = None
    ending: Ending | None = None
    removing: bool = False
    resize: Resize = field(factory=Resize)
    generation: int = 0

    def of(self, *kinds: Kind) -> Sequence[ContainerLife]:
        return [c for c in self.containers.values() if c.plan.kind in kinds]

    @property
    def starters(self) -> Sequence[ContainerLife]:
        """Init containers and sidecars, in the order of the spec."""
        return self.of(Kind.INIT, Kind.SIDECAR)

    def goes_on(self, container: ContainerLife) -> bool:
        """Whether a container that has ended is started again, now or later."""
        code = container.exit_code
        return code is not None and (container.again or self.plan.may_restart(container.plan, code))

    @property
    def quiet(self) -> bool:
        """Nothing runs, and nothing may begin to."""
        return not any(c.running or c.with_provider or c.stage is Stage.STARTING for c in self.containers.values())

    def take(self, plan: PodPlan) -> None:
        """The spec as it is now: containers that are there keep what is known of them, ephemeral ones may have come."""
        self.plan = plan
        known, self.containers = self.containers, {}
        for each in plan.containers:
            life = known.get(each.name) or ContainerLife(each, resources=dict(each.spec.get("resources") or {}))
            life.take(each)
            self.containers[each.name] = life

    def end(self, until: float, *, remove: bool = False) -> None:
        """End everything; a second call can only hasten it."""
        if self.ending is None:
            self.ending = Ending(until, remove)
            return
        self.ending.until, self.ending.remove = min(self.ending.until, until), self.ending.remove or remove
