"""Pods that come and go at a fixed rate, open streams, and faults at random: the load of the soak, and what is measured meanwhile.

Invariant: what is measured is kept in bounded memory; a pod counts as late only where no fault was near.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from random import Random
from statistics import median, quantiles
from typing import Any, Self

from attrs import define, field, frozen

from tests.support.cable import Cable
from tests.support.kubectl import Kubectl
from tests.support.outside import Outside
from tests.support.stage import Stage
from tests.support.witness import api_client

MINUTES, RATE, SEED = "SOAK_MINUTES", "SOAK_RATE", "SOAK_SEED"
"""Environment: the length, pods a second, and the seed of the faults."""
PODS_A_SECOND = 20.0
LIVES = 8.0
"""Seconds between creation and deletion of a pod."""
SAMPLED_EVERY, TOLD_EVERY = 2.0, 60.0
CYCLE, CALM_FROM, CALM_UNTIL = 30.0, 15.0, 27.0
"""Seconds from one fault to the next, and those after its beginning between which pods count as those of a calm time."""
WINDOW = 45.0
"""Seconds that a window is open, and closed."""
AT_ONCE = 32
"""Requests of the load."""


@frozen
class Fault:
    """What a line does for some seconds: a method of Cable with its arguments."""

    seconds: float
    method: str
    arguments: Mapping[str, float] = field(factory=dict)


FAULTS = (
    Fault(3.0, "cut"),
    Fault(4.0, "silence"),
    Fault(4.0, "deafen"),
    Fault(0.0, "break_once"),
    Fault(2.0, "cut_after", {"count": 2000}),
    Fault(4.0, "slow", {"delay": 0.3}),
)


class Line:
    """A Cable in a process of its own, so that the load does not slow it down; a context manager."""

    def __init__(self, target: int) -> None:
        context = get_context("spawn")
        self._orders, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far, target), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self.port: int = self._orders.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._orders.send(None)
        self._process.join(10)

    def do(self, method: str, **arguments: float) -> None:
        self._orders.send((method, arguments))
        self._orders.recv()


def _serve(orders: Connection, target: int) -> None:
    with Cable(target) as cable:
        orders.send(cable.port)
        for method, arguments in iter(orders.recv, None):
            getattr(cable, method)(**arguments)
            orders.send(method)


@contextmanager
def following(stage: Stage, see: Callable[[Mapping[str, Any]], None]) -> Iterator[None]:
    """Hands each version of a pod of the stage to `see`, in a thread; unlike a witness it keeps none, and decodes nothing but JSON."""
    stop = threading.Event()
    thread = threading.Thread(target=_follow, args=(stage, see, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


def _follow(stage: Stage, see: Callable[[Mapping[str, Any]], None], stop: threading.Event) -> None:
    api = api_client(stage.bound.hub.kubeconfig)
    pods = f"{api.configuration.host}/api/v1/namespaces/{stage.namespace}/pods"
    pool = api.rest_client.pool_manager
    version = json.loads(pool.request("GET", pods).data)["metadata"]["resourceVersion"]
    while not stop.is_set():
        query = f"?watch=true&allowWatchBookmarks=true&timeoutSeconds=5&resourceVersion={version}"
        with closing(pool.request("GET", pods + query, preload_content=False)) as answer:
            for line in answer:
                event = json.loads(line)
                assert event["type"] != "ERROR", event
                version = event["object"]["metadata"]["resourceVersion"]
                see(event["object"])


@define(eq=False)
class Timed:
    """How long pods took from their creation until they ran, by the moment of their creation; pods that no fault was near."""

    began: float
    waiting: dict[str, float] = field(factory=dict)
    took: list[tuple[float, float]] = field(factory=list)
    """Moment and duration."""
    created: int = 0
    late: list[str] = field(factory=list)
    """Did not run as long as they lived."""

    def see(self, pod: Mapping[str, Any]) -> None:
        status = pod.get("status", {})
        if status.get("phase") in ("Running", "Succeeded") and status.get("podIP"):
            moment = self.waiting.pop(pod["metadata"]["name"], None)
            if moment is not None:
                self.took.append((moment, time.monotonic() - moment))

    def end(self, name: str) -> None:
        """The pod is deleted now: one that did not run took at least as long as it lived."""
        moment = self.waiting.pop(name, None)
        if moment is not None:
            self.late.append(name)
            self.took.append((moment, time.monotonic() - moment))

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
    cpu: float = 0.0
    """Seconds."""

    def sample(self, at: float) -> None:
        self.samples.append((at, self.process.rss_mib(), self.process.descriptors()))
        self.cpu = self.process.cpu_seconds()

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
    lines: Sequence[Line]
    rate: float
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
                due = number / self.rate
                if due >= until:
                    return
                await asyncio.sleep(max(0.0, due - self._now()))
                group.create_task(self._pod(number))

    async def _pod(self, number: int) -> None:
        name, node = f"c{number}", self.vnodes[number % len(self.vnodes)]
        body = self.stage.body(name, script={"run-for": "4"} if number % 4 == 0 else {}, restartPolicy="Never")
        # A quarter ends by itself, another gets a token of its ServiceAccount.
        body["spec"] |= {"nodeName": node, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": number % 4 == 1}
        async with self._requests:
            moment = time.monotonic()
            if node in self.timed_vnodes and CALM_FROM < self._now() - self._fault_at < CALM_UNTIL:
                self.timed.waiting[name] = moment
            await self.stage.home.create("pods", body)
        self.timed.created += 1
        await asyncio.sleep(LIVES)
        async with self._requests:
            self.timed.end(name)
            await self.stage.home.delete("pods", name, self.stage.namespace)

    async def troubles(self, until: float) -> None:
        """One fault in each cycle, at a line that the seed chooses."""
        while self._now() < until - CYCLE:
            fault, line = self.random.choice(FAULTS), self.random.choice(self.lines)
            self._fault_at = self._now()
            self.faults[fault.method] = self.faults.get(fault.method, 0) + 1
            line.do(fault.method, **fault.arguments)
            await asyncio.sleep(fault.seconds)
            line.do("mend")
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

    async def measure(self, until: float) -> None:
        shown = TOLD_EVERY
        while (now := self._now()) < until:
            for each in self.measured:
                each.sample(now)
            if now >= shown:
                self._tell(shown - TOLD_EVERY, shown)
                shown += TOLD_EVERY
            await asyncio.sleep(SAMPLED_EVERY)

    def _tell(self, start: float, end: float) -> None:
        sizes = ", ".join(f"{each.name} {each.memory(start, end):.1f} MiB {each.descriptors(start, end):.0f} fds" for each in self.measured)
        p99, late = self.timed.p99(start, end), len(self.timed.late)
        print(f"{end / 60:3.0f} min: {self.timed.created} pods, {late} late, p99 {p99:.2f} s, {sizes}", flush=True)
