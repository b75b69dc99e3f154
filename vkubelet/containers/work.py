"""Executes the decisions for single containers: starts with all their requirements, hooks, stops, resizes, and the removal of a pod.

Invariant: one job of a type runs for a container at a time; a job that fails is retried with back-off, whatever it raised.
"""

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from attrs import define, evolve, field, frozen

from vkubelet.api.objects import JsonView, Pod, PodRef
from vkubelet.containers.checks import CheckResult, Checks, CheckTarget
from vkubelet.containers.managed import ManagedContainer, ManagedPod, Resize, Stage
from vkubelet.containers.plan import ContainerKind
from vkubelet.containers.reporting import hook_failure
from vkubelet.containers.resize import unfinished
from vkubelet.control.backoff import with_timeout
from vkubelet.control.controller import Controller
from vkubelet.errors import NoSuchContainer, NoSuchPod, PodRejected, ProviderError, Unavailable, VKubeletError
from vkubelet.logformat import bind
from vkubelet.provider import ContainerProvider, ResolvedContainer, ResolvedPod, SupportsResize, contract

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
_LINES, _BYTES = 80, 2048
_TIME = 64
"""Maximum bytes of the time before a line."""


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


@define(kw_only=True, eq=False)
class ContainerWork:
    """Executor of jobs while `controller` runs.

    `decided` is called after each step, `removed` when nothing is left of a pod, `begun` when a container has started. `interrupt` cancels
    starts in progress of a pod that terminates. `list_since(node, moment)` returns when the containers of the node were listed after that
    moment. `vanished` is called for a container that the provider does not have.
    """

    provider: ContainerProvider
    host: contract.Host
    checks: Checks
    find: Callable[[str], ManagedPod | None]
    pod: Callable[[str], Pod | None]
    emit: Callable[..., None]
    decided: Callable[[str], None]
    removed: Callable[[ManagedPod], None]
    begun: Callable[[ManagedPod, ManagedContainer], None]
    interrupt: Callable[[ManagedPod], None]
    list_since: Callable[[str, float], Awaitable[None]]
    vanished: Callable[[ManagedPod, ManagedContainer], None]
    controller: Controller[Job] = field(init=False)

    def __attrs_post_init__(self) -> None:
        clock, metrics = self.host.clock, self.host.metrics
        self.controller = Controller(
            "container-work", self._do, workers=_WORKERS, clock=clock, metrics=metrics, longest_retry=_LONGEST_RETRY
        )

    def add(self, job: Job, *, after: float = 0.0) -> None:
        self.controller.add(job, after=after)

    def cancel(self, job: Job) -> None:
        """Cancels a job that is not needed any more."""
        self.controller.discard(job)
        self.controller.cancel_running(job)

    def remove(self, managed: ManagedPod) -> None:
        """Drops the jobs of a pod that is removed, or is being removed by a job in progress."""
        self.cancel(Job(managed.ref.uid, Verb.RESIZE))
        self.controller.discard(Job(managed.ref.uid, Verb.REMOVE))
        for verb in Verb:
            for name in managed.containers:
                self.cancel(Job(managed.ref.uid, verb, name))

    async def _do(self, job: Job) -> float | None:
        managed = self.find(job.uid)
        if managed is None:
            return None
        if job.verb is Verb.REMOVE:
            return await self._remove(managed)
        if job.verb is Verb.RESIZE:
            return await self._resize(managed)
        container = managed.containers.get(job.container)
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
        return await work(managed, container)

    # --- starting ---

    async def _start(self, managed: ManagedPod, container: ManagedContainer) -> float | None:
        pod = self.pod(managed.ref.uid)
        if pod is None or managed.termination is not None or container.stage is not Stage.STARTING:
            return None
        try:
            container.with_provider = True
            await self._try_to_start(pod, managed, container)
        except Unavailable as error:
            return self._retry(container, error)
        except PodRejected as error:
            container.stage = Stage.IDLE
            managed.failure = contract.PodFailure(error.reason, error.message)
            self.emit(managed, None, error.reason, error.message, warning=True)
            managed.end(self._now + managed.plan.grace)
            self.interrupt(managed)
            return None
        finally:
            container.with_provider = False
            self.decided(managed.ref.uid)
        if container.stage is Stage.STARTING:
            if not container.begun:
                container.begin_run(self.host.clock.now(), now=self._now)
            self._started(managed, container)
        return None

    async def _try_to_start(self, pod: Pod, managed: ManagedPod, container: ManagedContainer) -> None:
        """Starts the container. Reports every failure and raises it again, unless the provider has reported the run meanwhile."""
        try:
            await self._list_if_unanswered(managed, container)
            if not container.begun:
                await self._resolve_and_start(pod, managed, container)
        except PodRejected:
            raise
        except Exception as error:
            if not container.begun:
                self._failed(managed, container, error)
                raise
            with bind(pod=managed.ref.name, namespace=managed.ref.namespace, container=container.plan.name, error=str(error)):
                log.debug("start_container failed, but its run was reported")

    async def _list_if_unanswered(self, managed: ManagedPod, container: ManagedContainer) -> None:
        """Lists the containers after a failed start that may have taken effect, and whose run may be over: it is not retried before that
        is known."""
        if container.unanswered is not None:
            await self.list_since(managed.ref.node, container.unanswered)
            container.unanswered = None

    async def _resolve_and_start(self, pod: Pod, managed: ManagedPod, container: ManagedContainer) -> None:
        sandbox, name = managed.sandbox, container.plan.name
        container.image = container.plan.spec.get("image", "")
        resolved = await self.host.resolve(pod, files=sandbox.files, pod_ips=sandbox.ips, containers=[name])
        found = resolved.containers.get(name)
        if found is None:
            raise Unavailable(f"container {container.plan.name} could not be resolved", waiting="CreateContainerConfigError")
        granted = with_resources(found, container)
        whole: ResolvedPod = evolve(resolved, containers={**resolved.containers, container.plan.name: granted})
        container.unanswered = self._now
        await self.provider.start_container(whole, granted, restarts=container.attempt)

    def note_report(self, managed: ManagedPod, container: ManagedContainer) -> None:
        """Handles the report of a run whose start is still retried: that stops the retries, and later a call that does not return."""
        if container.with_provider:
            self.add(Job(managed.ref.uid, Verb.GIVE_UP, container.plan.name), after=_LATE)
        else:
            self.controller.discard(Job(managed.ref.uid, Verb.START, container.plan.name))
            self._started(managed, container)

    async def _give_up(self, managed: ManagedPod, container: ManagedContainer) -> float | None:
        if not container.begun:
            return None
        left = container.since + _LATE - self._now
        if left > 0:
            return left
        self.cancel(Job(managed.ref.uid, Verb.START, container.plan.name))
        self._started(managed, container)
        return None

    def _started(self, managed: ManagedPod, container: ManagedContainer) -> None:
        container.end_start()
        name = container.plan.name
        self.emit(managed, container, "Created", f"Created container: {name}")
        self.emit(managed, container, "Started", f"Started container {name}")
        if container.plan.kind is ContainerKind.APP:
            managed.initialized = True
        if container.stage is Stage.HOOKING:
            self.add(Job(managed.ref.uid, Verb.POST_START, name))
        self.begun(managed, container)
        self.decided(managed.ref.uid)

    def _failed(self, managed: ManagedPod, container: ManagedContainer, error: BaseException) -> None:
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
            container.state = self._waits(managed, container, reason, text)
        else:
            # The text of an unknown error may contain anything, so it is only logged.
            unknown = f"the provider raised {type(error).__name__}; its log contains the cause"
            event, text = "Failed", str(error) if isinstance(error, VKubeletError) else unknown
            container.state = contract.Waiting("RunContainerError", text)
        if tell:
            message = f"Error: {text}" if event == "Failed" and not text.startswith("Error: ") else text
            self.emit(managed, container, event, message, warning=True)

    def _waits(self, managed: ManagedPod, container: ManagedContainer, reason: str, text: str) -> contract.Waiting:
        if reason not in _PULLS or container.failures < 2:
            return contract.Waiting(reason, text)
        text = f'Back-off pulling image "{container.plan.spec.get("image", "")}": {text}'
        self.emit(managed, container, "BackOff", text.partition(": ")[0])
        return contract.Waiting("ImagePullBackOff", text)

    def _retry(self, container: ManagedContainer, error: Unavailable) -> float:
        if error.retry_after is not None:
            return error.retry_after
        doubled = 2.0 ** min(container.failures - 1, 10)
        return min(_PULL_FIRST * doubled, _PULL_LONGEST) if error.waiting in _PULLS else min(doubled, _LONGEST_RETRY)

    # --- hooks ---

    async def _post_start(self, managed: ManagedPod, container: ManagedContainer) -> float | None:
        if container.stage is not Stage.HOOKING:
            return None
        run = container.run
        outcome = await self._hook(managed, container, container.plan.post_start or {})
        if container.run != run or container.stage is not Stage.HOOKING:
            return None
        container.stage = Stage.IDLE
        if _completed(outcome):
            container.hooked, container.hook_error = True, ""
            self.begun(managed, container)
        elif container.running:
            container.failed_hook, container.hook_error = True, hook_failure(managed.ref, container.plan, outcome)
            self.emit(managed, container, "FailedPostStartHook", "PostStartHook failed", warning=True)
        self.decided(managed.ref.uid)
        return None

    async def _pre_stop(self, managed: ManagedPod, container: ManagedContainer) -> float | None:
        stop, run = container.stop, container.run
        if stop is None or not stop.hook_runs:
            return None
        outcome = await self._hook(managed, container, container.plan.pre_stop or {})
        if container.run == run and container.stop is stop:
            stop.hook_runs = False
            if not _completed(outcome):
                self.emit(managed, container, "FailedPreStopHook", "PreStopHook failed", warning=True)
            self.decided(managed.ref.uid)
        return None

    async def _hook(self, managed: ManagedPod, container: ManagedContainer, action: JsonView) -> CheckResult:
        address = managed.sandbox.ips[0] if managed.sandbox.ips else ""
        target = CheckTarget(managed.ref, container.plan.name, container.plan.spec, address)
        return await self.checks.run(target, action, timeout=None, agent="lifecycle")

    # --- stopping ---

    async def _kill(self, managed: ManagedPod, container: ManagedContainer) -> float | None:
        stop = container.stop
        if managed.termination is None if stop is None else stop.killed_by is None:
            # A retry of a call for a run that has terminated meanwhile.
            return None
        name, killed_by = container.plan.name, stop.killed_by if stop is not None else None
        left = max(0.0, killed_by - self._now) if killed_by is not None else 0.0
        try:
            call = self.provider.stop_container(managed.ref, name, grace=left)
            await with_timeout(call, f"stop_container of {name}", clock=self.host.clock)
        except (NoSuchPod, NoSuchContainer):
            if container.stop is stop:
                self.vanished(managed, container)
        self.decided(managed.ref.uid)
        return None

    async def _remove(self, managed: ManagedPod) -> float | None:
        try:
            await with_timeout(self.provider.remove_pod(managed.ref), "remove_pod", clock=self.host.clock, within=_REMOVAL)
        except NoSuchPod:
            log.debug("there was nothing to remove")
        if self.find(managed.ref.uid) is managed:
            self.removed(managed)
        return None

    async def _message(self, managed: ManagedPod, container: ManagedContainer) -> float | None:
        """Uses the last part of the log as a missing termination message."""
        try:
            end = container.state if isinstance(container.state, contract.Terminated) else container.last
            if end is None or not wants_log(container.plan.spec, end):
                return None
            previous = not isinstance(container.state, contract.Terminated)
            async with asyncio.timeout(_PATIENCE):
                text = await log_tail(self.provider, managed.ref, container.plan.name, previous=previous)
            reported = evolve(end, message=text)
            if container.state is end:
                container.state = reported
            elif container.last is end:
                container.last = reported
        except TimeoutError:
            log.debug("the log did not come to its end in time")
        finally:
            container.reading = False
            self.decided(managed.ref.uid)
        return None

    # --- resize ---

    async def _resize(self, managed: ManagedPod) -> float | None:
        provider = self.provider
        if not isinstance(provider, SupportsResize):
            return None
        for container in unfinished(managed):
            if container.needs_resize_restart or not isinstance(container.state, contract.Running):
                continue
            granted, run = container.resources, container.run
            try:
                await provider.resize_container(managed.ref, container.plan.name, granted)
            except Unavailable as error:
                managed.resize = Resize(pending=managed.resize.pending, running=True, failed=True, message=str(error))
                self.decided(managed.ref.uid)
                raise
            if container.run == run:
                container.actual = granted
        self.decided(managed.ref.uid)
        return None

    @property
    def _now(self) -> float:
        return self.host.clock.monotonic()


def _completed(outcome: CheckResult) -> bool:
    """Checks whether a hook has completed, which it has with any response to its request."""
    return outcome.ok is True or outcome.answered


def with_resources(found: ResolvedContainer, container: ManagedContainer) -> ResolvedContainer:
    """Returns the container with its allocated resources, which may differ from the current spec."""
    if "resources" not in found.spec and not container.resources:
        return found
    return evolve(found, spec={**found.spec, "resources": container.resources})


def wants_log(spec: JsonView, end: contract.Terminated) -> bool:
    """Checks that it failed without a termination message."""
    return spec.get("terminationMessagePolicy") == "FallbackToLogsOnError" and end.exit_code != 0 and not end.message


async def log_tail(provider: object, pod: PodRef, container: str, *, previous: bool) -> str:
    """Returns the last part of the log, empty without a log."""
    if not isinstance(provider, contract.SupportsLogs):
        return ""
    lines: deque[bytes] = deque(maxlen=_LINES)
    rest = b""
    try:
        async for chunk in provider.stream_logs(pod, container, contract.LogOptions(previous=previous, tail=_LINES)):
            *complete, rest = (rest + chunk).split(b"\n")
            lines.extend(_end_of(line) for line in complete[-_LINES:])
            rest = _end_of(rest)
    except ProviderError:
        return ""
    if rest:
        lines.append(rest)
    # Each line starts with its time.
    text = b"".join(line.partition(b" ")[2] + b"\n" for line in lines)
    return text[-_BYTES:].decode(errors="ignore")


def _end_of(line: bytes) -> bytes:
    """Returns the time of a line, and as much of its last part as a message can show."""
    if len(line) <= _TIME + _BYTES:
        return line
    time, space, text = line.partition(b" ")
    return time[:_TIME] + space + text[-_BYTES:]
