"""A simulated world: API server models, the processes of the product, and the actors around them, run to the end of one schedule.

Invariant: whatever happens is decided by the schedule alone; what happened is recorded, and judged elsewhere.
"""

from __future__ import annotations

import logging
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import count
from typing import ClassVar
from unittest import mock

from tests.faults.model.server import ApiModel
from tests.faults.model.storage import Change
from tests.faults.simulation.branches import Branch, of_second
from tests.faults.simulation.history import Entry, History
from tests.faults.simulation.loop import PROCESS, LoopClock, SimulatedLoop, Stuck
from tests.faults.simulation.network import Network, address_of
from tests.faults.simulation.oracles import is_renewal
from tests.faults.simulation.sandbox import Ports, sandbox
from tests.faults.simulation.schedule import Fault, Kind, Schedule
from vkubelet.client import rest
from vkubelet.errors import LeadershipLost
from vkubelet.process import Runs

LIST_INTERVAL = 20.0
"""Seconds between two listings of a backend: a third of the default, so that orphans are terminated sooner."""
_POLLED_EVERY = 5.0


class World:
    """Base of all worlds. A subclass builds processes and actors and names its scenarios."""

    name: ClassVar[str]
    scenarios: ClassVar[Mapping[str, str]] = {}
    """Names of scenarios, and the method of each."""
    settles_within: ClassVar[float] = 150.0
    """Seconds after the last fault and the last wish after which the desired state holds."""
    swept_within: ClassVar[float] = 150.0 + 4 * LIST_INTERVAL
    """The same where a process may have been started again: it terminates orphans after two listings (rule `orphans-are-proven`)."""
    prompt_within: ClassVar[float] = 45.0
    """Seconds after the last wish after which the desired state holds when at most a single request failed: what is repaired later was
    forgotten, and found again by a periodic check."""
    summed_within: ClassVar[float] = 110.0
    """Seconds after the last wish after which also amounts are reported that the product reports at most three times in 90 s."""
    quiet_for: ClassVar[float] = 60.0

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.scenario, seed = branch.schedules[0].scenario, branch.schedules[0].seed
        self.rng = random.Random(f"{self.name}/{self.scenario}/{seed}")
        self.loop = SimulatedLoop(self.rng)
        self.clock = LoopClock(self.loop)
        self.network = Network(self.loop, self.rng, self.branch)
        self.network.on_crash = self.crash
        self.history = History()
        self.ports = Ports()
        self.clusters: dict[str, ApiModel] = {}
        self._writes: Counter[str] = Counter()
        """Number of writes by cluster, renewals of Leases not counted."""
        self._waiting: defaultdict[str, list[tuple[float, Callable[[], None]]]] = defaultdict(list)
        self._incarnations = 0
        self._restarted = -math.inf
        """Second at which a process was started again."""
        self._checked = 0
        """Number of writes up to the last check whether all is quiet."""
        self._creators: dict[tuple[str, str], str] = {}
        self.running: dict[str, str] = {}
        """Process by its role."""
        self.made: dict[str, Runs] = {}
        """What runs in them, by role."""
        self.wishes: list[tuple[str, Callable[[], str | None]]] = []

    # --- what a subclass provides ---

    def build(self) -> None:
        """Creates clusters and what exists in them before the first process starts; registers actors by `every`."""
        raise NotImplementedError

    def make(self, role: str) -> Runs:
        """Creates a process, in its context."""
        raise NotImplementedError

    # --- helpers for a subclass ---

    def cluster(self, name: str) -> ApiModel:
        """Adds an API server."""
        url = address_of(name)
        model = ApiModel(now=self.now, rng=random.Random(self.rng.random()), url=url)
        model.storage.history = _Recorded(model.storage.history, lambda change: self._record(name, change))
        self.clusters[name] = model
        self.network.add(name, url, model)
        return model

    def now(self) -> datetime:
        """The wall clock of the machines other than that of the process."""
        return self.loop.wall()

    def every(self, seconds: float, cluster: str, step: Callable[[], bool]) -> None:
        """Runs an actor's step again and again, at moments that differ a little; after False it waits for a write to its cluster."""

        def tick() -> None:
            before = self._writes[cluster]
            if step() or self._writes[cluster] != before:
                self.network.later(seconds * self.rng.uniform(0.8, 1.2), tick)
            else:
                self._waiting[cluster].append((seconds, tick))

        self.network.later(seconds * self.rng.random(), tick)

    def notify(self, cluster: str) -> None:
        """Lets the actors of a cluster that wait for a write run their next step."""
        self._writes[cluster] += 1
        for seconds, tick in self._waiting.pop(cluster, ()):
            self.network.later(seconds * self.rng.random(), tick)

    def mark(self, what: str, about: str) -> None:
        self.history.marks.append((self.loop.time(), what, about))

    async def pause(self, seconds: float) -> None:
        await self.clock.sleep(seconds)

    def wish(self, text: str, check: Callable[[], str | None]) -> None:
        """States what must hold at the end; `check` returns what is not so, or None."""
        self.wishes.append((text, check))

    def expect(self, text: str, check: Callable[[], str | None]) -> None:
        """States what must hold now, unless a fault may have delayed it."""
        if (problem := check()) is not None:
            self.history.unexpected.append(f"{text}: {problem}")

    # --- processes ---

    def start(self, role: str) -> None:
        self._incarnations += 1
        if self.loop.time() > 0.0:
            self._restarted = self.loop.time()
        process = f"{role}-{self._incarnations}"
        self.running[role] = process
        self.history.ours.add(process)
        self.mark("started", process)
        self.loop.start(process, self._serve(role, process))

    async def _serve(self, role: str, process: str) -> None:
        try:
            made = self.made[role] = self.make(role)
            await made.run()
            if made.overdue.is_set():
                self.history.problems.append(f"{process} would have exited: tasks did not end when they were cancelled")
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
            left += [f"client of {url}" for (owner, url), number in self.network.open.items() if owner == process and number]
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

    def run(self, *, disposes: bool = True) -> History:
        """Runs to the end, and then drops what still runs unless the process ends anyway. The history is that of `branch.schedules`."""
        with sandbox(self.rng, self.ports), self._transports(), self._log():
            try:
                self.loop.run_until_complete(self._main())
            except Stuck as error:
                self.history.problems.append(str(error))
            finally:
                over = self._close()
                if disposes:
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
        self.loop.at_moments(self.branch.seconds(), self._begin_at)
        self.build()
        await getattr(self, self.scenarios[self.scenario])()
        calm_after, brief, settles = self.branch.common(lambda each: (each.calm_after, each.is_brief, self._settles_within(each)))
        await self.pause(max(0.0, calm_after - self.loop.time()))
        await self._settle(self.loop.time(), brief=brief, within=settles)
        self.history.ended = self.loop.time()
        self._check_wishes("at the end")
        await self._stop()

    def _settles_within(self, schedule: Schedule) -> float:
        if schedule.is_brief:
            return self.summed_within
        return self.swept_within if schedule.restarts else self.settles_within

    async def _settle(self, since: float, *, brief: bool, within: float) -> None:
        """Waits until the desired state holds, at most so long, and has held for a minute in which only renewals are written.

        Then the last process that was started again has had the time to terminate orphans. Without faults the whole time is waited for.
        """
        until = since + within
        begin = until if self.branch.common(lambda each: not each.faults) else since
        for number in count(1):
            now = self.loop.time()
            if now >= begin + self.quiet_for and (now >= until or now > self._restarted + 4 * LIST_INTERVAL):
                break
            await self.pause(_POLLED_EVERY)
            now = self.loop.time()
            if brief and number * _POLLED_EVERY == self.prompt_within:
                self._check_wishes(f"{self.prompt_within:g} s after the last change")
            if now <= until and begin < until and not self._is_quiet():
                begin = now
        self.history.judged_from = begin

    def _is_quiet(self) -> bool:
        """Whether the desired state holds, and only renewals were written since the last check."""
        entries = self.history.entries
        written = entries[self._checked :]
        self._checked = len(entries)
        return all(map(is_renewal, written)) and all(check() is None for _, check in self.wishes)

    def _check_wishes(self, moment: str) -> None:
        for text, check in self.wishes:
            if (problem := check()) is not None:
                self.history.unmet.append(f"{text}: {problem} ({moment})")

    async def _stop(self) -> None:
        """Stops all processes in order, which shows whether they leave anything."""
        self.stopping = True
        for role in list(self.running):
            self.made[role].stop()
        for _ in range(60):
            if not self.running:
                return
            await self.pause(1.0)
        self.history.left += [f"{process} did not stop within 60 s" for process in self.running.values()]

    def _begin_at(self, second: float) -> None:
        for fault in self.branch.faults_at(of_second(int(second))):
            self._begin(fault)

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
        if resource != "leases":
            self.notify(cluster)

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
