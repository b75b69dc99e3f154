"""Many pods at once on one mock node: how fast do they run, compared with their mere creation when no program runs them?

The ideal runtime shows which ratio a program can reach that sends nothing but the one status of each pod.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from statistics import median

from attrs import define, field

from tests.benchmarks import ideal_runtime
from tests.benchmarks.bare import beside
from tests.benchmarks.figures import Figure
from tests.benchmarks.planes import fleet_on_new_plane
from tests.integration.runtime.fleet import Fleet
from tests.support.load import Load, Request, pod, remove_pods
from tests.support.moments import moments_of
from tests.support.outside import Meter, Outside
from tests.support.program import eventually
from vkubelet.testing.cluster import Site

PODS = 300
ROUNDS = 7
IDEAL = "ideal"
"""The node of the ideal runtime, which has no Node."""


@define
class Bursts:
    """Rounds of a bare and a served burst on one node, and one by the ideal runtime; each in a namespace of its own, whose pods stay until
    `clear`."""

    fleet: Fleet
    node: str
    process: Outside
    ideal: Outside | None = None
    pods: int = PODS
    ratios: list[float] = field(factory=list)
    ideal_ratios: list[float] = field(factory=list)
    rates: list[float] = field(factory=list)
    bare_rates: list[float] = field(factory=list)
    cpu: list[float] = field(factory=list)
    """Seconds of CPU of the process per pod."""
    ideal_cpu: list[float] = field(factory=list)
    _namespaces: list[str] = field(factory=list)

    async def round(self) -> None:
        bare = await self._bare()
        served = await self._served(self.node, self.process, self.cpu)
        if self.ideal is not None:
            self.ideal_ratios.append(await self._served(IDEAL, self.ideal, self.ideal_cpu) / bare)
        self.bare_rates.append(bare)
        self.rates.append(served)
        self.ratios.append(served / bare)

    async def clear(self) -> None:
        """Remove the pods of all rounds."""
        for namespace in self._namespaces:
            await remove_pods(self.fleet.plane.kubeconfig, namespace)
        self._namespaces.clear()

    async def _namespace(self, prefix: str) -> str:
        self._namespaces.append(await self.fleet.plane.namespace(prefix))
        return self._namespaces[-1]

    async def _bare(self) -> float:
        """Pods created in a second, bound to a node that nobody serves."""
        namespace = await self._namespace("bare")
        began = time.monotonic()
        answered = await Load(self.fleet.plane.kubeconfig).send(self._creations(namespace, "nobody"))
        return self.pods / (max(answered) - began)

    async def _served(self, node: str, process: Outside, cpu: list[float]) -> float:
        """Pods in a second from the first creation until the API server says that the last one runs.

        It is asked for one pod that does not, which costs it nothing; to be told of each would be work that the other half does not have.
        """
        namespace = await self._namespace("served")
        load, meter, began = Load(self.fleet.plane.kubeconfig), Meter(process), time.monotonic()
        await load.send(self._creations(namespace, node))
        left = f"/api/v1/namespaces/{namespace}/pods?fieldSelector=status.phase!=Running&limit=1"
        await eventually(lambda: _empty(load, left), f"{self.pods} pods run", seconds=120, every=0.01)
        rate = self.pods / (time.monotonic() - began)
        cpu.append(meter.cpu / self.pods)
        return rate

    async def latencies(self) -> Sequence[float]:
        """Of one more burst, by a watch: the seconds from the answer to each creation until the pod was told to run, in order."""
        namespace = await self._namespace("watched")
        path = f"/api/v1/namespaces/{namespace}/pods"
        with moments_of(self.fleet.plane.kubeconfig, path, fields="status.phase=Running") as running:
            answered = await Load(self.fleet.plane.kubeconfig).send(self._creations(namespace, self.node))
            await eventually(lambda: len(running) == self.pods, f"{self.pods} pods run", seconds=120, every=0.05)
        return sorted(running.first(f"p-{number}") - answered[number] for number in range(self.pods))

    def _creations(self, namespace: str, node: str) -> Sequence[Request]:
        return [pod(f"p-{number}", namespace, node) for number in range(self.pods)]


async def _empty(load: Load, path: str) -> bool:
    return not (await load.get(path))["items"]


async def warm_up(bursts: Bursts) -> None:
    """A round that is not counted: an API server that has just started is slower."""
    first = Bursts(bursts.fleet, bursts.node, bursts.process, bursts.ideal)
    await first.round()
    await first.clear()


async def measure(site: Site) -> Sequence[Figure]:
    """The medians of some rounds after one that is not counted."""
    async with fleet_on_new_plane(site, "burst") as fleet:
        node = fleet.name("m")
        with fleet.program("mock", node={}, provider={"node": node, "resolve": False}) as program:
            await fleet.ready([node], program=program)
            async with beside(ideal_runtime.__name__, str(fleet.kubeconfig), IDEAL) as ideal:
                bursts = Bursts(fleet, node, Outside(program.process.pid), Outside(ideal))
                await warm_up(bursts)
                for _ in range(ROUNDS):
                    await bursts.round()
                    await bursts.clear()
                    await asyncio.sleep(1)
            latencies = await bursts.latencies()
    return [
        Figure(
            name="runtime_burst",
            value=median(bursts.rates),
            unit="pods/s",
            ratio_to="bare creation",
            ratio=median(bursts.ratios),
            least_ratio=0.5,
        ),
        Figure(name="runtime_burst_bare", value=median(bursts.bare_rates), unit="pods/s"),
        Figure(name="runtime_burst_ideal", value=median(bursts.ideal_ratios), unit="of bare creation"),
        Figure(name="runtime_burst_p99", value=latencies[int(0.99 * len(latencies))], unit="s"),
        Figure(name="runtime_burst_cpu", value=median(bursts.cpu) * 1000, unit="ms/pod"),
        Figure(name="runtime_burst_ideal_cpu", value=median(bursts.ideal_cpu) * 1000, unit="ms/pod"),
    ]
