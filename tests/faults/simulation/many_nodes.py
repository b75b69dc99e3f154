"""The runtime with thousands of mock nodes in virtual time: what it writes, what it receives, and what it keeps in memory.

Invariant: two runs of one size count the same; only what the runtime itself does is counted, not what fills the cluster.
"""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

from attrs import define, field, frozen

from tests.faults.model.server import ApiModel
from tests.faults.model.storage import Change
from tests.faults.model.watching import Watch, WatchLine
from tests.faults.simulation.census import weight
from tests.faults.simulation.loop import START, LoopClock, SimulatedLoop
from tests.faults.simulation.sandbox import Ports, sandbox
from vkubelet.api.compact import RECENT, compact_later
from vkubelet.client.transport import Call
from vkubelet.control.certificates import Name, self_signed
from vkubelet.node.render import REPORT_EVERY
from vkubelet.runtime import Runtime
from vkubelet.server.certificates import PUBLISHED
from vkubelet.server.settings import ServerSettings
from vkubelet.settings import HealthSettings, Settings
from vkubelet_providers.mock import Mock

LATENCY = 0.002
"""Seconds until a request arrives at the API server."""
_SETTLED, _COMPACTED_EVERY = 20.0, 5.0
"""Seconds after the last Node or pod is ready until work counts as work at rest; and between two compactions of the model."""
_INTERVAL = REPORT_EVERY / timedelta(minutes=1)
"""Minutes in which each node is reported once."""
_NODE, _NAMESPACE = "mock", "default"
_SETTINGS = Settings(
    # 50,000 nodes have no 50,000 ports.
    server=ServerSettings(listening="shared", node_address="10.1.1.1", certificate="self-signed"),
    health=HealthSettings(health_address="", metrics_address=""),
)


@frozen(kw_only=True)
class Tally:
    """What was counted in one phase of `seconds`: requests as in "PATCH nodes/status", and events and their bytes by resource."""

    seconds: float
    requests: Mapping[str, int]
    events: Mapping[str, int]
    event_bytes: Mapping[str, int]

    def writes(self, *, leases: bool = True) -> int:
        """Number of requests that changed something."""
        return sum(count for what, count in self.requests.items() if not what.startswith("GET") and (leases or not what.endswith("leases")))


@frozen(kw_only=True)
class Counted:
    """One run. The memory is what the process keeps: with the nodes alone, with their pods, and with as many pods of other nodes."""

    nodes: int
    pods: int
    registering: Tally
    filling: Tally
    resting: Tally
    node_memory: int
    pod_memory: int
    foreign_memory: int
    stored: Mapping[str, float]
    """Mean size of an object in JSON, by resource."""


@define
class _Meter:
    """Counts the calls and events of one API server model; each call takes `LATENCY` on its way."""

    model: ApiModel
    loop: SimulatedLoop
    requests: Counter[str] = field(factory=Counter)
    events: Counter[str] = field(factory=Counter)
    event_bytes: Counter[str] = field(factory=Counter)
    since: float = 0.0

    async def before(self, call: Call) -> None:
        route = self.model.kinds.route(call.path)
        self.requests[f"{call.method} {'/'.join(filter(None, (route.kind.plural, route.subresource)))}"] += 1
        await self.loop.after(LATENCY)

    async def after(self, call: Call) -> None:
        """Does nothing: no answer is lost."""

    def event(self, watch: Watch, event: WatchLine) -> Iterable[WatchLine]:
        if event.type != "BOOKMARK":
            self.events[watch.kind.plural] += 1
            self.event_bytes[watch.kind.plural] += len(event.line)
        return (event,)

    def read_version(self, call: Call) -> int | None:
        return None

    def take(self) -> Tally:
        """Returns what was counted since the last call."""
        seconds, self.since = self.loop.time() - self.since, self.loop.time()
        found = Tally(seconds=seconds, requests=self.requests, events=self.events, event_bytes=self.event_bytes)
        self.requests, self.events, self.event_bytes = Counter(), Counter(), Counter()
        return found


class _Forgotten(list[Change]):
    """The history of a model that keeps none: a minute of 50,000 nodes has 300,000 changes."""

    def append(self, change: Change) -> None:
        """Drops the change."""


@define
class _Run:
    """One process at one API server model."""

    nodes: int
    pods: int
    loop: SimulatedLoop
    model: ApiModel = field(init=False)
    meter: _Meter = field(init=False)
    clock: LoopClock = field(init=False)

    def __attrs_post_init__(self) -> None:
        loop = self.loop
        self.clock = LoopClock(loop)
        self.model = ApiModel(now=loop.wall, rng=random.Random(1))
        self.model.storage.history = _Forgotten()
        self.meter = _Meter(self.model, loop)
        ca = self_signed(Name("client-ca"), ("192.0.2.1",), now=START).certificate.decode()
        published = {"metadata": {"name": PUBLISHED.name}, "data": {"client-ca-file": ca}}
        self.model.call("POST", f"/api/v1/namespaces/{PUBLISHED.namespace}/configmaps", published, user="kube-apiserver")
        self.model.faults = self.meter

    async def measure(self, minutes: float) -> Counted:
        provider = Mock(Mock.Settings(node=_NODE, nodes=self.nodes, resolve=False))
        runtime = Runtime(provider, _SETTINGS, connection=self.model.connection, clock=self.clock)
        self.model.lend_to(runtime.client, "runtime")
        running = self.loop.create_task(runtime.run())
        await self._until(lambda: self._count("nodes", _is_ready) == self.nodes)
        registering = self.meter.take()
        await self._pass(_SETTLED)
        node_memory = _weight(runtime)
        filling, pod_memory, foreign_memory = self.meter.take(), node_memory, node_memory
        if self.pods:
            self._fill(lambda number: f"{_NODE}-{number % self.nodes}")
            await self._until(lambda: self._count("pods", _runs) == self.pods)
            filling = self.meter.take()
            await self._pass(_SETTLED)
            pod_memory = _weight(runtime)
            self._fill(lambda number: "elsewhere")
            await self._pass(_SETTLED)
            foreign_memory = _weight(runtime)
        if minutes >= _INTERVAL:
            # The first report of a new node may take longer than those that follow.
            await self._pass(1.5 * 60.0 * _INTERVAL)
        self.meter.take()
        await self._pass(60.0 * minutes)
        resting, stored = self.meter.take(), self._stored()
        runtime.stop()
        await running
        return Counted(
            nodes=self.nodes,
            pods=self.pods,
            registering=registering,
            filling=filling,
            resting=resting,
            node_memory=node_memory,
            pod_memory=pod_memory,
            foreign_memory=foreign_memory,
            stored=stored,
        )

    def _fill(self, node: Callable[[int], str]) -> None:
        """Creates pods that are bound to the node of their number."""
        containers = [{"name": "main", "image": "image", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}]
        for number in range(self.pods):
            spec = {"nodeName": node(number), "containers": containers}
            body = {"metadata": {"name": f"{node(number)}-{number}", "labels": {"app": "web"}}, "spec": spec}
            self.model.call("POST", f"/api/v1/namespaces/{_NAMESPACE}/pods", body, user="user")

    def _count(self, plural: str, check: Callable[[Mapping[str, object]], bool]) -> int:
        kind = self.model.kind("", "v1", plural)
        return sum(check(each.body) for each in self.model.storage.table(kind).now.values())

    async def _until(self, check: Callable[[], bool]) -> None:
        while not check():
            await self._pass(1.0)

    async def _pass(self, seconds: float) -> None:
        end = self.loop.time() + seconds
        while (left := end - self.loop.time()) > 0:
            await self.clock.sleep(min(left, _COMPACTED_EVERY))
            self.model.compact()

    def _stored(self) -> Mapping[str, float]:
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for each in self.model.storage.items():
            counts[each.kind.plural] += 1
            sizes[each.kind.plural] += len(each.item)
        return {plural: sizes[plural] / count for plural, count in counts.items()}


def measured(nodes: int, *, pods: int = 0, minutes: float = _INTERVAL) -> Counted:
    """Registers the nodes, runs `pods` on all of them together, and leaves them at rest for so many minutes of virtual time."""
    rng = random.Random(1)
    loop = SimulatedLoop(rng)
    with sandbox(rng, Ports()):
        try:
            return loop.run_until_complete(_Run(nodes, pods, loop).measure(minutes))
        finally:
            loop.dispose()


class _Nothing:
    """Has been decoded after all that a process keeps."""

    def compact(self) -> None:
        """Needs no memory that could be saved."""


def _weight(runtime: Runtime) -> int:
    for _ in range(RECENT):
        compact_later(_Nothing())
    gc.collect()
    return weight(runtime)


def _is_ready(node: Mapping[str, object]) -> bool:
    status: Mapping[str, Iterable[Mapping[str, str]]] = node.get("status", {})  # type: ignore[assignment]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))


def _runs(pod: Mapping[str, object]) -> bool:
    status: Mapping[str, str] = pod.get("status", {})  # type: ignore[assignment]
    return status.get("phase") == "Running"
