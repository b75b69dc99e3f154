"""A simulated world: API server models, the processes of the product, and the actors around them, run to the end of one schedule.

Invariant: whatever happens is decided by the schedule alone; what happened is recorded, and judged elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import ClassVar
from unittest import mock

from tests.faults.model.server import ApiModel
from tests.faults.model.storage import Change
from tests.faults.simulation.history import Entry, History
from tests.faults.simulation.loop import PROCESS, START, LoopClock, SimulatedLoop, Stuck
from tests.faults.simulation.network import Network
from tests.faults.simulation.sandbox import Ports, sandbox
from tests.faults.simulation.schedule import Fault, Kind, Schedule
from vkubelet.client import rest
from vkubelet.errors import LeadershipLost

OF_PROCESS = frozenset({Kind.STALL, Kind.CLOCK})


class World:
    """Base of all worlds. A subclass builds processes and actors and names its scenarios."""

    name: ClassVar[str]
    scenarios: ClassVar[Mapping[str, str]] = {}
    """Names of scenarios, and the method of each."""
    settles_within: ClassVar[float] = 150.0
    """Seconds after the last fault and the last wish after which the desired state holds."""
    swept_within: ClassVar[float] = 230.0
    """The same where a process may have been started again: it terminates orphans in its third minute (rule `orphans-are-proven`)."""
    prompt_within: ClassVar[float] = 45.0
    """Seconds after the last wish after which the desired state holds when at most a single request failed: what is repaired later was
    forgotten, and found again by a periodic check."""
    summed_within: ClassVar[float] = 110.0
    """Seconds after the last wish after which also amounts are reported that the product reports at most three times in 90 s."""
    quiet_for: ClassVar[float] = 60.0

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.rng = random.Random(f"{schedule.world}/{schedule.scenario}/{schedule.seed}")
        self.loop = SimulatedLoop(self.rng)
        self.clock = LoopClock(self.loop)
        self.network = Network(self.loop, self.rng, schedule.faults)
        self.network.on_crash = self.crash
        self.history = History()
        self.ports = Ports()
        self.clusters: dict[str, ApiModel] = {}
        self._incarnations = 0
        self._creators: dict[tuple[str, str], str] = {}
        self.running: dict[str, str] = {}
        """Process by its role."""
        self.stops: dict[str, Callable[[], None]] = {}
        self.wishes: list[tuple[str, Callable[[], str | None]]] = []

    # --- what a subclass provides ---

    def build(self) -> None:
        """Creates clusters and what exists in them before the first process starts; registers actors by `every`."""
        raise NotImplementedError

    def make(self, role: str) -> tuple[Callable[[], Awaitable[None]], Callable[[], None]]:
        """Creates a process, in its context; returns its main function and what requests its stop."""
        raise NotImplementedError

    # --- helpers for a subclass ---

    def cluster(self, name: str) -> ApiModel:
        """Adds an API server."""
        url = f"https://{name}.simulated:6443"
        model = ApiModel(now=self.now, rng=random.Random(self.rng.random()), url=url)
        model.storage.history = _Recorded(model.storage.history, lambda change: self._record(name, change))
        self.clusters[name] = model
        self.network.add(name, url, model)
        return model

    def now(self) -> datetime:
        """The wall clock of the machines other than that of the process."""
        return START + timedelta(seconds=self.loop.time())

    def every(self, seconds: float, step: Callable[[], None]) -> None:
        """Runs an actor's step again and again, at moments that differ a little."""

        def tick() -> None:
            step()
            self.network.later(seconds * self.rng.uniform(0.8, 1.2), tick)

        self.network.later(seconds * self.rng.random(), tick)

    def mark(self, what: str, about: str) -> None:
        self.history.marks.append((self.loop.time(), what, about))

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def wish(self, text: str, check: Callable[[], str | None]) -> None:
        """States what must hold at the end; `check` returns what is not so, or None."""
        self.wishes.append((text, check))

    def expect(self, text: str, check: Callable[[], str | None]) -> None:
        """States what must hold now, unless a fault may have delayed it."""
        problem = None if self.schedule.faults else check()
        if problem is not None:
            self.history.unmet.append(f"{text}: {problem}")

    # --- processes ---

    def start(self, role: str) -> None:
        self._incarnations += 1
        process = f"{role}-{self._incarnations}"
        self.running[role] = process
        self.history.ours.add(process)
        self.mark("started", process)
        self.loop.start(process, self._serve(role, process))

    async def _serve(self, role: str, process: str) -> None:
        try:
            run, self.stops[role] = self.make(role)
            await run()
        except LeadershipLost:
            self.mark("lost leadership", process)
        except BaseException as error:
            self.mark("exited", process)
            self.history.problems.append(f"{process} exited: {error!r}")
        finally:
            self.network.later(0.0, self._over, role, process)

    def _over(self, role: str, process: str) -> None:
        if self.loop.lives(process):
            left = [f"task {name}" for name in self.loop.tasks_of(process)] + [f"port {port}" for port in self.ports.of(process)]
            self.history.left += [f"{process} left {each}" for each in left]
            self.mark("ended", process)
            if self.running.get(role) == process:
                del self.running[role]
                self.network.later(1.0, self._again, role)

    def _again(self, role: str) -> None:
        if role not in self.running and not self.stopping and self.is_deployed(role):
            self.start(role)

    stopping = False

    def is_deployed(self, role: str) -> bool:
        """Whether the process of a role is started again when it has ended."""
        return True

    def crash(self, process: str, seconds: float) -> None:
        """Kills a process and starts its successor."""
        if not self.loop.lives(process):
            return
        self.loop.kill(process)
        self.mark("killed", process)
        self.ports.release(process)
        for side in self.network.sides.values():
            for stream in [each for each in side.streams if each.process == process]:
                stream.leave()
        for role, running in list(self.running.items()):
            if running == process:
                del self.running[role]
                self.network.later(seconds, self._again, role)

    # --- the run ---

    def run(self) -> History:
        with sandbox(self.rng, self.ports), self._transports(), self._log():
            try:
                self.loop.run_until_complete(self._main())
            except Stuck as error:
                self.history.problems.append(str(error))
            finally:
                over = self._close()
                self.loop.dispose()
        return over

    def _close(self) -> History:
        """Completes the record; what the dropped tasks do on their way out is not part of it."""
        over, self.history = self.history, History()
        over.sent = self.network.writes
        over.injected = list(self.network.injected)
        over.events = dict(self.network.events)
        over.callbacks = self.loop.callbacks
        over.problems += self.loop.problems
        return over

    async def _main(self) -> None:
        for fault in self.schedule.faults:
            if fault.kind in OF_PROCESS or fault.side and fault.kind not in (Kind.DROPPED, Kind.DELAYED, Kind.ENDED):
                self.network.later(float(fault.at), self._begin, fault)
        self.build()
        await getattr(self, self.scenarios[self.schedule.scenario])()
        await self.pause(max(0.0, self.schedule.calm_after - self.loop.time()))
        await self.pause(self.prompt_within)
        if self.schedule.is_brief:
            self._check_wishes(f"{self.prompt_within:g} s after the last change")
        await self.pause(self._settles_within() - self.prompt_within)
        self.history.judged_from = self.loop.time()
        await self.pause(self.quiet_for)
        self.history.ended = self.loop.time()
        self._check_wishes("at the end")
        await self._stop()

    def _settles_within(self) -> float:
        if self.schedule.is_brief:
            return self.summed_within
        return self.swept_within if self.schedule.restarts else self.settles_within

    def _check_wishes(self, moment: str) -> None:
        for text, check in self.wishes:
            if (problem := check()) is not None:
                self.history.unmet.append(f"{text}: {problem} ({moment})")

    async def _stop(self) -> None:
        """Stops all processes in order, which shows whether they leave anything."""
        self.stopping = True
        for role in list(self.running):
            self.stops[role]()
        for _ in range(60):
            if not self.running:
                return
            await self.pause(1.0)
        self.history.left += [f"{process} did not stop within 60 s" for process in self.running.values()]

    def _begin(self, fault: Fault) -> None:
        if fault.kind is Kind.STALL:
            # The senior process: among replicas, the one that leads.
            for process in sorted(self.running.values(), key=_incarnation)[:1]:
                self.mark("stalled", process)
                self.loop.stall(process, fault.value)
            self.network.note(fault.kind, "process")
        elif fault.kind is Kind.CLOCK:
            self.clock.skew += timedelta(seconds=fault.value)
            self.network.note(fault.kind, "process")
        else:
            self.network.begin(fault)

    def _record(self, cluster: str, change: Change) -> None:
        resource, (namespace, name) = change.kind.plural, change.key
        path = f"{resource}/{namespace}/{name}"
        creator = self._creators.setdefault((cluster, path), change.user)
        if change.new is None:
            del self._creators[cluster, path]
        entry = Entry(
            cluster=cluster,
            seconds=self.loop.time(),
            user=change.user,
            verb=change.verb,
            path=change.path,
            object=path,
            resource=resource,
            old=change.old,
            new=change.new,
            creator=creator,
        )
        self.history.entries.append(entry)

    @contextmanager
    def _transports(self) -> Iterator[None]:
        with mock.patch.object(rest, "Transport", self.network.transport):
            yield

    @contextmanager
    def _log(self) -> Iterator[None]:
        handler = _Problems(self)
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)


def _incarnation(process: str) -> int:
    return int(process.rpartition("-")[2])


class _Recorded(list[Change]):
    """The history of a model, which reports each write."""

    def __init__(self, before: Iterable[Change], report: Callable[[Change], None]) -> None:
        super().__init__(before)
        self._report = report

    def append(self, change: Change) -> None:
        super().append(change)
        self._report(change)


class _Problems(logging.Handler):
    """Records log lines of errors that the product did not expect."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get() or "world"
        error = record.exc_info[1] if record.exc_info else None
        self._world.history.problems.append(f"{process} logged: {record.getMessage()} {error!r}")
