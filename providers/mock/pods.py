"""Pods of the mock provider: their stage, their logs, and their reports.

Invariant: no clock and no task here; time is passed in as an argument.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime

from attrs import define, field

from vkubelet.provider import ContainerReport, NoSuchContainer, Pod, PodRef, PodReport, Running, Terminated, Waiting
from vkubelet.stats import ContainerStats, Filesystem, Network, PodStats, Usage
from vkubelet_providers.mock.files import Files
from vkubelet_providers.mock.script import Script
from vkubelet_providers.mock.usage import Meter, Probe


class Stage(enum.Enum):
    """Stage of all containers of a pod."""

    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing off"
    ENDED = "ended"


@define
class Log:
    """Output of one run of one container."""

    lines: list[bytes] = field(factory=list)
    ended: bool = False


@define
class Ephemeral:
    """A container that was added to the running pod; it is never restarted."""

    started: datetime | None = None
    ended: Terminated | None = None

    @property
    def runs(self) -> bool:
        return self.started is not None and self.ended is None

    @property
    def state(self) -> Waiting | Running | Terminated:
        return self.ended or (Running(self.started) if self.started is not None else Waiting())


@define(eq=False)
class MockPod:
    """One pod of the backend. `since` is the monotonic time at which the stage started."""

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
    ephemeral: dict[str, Ephemeral] = field(factory=dict)
    logs: dict[str, list[Log]] = field(factory=dict)
    files: dict[str, Files] = field(factory=dict)
    meter: Meter = field(factory=Meter)
    """Meter of each container: all use the same."""
    probes: Mapping[str, Sequence[Probe]] = field(factory=dict)
    hostname: str = ""
    changed: asyncio.Event = field(factory=asyncio.Event)

    @classmethod
    def of(cls, pod: Pod, script: Script, *, now: float) -> MockPod:
        spec = pod.spec
        init = spec.get("initContainers", ())
        sidecars = [c["name"] for c in init if c.get("restartPolicy") == "Always"]
        return cls(
            pod.ref,
            script,
            spec.get("restartPolicy", "Always"),
            [c["name"] for c in init if c.get("restartPolicy") != "Always"],
            [*sidecars, *(c["name"] for c in spec["containers"])],
            spec.get("hostNetwork", False),
            now,
            probes={c["name"]: Probe.of(c) for c in spec["containers"]},
            hostname=spec.get("hostname") or pod.ref.name,
        )

    # --- what it is ---

    def report(self) -> PodReport:
        running = self.stage is Stage.RUNNING
        state = self.state
        last = self.last if state is not self.last else None
        done = [ContainerReport(name, Terminated(0)) for name in self.init if self.stage is not Stage.STARTING]
        apps = [
            ContainerReport(name, state, id=self.id_of(name), restarts=self.restarts, ready=running and self.ready, last=last)
            for name in self.containers
        ]
        added = [ContainerReport(name, one.state, id=self.id_of(name), ready=False) for name, one in self.ephemeral.items()]
        hidden = self.host_network or self.stage is Stage.STARTING
        return PodReport(self.ref, (*done, *apps, *added), () if hidden else (address_of(self.ref.uid),))

    @property
    def state(self) -> Waiting | Running | Terminated:
        """State of every container but ephemeral ones."""
        if self.stage is Stage.STARTING:
            return Waiting()
        if self.stage is Stage.BACKING_OFF:
            return Waiting("CrashLoopBackOff", "back-off before the next start")
        if self.stage is Stage.RUNNING or self.last is None:
            return Running(self.started)
        return self.last

    def id_of(self, container: str) -> str:
        """Returns another id for each start, as any container engine does; so it also shows that the backend had dropped the pod."""
        started = self.ephemeral[container].started if container in self.ephemeral else self.started
        return f"mock://{self.ref.uid}/{container}/{started:%Y%m%dT%H%M%S.%f}" if started is not None else ""

    def runs(self, container: str) -> bool:
        """Checks whether the container runs. Raises NoSuchContainer."""
        if container in self.ephemeral:
            return self.ephemeral[container].runs
        if container not in self.containers:
            raise NoSuchContainer(f'container "{container}" not found in pod "{self.ref.name}"')
        return self.stage is Stage.RUNNING

    def running(self) -> Iterator[tuple[str, datetime]]:
        """Yields name and start of every running container."""
        if self.stage is Stage.RUNNING and self.started is not None:
            yield from ((name, self.started) for name in self.containers)
        yield from ((name, one.started) for name, one in self.ephemeral.items() if one.runs and one.started is not None)

    def files_of(self, container: str) -> Files:
        """Returns the files of a container, which are kept as long as the pod, also across restarts."""
        return self.files.setdefault(container, Files(self.hostname))

    def stats(self, *, wall: datetime, now: float) -> PodStats:
        """Returns the resource usage of its running containers."""
        network = Network("eth0", received_bytes=0, receive_errors=0, sent_bytes=0, send_errors=0)
        written = sum(files.size for files in self.files.values())
        containers = [self._container_stats(name, started, wall=wall, now=now) for name, started in self.running()]
        return PodStats(
            self.ref,
            containers,
            started_at=self.started,
            network=None if self.host_network else network,
            ephemeral_storage=Filesystem(used_bytes=written),
            processes=len(containers),
        )

    def _container_stats(self, name: str, started: datetime, *, wall: datetime, now: float) -> ContainerStats:
        memory = self.script.memory_usage
        usage = Usage(
            cpu_seconds=self.meter.read(now),
            cpu_cores=self.meter.rate,
            memory_bytes=memory,
            memory_usage_bytes=memory,
            rss_bytes=memory,
            page_faults=0,
            major_page_faults=0,
        )
        return ContainerStats(
            name,
            usage,
            started_at=started,
            id=self.id_of(name),
            rootfs=Filesystem(used_bytes=self.files[name].size if name in self.files else 0),
            logs=Filesystem(used_bytes=sum(len(line) for run in self.logs[name] for line in run.lines)),
            probes=[probe.count((wall - started).total_seconds()) for probe in self.probes.get(name, ())],
        )

    # --- events ---

    def add_ephemeral(self, pod: Pod) -> bool:
        """Adds ephemeral containers; returns whether there is a new one."""
        names = [container["name"] for container in pod.spec.get("ephemeralContainers", ())]
        new = [name for name in names if name not in self.ephemeral]
        self.ephemeral.update((name, Ephemeral()) for name in new)
        return bool(new)

    def start_ephemeral(self, now: datetime) -> None:
        """Starts waiting ephemeral containers in a pod that has started and not terminated."""
        for name, one in self.ephemeral.items():
            if one.started is None and self.stage in (Stage.RUNNING, Stage.BACKING_OFF):
                one.started = now
                self.logs[name] = [Log()]
                self._line(name, now, "started, line 0")
        self.notify()

    def start(self, now: datetime, *, lines: int, ready: bool) -> None:
        """Starts another run of all containers."""
        self.started, self.ready = now, ready
        for name in self.containers:
            self.logs.setdefault(name, []).append(Log())
        for number in range(lines):
            self.write(now, f"started, line {number}")

    def end_run(self, code: int, now: datetime) -> None:
        self.last = Terminated(code, started_at=self.started, finished_at=now)
        for name in self.containers:
            for run in self.logs.get(name, ())[-1:]:
                run.ended = True
        self.notify()

    def end_ephemeral(self, name: str, code: int, now: datetime) -> None:
        one = self.ephemeral[name]
        if one.runs:
            one.ended = Terminated(code, started_at=one.started, finished_at=now)
            self.logs[name][-1].ended = True
            self.notify()

    def write(self, now: datetime, text: str) -> None:
        """Writes one line to the log of every container."""
        for name in self.containers:
            self._line(name, now, text)
        self.notify()

    def _line(self, name: str, now: datetime, text: str) -> None:
        template, line = self.script.log_text, f"{name}: {text}"
        if template:
            line = template.replace("{hostname}", self.hostname).replace("{node}", self.ref.node).replace("{container}", name)
        self.logs[name][-1].lines.append(f"{now.isoformat()} {line}\n".encode())

    async def lines(self, run: Log, *, follow: bool, start: int = 0) -> AsyncIterator[bytes]:
        """Yields the lines of one run, and with `follow` those written until it terminates."""
        sent = start
        while True:
            changed = self.changed
            while sent < len(run.lines):
                yield run.lines[sent]
                sent += 1
            if run.ended or not follow:
                return
            await changed.wait()

    def notify(self) -> None:
        """Wakes all followers of a log."""
        self.changed.set()
        self.changed = asyncio.Event()


def address_of(uid: str) -> str:
    """Returns a private address derived from the UID."""
    a, b, c = hashlib.blake2s(uid.encode(), digest_size=3).digest()
    return f"10.{a}.{b}.{max(1, c % 255)}"
