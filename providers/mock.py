"""Pods in memory that follow a script: for tests, for demonstrations, and to stand in for worker nodes at scale.

Invariant: everything that happens to a pod follows from its annotations and from the clock; nothing is random.

Annotations, all below `mock.vkubelet.io/`, times in seconds:
`start-delay` until the containers run; `ready-delay` until they are ready then; `run-for` until they end by themselves (else never), with
`exit-code`; `restart-delay` until they run again, where the restart policy says so; `stop-delay` between a deletion and their end;
`log-lines` written when they start (1) and `log-interval` between further ones (none); `reject` with a reason; `sync-failures`: so many
first calls fail.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
import math
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime

from attrs import define, field, frozen

from vkubelet import (
    BadRequest,
    ContainerReport,
    Host,
    LogOptions,
    NodeDescription,
    NoSuchContainer,
    NoSuchPod,
    Pod,
    PodRef,
    PodRejected,
    PodReport,
    Running,
    Terminated,
    Unavailable,
    Waiting,
)

PREFIX = "mock.vkubelet.io/"


@frozen(kw_only=True)
class Script:
    """What the annotations of a pod say."""

    start_delay: float = 0.0
    ready_delay: float = 0.0
    run_for: float = math.inf
    exit_code: int = 0
    restart_delay: float = 1.0
    stop_delay: float = 0.0
    log_lines: int = 1
    log_interval: float = math.inf
    sync_failures: int = 0
    reject: str = ""

    @classmethod
    def of(cls, annotations: Mapping[str, str]) -> Script:
        """Raises PodRejected when a value is not a number."""
        told = {key.removeprefix(PREFIX).replace("-", "_"): value for key, value in annotations.items() if key.startswith(PREFIX)}
        whole = ("exit_code", "log_lines", "sync_failures")
        times = ("start_delay", "ready_delay", "run_for", "restart_delay", "stop_delay", "log_interval")
        try:
            numbers = {key: int(told[key]) for key in whole if key in told}
            seconds = {key: float(told[key]) for key in times if key in told}
        except ValueError as error:
            raise PodRejected("BadScript", f"an annotation below {PREFIX} is not a number: {error}") from error
        if seconds.get("log_interval", 1.0) <= 0:
            raise PodRejected("BadScript", f"{PREFIX}log-interval must be more than zero")
        return cls(**numbers, **seconds, reject=told.get("reject", ""))  # type: ignore[arg-type]


class Stage(enum.Enum):
    """Where all containers of a pod are."""

    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing off"
    ENDED = "ended"


@define
class Log:
    """The output of one run of one container."""

    lines: list[bytes] = field(factory=list)
    ended: bool = False


@define(eq=False)
class MockPod:
    """One pod of the backend. `since` is the monotonic time at which the stage began."""

    ref: PodRef
    script: Script
    restart_policy: str
    init: Sequence[str]
    containers: Sequence[str]
    host_network: bool
    since: float
    stage: Stage = Stage.STARTING
    ready: bool = False
    restarts: int = 0
    syncs: int = 0
    stopping_since: float | None = None
    graces: list[float] = field(factory=list)
    started: datetime | None = None
    last: Terminated | None = None
    logs: dict[str, list[Log]] = field(factory=dict)
    news: asyncio.Event = field(factory=asyncio.Event)

    def report(self) -> PodReport:
        running = self.stage is Stage.RUNNING
        if self.stage is Stage.STARTING:
            state: Waiting | Running | Terminated = Waiting()
        elif self.stage is Stage.BACKING_OFF:
            state = Waiting("CrashLoopBackOff", "back-off before the next start")
        elif self.stage is Stage.RUNNING or self.last is None:
            state = Running(self.started)
        else:
            state = self.last
        last = self.last if state is not self.last else None
        done = [ContainerReport(name, Terminated(0)) for name in self.init if self.stage is not Stage.STARTING]
        apps = [
            ContainerReport(
                name, state, id=f"mock://{self.ref.uid}/{name}", restarts=self.restarts, ready=running and self.ready, last=last
            )
            for name in self.containers
        ]
        hidden = self.host_network or self.stage is Stage.STARTING
        return PodReport(self.ref, (*done, *apps), () if hidden else (address_of(self.ref.uid),))

    def write(self, now: datetime, text: str) -> None:
        """One line to the log of every container."""
        for name in self.containers:
            self.logs[name][-1].lines.append(f"{now.isoformat()} {name}: {text}\n".encode())
        self.tell()

    def tell(self) -> None:
        """Wake everybody who follows a log."""
        self.news.set()
        self.news = asyncio.Event()


def address_of(uid: str) -> str:
    """A private address that follows from the uid."""
    a, b, c = hashlib.blake2s(uid.encode(), digest_size=3).digest()
    return f"10.{a}.{b}.{max(1, c % 255)}"


class Mock:
    """See the module. `pods` is the backend, by uid; it outlives `run`, as a real one would."""

    @frozen(kw_only=True)
    class Settings:
        """How many nodes there are, and how large each is."""

        node: str = "mock"
        """Name of the node; with several, of each before `-0`, `-1`, …"""
        nodes: int = 1
        cpu: str = "64"
        memory: str = "256Gi"
        pods: str = "1000"
        labels: Mapping[str, str] = field(factory=dict)
        """Labels of each node, over the runtime's own."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or self.Settings()
        self.pods: dict[str, MockPod] = {}
        self.failing: set[str] = set()
        """Nodes whose ping fails and whose pods can not be listed."""
        self._host: Host | None = None
        self._group: asyncio.TaskGroup | None = None
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}

    @property
    def host(self) -> Host:
        """Raises Unavailable while the provider does not run."""
        if self._host is None:
            raise Unavailable("the mock provider does not run")
        return self._host

    def node_names(self) -> list[str]:
        settings = self.settings
        return [settings.node] if settings.nodes == 1 else [f"{settings.node}-{number}" for number in range(settings.nodes)]

    async def run(self, host: Host) -> None:
        """Declare the nodes, then live through the scripts until the stop; pods stay as they are then."""
        capacity = {"cpu": self.settings.cpu, "memory": self.settings.memory, "pods": self.settings.pods}
        try:
            async with asyncio.TaskGroup() as group:
                self._host, self._group = host, group
                for pod in self.pods.values():
                    self._begin(pod)
                for name in self.node_names():
                    host.set_node(NodeDescription(name, capacity, labels=self.settings.labels))
                host.nodes_complete()
                await host.until_stopped()
                for task in self._lives.values():
                    task.cancel()
        finally:
            self._host = self._group = None
            self._lives.clear()

    async def sync_pod(self, pod: Pod) -> None:
        script, uid = Script.of(pod.metadata.annotations), pod.ref.uid
        if script.reject:
            raise PodRejected(script.reject, "the annotations ask for it")
        self._failures[uid] = self._failures.get(uid, 0) + 1
        if self._failures[uid] <= script.sync_failures:
            raise Unavailable("the annotations ask for it")
        known = self.pods.get(uid)
        if known is None:
            known = self.pods[uid] = self._new(pod, script)
            self._begin(known)
        known.syncs += 1
        self.host.report(known.report())

    def _new(self, pod: Pod, script: Script) -> MockPod:
        spec = pod.spec
        init = spec.get("initContainers", ())
        sidecars = [c["name"] for c in init if c.get("restartPolicy") == "Always"]
        return MockPod(
            pod.ref,
            script,
            spec.get("restartPolicy", "Always"),
            [c["name"] for c in init if c.get("restartPolicy") != "Always"],
            [*sidecars, *(c["name"] for c in spec["containers"])],
            spec.get("hostNetwork", False),
            self.host.clock.monotonic(),
        )

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        known = self.pods.get(pod.uid)
        if known is None:
            self.host.pod_gone(pod)
            return
        known.graces.append(grace)
        now, delay = self.host.clock.monotonic(), known.script.stop_delay
        known.stopping_since = now if known.stopping_since is None else known.stopping_since
        ends = known.stopping_since + delay
        self._replace_life(known, self._stop(known, min(ends, now + grace), killed=ends > now + grace))

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        await self.ping(node)
        return [pod.report() for pod in self.pods.values() if pod.ref.node == node]

    async def ping(self, node: str) -> None:
        if node in self.failing:
            raise Unavailable(f"node {node} is told to fail")

    async def stream_logs(self, pod: PodRef, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        known = self.pods.get(pod.uid)
        if known is None:
            raise NoSuchPod(f"no pod {pod.key}")
        if container not in known.containers:
            raise NoSuchContainer(f"no container {container} in pod {pod.key}")
        runs = known.logs.get(container, [])
        number = -2 if options.previous else -1
        if len(runs) < -number:
            which = "previous terminated" if options.previous else "started"
            raise BadRequest(f'{which} container "{container}" in pod "{pod.name}" not found')
        run, sent = runs[number], 0
        while True:
            news = known.news
            while sent < len(run.lines):
                yield run.lines[sent]
                sent += 1
            if run.ended or not options.follow:
                return
            await news.wait()

    def lose(self, uid: str) -> None:
        """The backend drops a pod by itself."""
        pod = self.pods[uid]
        self._forget(pod)
        self.host.pod_gone(pod.ref)

    # --- the script ---

    def _begin(self, pod: MockPod) -> None:
        self._replace_life(pod, self._live(pod))

    def _replace_life(self, pod: MockPod, life: Coroutine[None, None, None]) -> None:
        before = self._lives.pop(pod.ref.uid, None)
        if before is not None:
            before.cancel()
        assert self._group is not None
        self._lives[pod.ref.uid] = self._group.create_task(life, name=f"mock pod {pod.ref.key}")

    async def _live(self, pod: MockPod) -> None:
        """From whatever stage the pod is in to the end of its script."""
        script = pod.script
        while pod.stage is not Stage.ENDED:
            if pod.stage is Stage.STARTING:
                await self._until(pod.since + script.start_delay)
                self._start(pod)
            elif pod.stage is Stage.BACKING_OFF:
                await self._until(pod.since + script.restart_delay)
                pod.restarts += 1
                self._start(pod)
            else:
                await self._run(pod)
                self._end_run(pod, script.exit_code)
                again = pod.restart_policy == "Always" or (pod.restart_policy == "OnFailure" and script.exit_code != 0)
                self._enter(pod, Stage.BACKING_OFF if again else Stage.ENDED)

    async def _run(self, pod: MockPod) -> None:
        """Return when the containers end by themselves."""
        script = pod.script
        written = (self.host.clock.monotonic() - pod.since) // script.log_interval
        while True:
            ready_at = math.inf if pod.ready else pod.since + script.ready_delay
            line_at = pod.since + (written + 1) * script.log_interval
            due = min(ready_at, line_at, pod.since + script.run_for)
            await self._until(due)
            if due >= pod.since + script.run_for:
                return
            if due == ready_at:
                pod.ready = True
                self.host.report(pod.report())
            else:
                written += 1
                pod.write(self.host.clock.now(), f"still runs, line {written:.0f}")

    def _start(self, pod: MockPod) -> None:
        for name in pod.containers:
            pod.logs.setdefault(name, []).append(Log())
        pod.started = self.host.clock.now()
        pod.ready = pod.script.ready_delay <= 0
        for number in range(pod.script.log_lines):
            pod.write(pod.started, f"started, line {number}")
        self._enter(pod, Stage.RUNNING)

    def _end_run(self, pod: MockPod, code: int) -> None:
        pod.last = Terminated(code, started_at=pod.started, finished_at=self.host.clock.now())
        for runs in pod.logs.values():
            runs[-1].ended = True
        pod.tell()

    def _enter(self, pod: MockPod, stage: Stage) -> None:
        pod.stage, pod.since = stage, self.host.clock.monotonic()
        self.host.report(pod.report())

    async def _stop(self, pod: MockPod, moment: float, *, killed: bool) -> None:
        await self._until(moment)
        if pod.stage is not Stage.ENDED:
            self._end_run(pod, 137 if killed else pod.script.exit_code)
            self._enter(pod, Stage.ENDED)
        self._forget(pod)
        self.host.pod_gone(pod.ref)

    def _forget(self, pod: MockPod) -> None:
        self.pods.pop(pod.ref.uid, None)
        self._failures.pop(pod.ref.uid, None)
        life = self._lives.get(pod.ref.uid)
        if life is not None and life is not asyncio.current_task():
            life.cancel()
        self._lives.pop(pod.ref.uid, None)

    async def _until(self, moment: float) -> None:
        if moment == math.inf:
            await asyncio.Event().wait()
        await self.host.clock.sleep(moment - self.host.clock.monotonic())
