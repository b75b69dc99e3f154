"""Executes the decisions for single containers: starts with all their requirements, hooks, stops, resizes, and the removal of a pod.

Invariant: one job of a type runs for a container at a time; a job that fails is retried with back-off, whatever it raised.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

from attrs import evolve, frozen

from vkubelet.api.objects import Pod
from vkubelet.api.shapes import JsonView
from vkubelet.containers.checks import Checks, Outcome, Target
from vkubelet.containers.hooks import hook_failure
from vkubelet.containers.life import ContainerLife, PodLife, Resize, Stage
from vkubelet.containers.plan import Kind
from vkubelet.containers.resize import unfinished
from vkubelet.containers.tail import log_tail, wants_log
from vkubelet.control.answered import answered
from vkubelet.control.controller import Controller
from vkubelet.errors import NoSuchContainer, NoSuchPod, PodRejected, Unavailable, VKubeletError
from vkubelet.provider import (
    ContainerProvider,
    Host,
    PodFailure,
    ResolvedContainer,
    ResolvedPod,
    Running,
    SupportsResize,
    Terminated,
    Waiting,
)

log = logging.getLogger(__name__)

_WORKERS = 4000
_PATIENCE = 5.0
"""Seconds to read the last part of a log."""

_LONGEST_RETRY = 10.0
_REMOVAL = 120.0
"""Seconds for one remove_pod, which returns only when nothing is left."""

_LATE = 30.0
"""Seconds that start_container may take to return after its run was reported."""

_NO_REASON = "ProviderFailed"
"""Waiting reason of an Unavailable that names none."""

_PULL_FIRST, _PULL_LONGEST = 10.0, 300.0
_PULLS = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ErrImageNeverPull"})


class Verb(enum.Enum):
    """Type of a job; REMOVE and RESIZE concern the pod, the others a container."""

    START = "start"
    GIVE_UP = "give up"
    POST_START = "postStart"
    PRE_STOP = "preStop"
    KILL = "kill"
    MESSAGE = "message"
    RESIZE = "resize"
    REMOVE = "remove"


@frozen
class Job:
    """One job."""

    uid: str
    verb: Verb
    container: str = ""


@frozen(kw_only=True)
class WorkParts:
    """Collaborators; `decided` is called after each step, `removed` when nothing is left of a pod.

    `interrupt` cancels starts in progress of a pod that terminates. `list_since(node, moment)` returns when the containers of the node were
    listed after that moment. `vanished` is called for a container that the provider does not have.
    """

    provider: ContainerProvider
    host: Host
    checks: Checks
    life: Callable[[str], PodLife | None]
    pod: Callable[[str], Pod | None]
    say: Callable[..., None]
    decided: Callable[[str], None]
    removed: Callable[[PodLife], None]
    begun: Callable[[PodLife, ContainerLife], None]
    interrupt: Callable[[PodLife], None]
    list_since: Callable[[str, float], Awaitable[None]]
    vanished: Callable[[PodLife, ContainerLife], None]


class Work:
    """Executor of jobs while `controller` runs."""

    def __init__(self, parts: WorkParts) -> None:
        self._parts = parts
        clock, metrics = parts.host.clock, parts.host.metrics
        self.controller: Controller[Job] = Controller(
            "container-work", self._do, workers=_WORKERS, clock=clock, metrics=metrics, longest_retry=_LONGEST_RETRY
        )

    def add(self, job: Job, *, after: float = 0.0) -> None:
        self.controller.add(job, after=after)

    def cancel(self, job: Job) -> None:
        """Cancels a job that is not needed any more."""
        self.controller.discard(job)
        self.controller.cancel_running(job)

    def forget(self, life: PodLife) -> None:
        """Drops the jobs of a pod that is removed, or is being removed by a job in progress."""
        self.cancel(Job(life.ref.uid, Verb.RESIZE))
        self.controller.discard(Job(life.ref.uid, Verb.REMOVE))
        for verb in Verb:
            for name in life.containers:
                self.cancel(Job(life.ref.uid, verb, name))

    async def _do(self, job: Job) -> float | None:
        life = self._parts.life(job.uid)
        if life is None:
            return None
        if job.verb is Verb.REMOVE:
            return await self._remove(life)
        if job.verb is Verb.RESIZE:
            return await self._resize(life)
        container = life.containers.get(job.container)
        if container is None:
            return None
        work = {
            Verb.START: self._start,
            Verb.GIVE_UP: self._give_up,
            Verb.POST_START: self._post_start,
            Verb.PRE_STOP: self._pre_stop,
            Verb.KILL: self._kill,
            Verb.MESSAGE: self._message,
        }[job.verb]
        return await work(life, container)

    # --- starting ---

    async def _start(self, life: PodLife, container: ContainerLife) -> float | None:
        pod = self._parts.pod(life.ref.uid)
        if pod is None or life.ending is not None or container.stage is not Stage.STARTING:
            return None
        try:
            container.with_provider = True
            with _Failing(self, life, container):
                await self._list_if_unanswered(life, container)
                if not container.begun:
                    await self._resolve_and_start(pod, life, container)
        except Unavailable as error:
            return self._retry(container, error)
        except PodRejected as error:
            container.stage = Stage.IDLE
            life.failure = PodFailure(error.reason, error.message)
            self._parts.say(life, None, error.reason, error.message, warning=True)
            life.end(self._now + life.plan.grace)
            self._parts.interrupt(life)
            return None
        finally:
            container.with_provider = False
            self._parts.decided(life.ref.uid)
        if container.stage is Stage.STARTING:
            if not container.begun:
                container.begin_run(self._parts.host.clock.now(), now=self._now)
            self._started(life, container)
        return None

    async def _list_if_unanswered(self, life: PodLife, container: ContainerLife) -> None:
        """Lists the containers after a failed start that may have taken effect, and whose run may be over: it is not retried before that
        is known."""
        if container.unanswered is not None:
            await self._parts.list_since(life.ref.node, container.unanswered)
            container.unanswered = None

    async def _resolve_and_start(self, pod: Pod, life: PodLife, container: ContainerLife) -> None:
        sandbox, name = life.sandbox, container.plan.name
        container.image = container.plan.spec.get("image", "")
        resolved = await self._parts.host.resolve(pod, files=sandbox.files, pod_ips=sandbox.ips, containers=[name])
        found = resolved.containers.get(name)
        if found is None:
            raise Unavailable(f"container {container.plan.name} could not be resolved", waiting="CreateContainerConfigError")
        granted = with_resources(found, container)
        whole: ResolvedPod = evolve(resolved, containers={**resolved.containers, container.plan.name: granted})
        container.unanswered = self._now
        await self._parts.provider.start_container(whole, granted, restarts=container.attempt)

    def note_report(self, life: PodLife, container: ContainerLife) -> None:
        """Handles the report of a run whose start is still retried: that stops the retries, and later a call that does not return."""
        if container.with_provider:
            self.add(Job(life.ref.uid, Verb.GIVE_UP, container.plan.name), after=_LATE)
        else:
            self.controller.discard(Job(life.ref.uid, Verb.START, container.plan.name))
            self._started(life, container)

    async def _give_up(self, life: PodLife, container: ContainerLife) -> float | None:
        if not container.begun:
            return None
        left = container.since + _LATE - self._now
        if left > 0:
            return left
        self.cancel(Job(life.ref.uid, Verb.START, container.plan.name))
        self._started(life, container)
        return None

    def _started(self, life: PodLife, container: ContainerLife) -> None:
        container.end_start()
        name = container.plan.name
        self._parts.say(life, container, "Created", f"Created container: {name}")
        self._parts.say(life, container, "Started", f"Started container {name}")
        if container.plan.kind is Kind.APP:
            life.initialized = True
        if container.stage is Stage.HOOKING:
            self.add(Job(life.ref.uid, Verb.POST_START, name))
        self._parts.begun(life, container)
        self._parts.decided(life.ref.uid)

    def failed(self, life: PodLife, container: ContainerLife, error: BaseException) -> None:
        """Records a failed start: reports why and for what the container waits."""
        container.failures += 1
        if isinstance(error, Unavailable) and error.waiting != _NO_REASON:
            # A provider that knows why the container does not run knows that it does not.
            container.unanswered = None
        elif container.unanswered is not None:
            container.unanswered = self._now
        # The first, second, fourth, eighth … time: a persistent failure must not use up the events of the pod.
        tell = container.failures & (container.failures - 1) == 0
        if isinstance(error, Unavailable):
            reason = "RunContainerError" if error.waiting == _NO_REASON else error.waiting
            event, text = "Failed" if error.event == "FailedSync" else error.event, str(error)
            container.state = self._waits(life, container, reason, text)
        else:
            # The text of an unknown error may contain anything, so it is only logged.
            event, text = "Failed", str(error) if isinstance(error, VKubeletError) else f"the provider raised {type(error).__name__}"
            container.state = Waiting("RunContainerError", text)
        if tell:
            message = f"Error: {text}" if event == "Failed" and not text.startswith("Error: ") else text
            self._parts.say(life, container, event, message, warning=True)

    def _waits(self, life: PodLife, container: ContainerLife, reason: str, text: str) -> Waiting:
        if reason not in _PULLS or container.failures < 2:
            return Waiting(reason, text)
        text = f'Back-off pulling image "{container.plan.spec.get("image", "")}": {text}'
        self._parts.say(life, container, "BackOff", text.partition(": ")[0])
        return Waiting("ImagePullBackOff", text)

    def _retry(self, container: ContainerLife, error: Unavailable) -> float:
        if error.retry_after is not None:
            return error.retry_after
        doubled = 2.0 ** min(container.failures - 1, 10)
        return min(_PULL_FIRST * doubled, _PULL_LONGEST) if error.waiting in _PULLS else min(doubled, _LONGEST_RETRY)

    # --- hooks ---

    async def _post_start(self, life: PodLife, container: ContainerLife) -> float | None:
        if container.stage is not Stage.HOOKING:
            return None
        run = container.run
        outcome = await self._hook(life, container, container.plan.post_start or {})
        if container.run != run or container.stage is not Stage.HOOKING:
            return None
        container.stage = Stage.IDLE
        if _through(outcome):
            container.hooked, container.hook_error = True, ""
            self._parts.begun(life, container)
        elif container.running:
            container.failed_hook, container.hook_error = True, hook_failure(life.ref, container.plan, outcome)
            self._parts.say(life, container, "FailedPostStartHook", "PostStartHook failed", warning=True)
        self._parts.decided(life.ref.uid)
        return None

    async def _pre_stop(self, life: PodLife, container: ContainerLife) -> float | None:
        stop, run = container.stop, container.run
        if stop is None or not stop.hook_runs:
            return None
        outcome = await self._hook(life, container, container.plan.pre_stop or {})
        if container.run == run and container.stop is stop:
            stop.hook_runs = False
            if not _through(outcome):
                self._parts.say(life, container, "FailedPreStopHook", "PreStopHook failed", warning=True)
            self._parts.decided(life.ref.uid)
        return None

    async def _hook(self, life: PodLife, container: ContainerLife, action: JsonView) -> Outcome:
        address = life.sandbox.ips[0] if life.sandbox.ips else ""
        target = Target(life.ref, container.plan.name, container.plan.spec, address)
        return await self._parts.checks.run(target, action, timeout=None, agent="lifecycle")

    # --- stopping ---

    async def _kill(self, life: PodLife, container: ContainerLife) -> float | None:
        stop = container.stop
        if life.ending is None if stop is None else stop.killed_by is None:
            # A retry of a call for a run that has terminated meanwhile.
            return None
        name, killed_by = container.plan.name, stop.killed_by if stop is not None else None
        left = max(0.0, killed_by - self._now) if killed_by is not None else 0.0
        try:
            call = self._parts.provider.stop_container(life.ref, name, grace=left)
            await answered(call, f"stop_container of {name}", clock=self._parts.host.clock)
        except (NoSuchPod, NoSuchContainer):
            if container.stop is stop:
                self._parts.vanished(life, container)
        self._parts.decided(life.ref.uid)
        return None

    async def _remove(self, life: PodLife) -> float | None:
        try:
            await answered(self._parts.provider.remove_pod(life.ref), "remove_pod", clock=self._parts.host.clock, within=_REMOVAL)
        except NoSuchPod:
            log.debug("there was nothing to remove")
        if self._parts.life(life.ref.uid) is life:
            self._parts.removed(life)
        return None

    async def _message(self, life: PodLife, container: ContainerLife) -> float | None:
        """Uses the last part of the log as a missing termination message."""
        try:
            end = container.state if isinstance(container.state, Terminated) else container.last
            if end is None or not wants_log(container.plan.spec, end):
                return None
            previous = not isinstance(container.state, Terminated)
            async with asyncio.timeout(_PATIENCE):
                text = await log_tail(self._parts.provider, life.ref, container.plan.name, previous=previous)
            told = evolve(end, message=text)
            if container.state is end:
                container.state = told
            elif container.last is end:
                container.last = told
        except TimeoutError:
            log.debug("the log did not come to its end in time")
        finally:
            container.reading = False
            self._parts.decided(life.ref.uid)
        return None

    # --- resize ---

    async def _resize(self, life: PodLife) -> float | None:
        provider = self._parts.provider
        if not isinstance(provider, SupportsResize):
            return None
        for container in unfinished(life):
            if container.outgrown or not isinstance(container.state, Running):
                continue
            granted, run = container.resources, container.run
            try:
                await provider.resize_container(life.ref, container.plan.name, granted)
            except Unavailable as error:
                life.resize = Resize(pending=life.resize.pending, running=True, failed=True, message=str(error))
                self._parts.decided(life.ref.uid)
                raise
            if container.run == run:
                container.actual = granted
        self._parts.decided(life.ref.uid)
        return None

    @property
    def _now(self) -> float:
        return self._parts.host.clock.monotonic()


def _through(outcome: Outcome) -> bool:
    """Checks whether a hook has completed, which it has with any response to its request."""
    return outcome.ok is True or outcome.answered


def with_resources(found: ResolvedContainer, container: ContainerLife) -> ResolvedContainer:
    """Returns the container with its allocated resources, which may differ from the current spec."""
    if "resources" not in found.spec and not container.resources:
        return found
    return evolve(found, spec={**found.spec, "resources": container.resources})


class _Failing:
    """Context of a start that reports a failure, whatever was raised, and lets it propagate, unless the provider has reported that it
    succeeded."""

    def __init__(self, work: Work, life: PodLife, container: ContainerLife) -> None:
        self._work, self._life, self._container = work, life, container

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, Exception) or isinstance(error, PodRejected):
            return False
        if self._container.begun:
            log.debug("start_container failed, but its run was reported: %s", error)
            return True
        self._work.failed(self._life, self._container, error)
        return False
