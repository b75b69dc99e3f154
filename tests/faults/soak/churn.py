"""Pods that come and go at a fixed rate, open streams, and faults at random: the load of the soak, and what is measured meanwhile.

Invariant: what is measured is kept in bounded memory; a pod counts as late only where no fault was near.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from statistics import median, quantiles

from attrs import define, field, frozen

from tests.support.cable import Cable
from tests.support.kubectl import Kubectl
from tests.support.outside import Outside
from tests.support.stage import Stage
from tests.support.witness import Record, Seen

MINUTES, SEED = "SOAK_MINUTES", "SOAK_SEED"
"""Environment: the length, and the seed of the faults."""
PODS_A_SECOND = 20.0
LIVES = 8.0
"""Seconds between creation and deletion of a pod."""
SAMPLED_EVERY = 2.0
CYCLE, CALM_FROM, CALM_UNTIL = 30.0, 15.0, 27.0
"""Seconds from one fault to the next, and those after its beginning between which pods count as those of a calm time."""
WINDOW = 45.0
"""Seconds that a window is open, and closed."""
AT_ONCE = 32
"""Requests of the load."""


@frozen
class Fault:
    name: str
    seconds: float
    begin: Callable[[Cable], None]


FAULTS = (
    Fault("cut", 3.0, Cable.cut),
    Fault("silent", 4.0, Cable.silence),
    Fault("unanswered", 4.0, Cable.deafen),
    Fault("reset", 0.0, Cable.break_once),
    Fault("torn answer", 2.0, lambda cable: cable.cut_after(2000)),
    Fault("slow", 4.0, lambda cable: cable.slow(delay=0.3)),
)


@define(eq=False)
class Timed:
    """How long pods took from their creation until they ran, by the moment of their creation; pods that no fault was near."""

    began: float
    waiting: dict[str, float] = field(factory=dict)
    took: list[tuple[float, float]] = field(factory=list)
    """Moment and duration."""
    created: int = 0
    _seen: list[Seen] = field(factory=list)

    def digest(self, record: Record) -> None:
        """Takes the events that were seen before the last call: those of since may still be growing."""
        ready, self._seen, record.events = self._seen, record.events, []
        for event in ready:
            name, status = event.object["metadata"]["name"], event.object.get("status", {})
            if name in self.waiting and status.get("phase") in ("Running", "Succeeded") and status.get("podIP"):
                moment = self.waiting.pop(name)
                self.took.append((moment, event.at - moment))

    def p99(self, start: float, end: float) -> float:
        """Of the pods created in that span of seconds since the beginning."""
        of = [took for moment, took in self.took if start <= moment - self.began < end]
        return quantiles(of, n=100)[98] if len(of) > 1 else 0.0


@define(eq=False)
class Measured:
    """Samples of one process: seconds since the beginning, MiB and descriptors."""

    name: str
    process: Outside
    samples: list[tuple[float, float, int]] = field(factory=list)

    def sample(self, at: float) -> None:
        self.samples.append((at, self.process.rss_mib(), self.process.descriptors()))

    def memory(self, start: float, end: float) -> float:
        return median(mib for at, mib, _ in self.samples if start <= at < end)

    def descriptors(self, start: float, end: float) -> float:
        return median(count for at, _, count in self.samples if start <= at < end)


@define(eq=False)
class Churn:
    """`vnodes`: where pods go in turn; those of `timed` count. `streams`: how often each was opened."""

    stage: Stage
    vnodes: Sequence[str]
    timed_vnodes: Sequence[str]
    cables: Sequence[Cable]
    random: Random
    timed: Timed
    measured: Sequence[Measured]
    faults: dict[str, int] = field(factory=dict)
    opened: int = 0
    _fault_at: float = 0.0
    _requests: asyncio.Semaphore = field(factory=lambda: asyncio.Semaphore(AT_ONCE))

    def _now(self) -> float:
        return time.monotonic() - self.timed.began

    async def pods(self, until: float) -> None:
        """Creates pods at the rate and deletes each after its life, whatever is disturbed meanwhile."""
        async with asyncio.TaskGroup() as group:
            for number in itertools.count():
                due = number / PODS_A_SECOND
                if due >= until:
                    return
                await asyncio.sleep(max(0.0, due - self._now()))
                group.create_task(self._pod(number))

    async def _pod(self, number: int) -> None:
        name, node = f"c{number}", self.vnodes[number % len(self.vnodes)]
        body = self.stage.body(name, script={"run-for": "4"} if number % 4 == 0 else {}, restartPolicy="Never")
        body["spec"] |= {"nodeName": node, "terminationGracePeriodSeconds": 1}
        async with self._requests:
            moment = time.monotonic()
            if node in self.timed_vnodes and CALM_FROM < self._now() - self._fault_at < CALM_UNTIL:
                self.timed.waiting[name] = moment
            await self.stage.home.create("pods", body)
        self.timed.created += 1
        await asyncio.sleep(LIVES)
        async with self._requests:
            await self.stage.home.delete("pods", name, self.stage.namespace)

    async def troubles(self, until: float) -> None:
        """One fault in each cycle, at a line that the seed chooses."""
        while self._now() < until - CYCLE:
            fault, cable = self.random.choice(FAULTS), self.random.choice(self.cables)
            self._fault_at = self._now()
            self.faults[fault.name] = self.faults.get(fault.name, 0) + 1
            fault.begin(cable)
            await asyncio.sleep(fault.seconds)
            cable.mend()
            await asyncio.sleep(max(0.0, self._fault_at + CYCLE - self._now()))

    async def windows(self, turn: Callable[[bool], Awaitable[None]], until: float) -> None:
        """Closes a window and opens it again."""
        for is_open in itertools.cycle((False, True)):
            if self._now() + WINDOW > until:
                return
            await turn(is_open)
            await asyncio.sleep(WINDOW)

    async def stream(self, *arguments: str, until: float) -> None:
        """A kubectl that is started again whenever it ends."""
        kubectl = Kubectl(self.stage.bound.hub, self.stage.namespace)
        while (left := until - self._now()) > 0:
            self.opened += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(left), kubectl.kubectl(*arguments, stdin=asyncio.subprocess.PIPE) as process:
                    assert process.stdout is not None
                    while await process.stdout.read(1 << 16):
                        pass
                    # What cannot be opened now is tried again a second later.
                    await asyncio.sleep(1.0)

    async def measure(self, record: Record, until: float) -> None:
        while (now := self._now()) < until:
            self.timed.digest(record)
            for each in self.measured:
                each.sample(now)
            await asyncio.sleep(SAMPLED_EVERY)
        self.timed.digest(record)
        self.timed.digest(record)
