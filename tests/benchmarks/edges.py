"""1,000 nodes with 20 pods each at the edges of a lease: how long is the event loop held up, and is any Lease late?

Invariant: the program is the real one between two real API servers; its loop is measured inside of it, its Leases by a watch outside.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from attrs import define, evolve, field

from kubeocean.model import keys
from tests.benchmarks.figures import Figure
from tests.benchmarks.leased import Lease, calm, leased
from tests.benchmarks.stalled import Turns
from tests.support.bound import apply, delete
from tests.support.cable import Cable
from tests.support.load import Load, pod
from tests.support.moments import LEASES, Moments, moments_of
from tests.support.outside import Outside
from tests.support.program import Program, eventually
from tests.support.scrape import Scrape
from tests.support.stall import MOST
from vkubelet.testing.cluster import Site

NODES, PODS = 1000, 20
WAVE = 1000
ON_TIME = 20.0
"""Seconds between two renewals of a Lease: two of its intervals, half of the time after which a node counts as lost."""
WATCHED = 45.0
"""Seconds after an edge in which its work goes on."""
FAIL_OVER: Mapping[str, Any] = {"mode": "FailOver", "afterSeconds": 40}
FORCED = {"forceReclaim": True, "gracefulReclaimPeriodSeconds": 600, "allowOutOfWindowPods": True, "timeZone": "UTC"}
SCRAPES = 5


async def measure(site: Site) -> Sequence[Figure]:
    """A scrape, a window that ends with forced reclaim, the loss of the worker, its return, and the end of the binding."""
    async with served(site, nodes=NODES) as edges:
        await edges.fill(pods=PODS)
        await edges.scraped()
        await edges.window_ends()
        await edges.worker_is_lost()
        await edges.binding_ends()
        return edges.figures()


@define(kw_only=True)
class Edges:
    """`spans`: monotonic seconds of what was looked at, by name."""

    lease: Lease
    cable: Cable
    program: Program
    metered: Path
    metrics: str
    namespace: str
    renewals: Moments
    remaining: Sequence[str] = ()
    """Virtual nodes that exist at the end."""
    spans: dict[str, tuple[float, float]] = field(factory=dict)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.spans[name] = (began, time.monotonic())
        print(f"    {name}: {self.spans[name][1] - began:.0f} s, longest turn {self.longest(name) * 1000:.0f} ms", flush=True)

    async def fill(self, *, pods: int) -> None:
        """Waits until all pods run, and until what follows from that is done."""
        hub, vnodes = self.lease.bound.hub.kubeconfig, self.lease.vnodes
        count = pods * len(vnodes)
        with self.span("filling"), self._pods(lambda body: body["status"].get("phase") == "Running") as running:
            for first in range(0, count, WAVE):
                numbers = range(first, min(first + WAVE, count))
                await Load(hub).send(pod(f"p-{number}", self.namespace, vnodes[number % len(vnodes)]) for number in numbers)
                # The next ones follow before the last of these run, which wait for one another.
                wanted = count if numbers.stop == count else numbers.stop - WAVE // 2
                await eventually(lambda end=wanted: len(running) >= end, f"{wanted} pods run", seconds=600, every=0.2)
                print(f"    {len(running)} pods run", flush=True)
        await calm(self.program, cores=0.5, seconds=600)

    async def scraped(self) -> None:
        with self.span("scrape"):
            for _ in range(SCRAPES):
                found = await asyncio.to_thread(Scrape.of, self.metrics)
                assert len(found.samples) > len(self.lease.nodes)
                await asyncio.sleep(1)

    async def window_ends(self) -> None:
        """By the clock; then the policy leases all day again."""
        bound, now = self.lease.bound, datetime.now(UTC)
        last = now + timedelta(minutes=0 if now.second < 20 else 1)
        edge = last.replace(second=0, microsecond=0) + timedelta(minutes=1)
        window = {"start": f"{last - timedelta(minutes=10):%H:%M}", "end": f"{last:%H:%M}"}
        await apply(bound.worker, bound.policy(timeWindows=[window], **FORCED))
        await asyncio.sleep(max(0.0, (edge - datetime.now(UTC)).total_seconds() - 2))
        with self._pods(_is_deleted) as deleted:
            with self.span("window_end"):
                await eventually(lambda: len(deleted) > 0, "the first pods are reclaimed", seconds=60)
                await asyncio.sleep(WATCHED)
            assert len(deleted) > WATCHED, "pods are reclaimed one after the other"
            with self.span("window_begin"):
                await bound.worker.kubectl("replace", "-f", "-", stdin=json.dumps(await self._all_day()))
                await asyncio.sleep(WATCHED / 3)
            await eventually(lambda: deleted.gone.keys() >= deleted.times.keys(), "the reclaimed pods are gone", seconds=600)
        await calm(self.program, cores=0.5, seconds=600)

    async def worker_is_lost(self) -> None:
        with self._pods(_is_deleted) as deleted, self._nodes(lambda body: not _is_held(body)) as released:
            with self.span("fail_over"):
                self.cable.silence()
                silent = time.monotonic()
                await eventually(lambda: len(deleted) > 0, "pods fail over", seconds=240)
                assert time.monotonic() - silent >= FAIL_OVER["afterSeconds"], f"pods failed over early: {deleted.times}"
                await asyncio.sleep(WATCHED)
            assert len(deleted) > WATCHED, "pods are given up one after the other"
            with self.span("worker_returns"):
                back = time.monotonic()
                self.cable.mend()
                last = f"all {len(self.lease.vnodes)} nodes are released"
                await eventually(lambda: _seen_since(released, back, self.lease.vnodes), last, seconds=300, every=0.5)
        await calm(self.program, cores=0.5, seconds=600)

    async def binding_ends(self) -> None:
        bound = self.lease.bound
        with self._pods(_is_deleted) as deleted, self.span("unbinding"):
            await delete(bound.hub, "clusterbinding", bound.name, "--wait=false")
            await eventually(lambda: len(deleted) > 0, "pods are evicted", seconds=120)
            await asyncio.sleep(WATCHED)
        assert len(deleted) > WATCHED, "pods are evicted one after the other"
        # A node without pods is deleted, and its Lease with it.
        nodes = await Load(bound.hub.kubeconfig).get("/api/v1/nodes")
        self.remaining = [node["metadata"]["name"] for node in nodes["items"] if not _is_deleted(node)]

    def figures(self) -> Sequence[Figure]:
        names = [name for name in self.spans if name != "filling"]
        turns = {name: self.longest(name) for name in names}
        pauses = {name: self.renewals.longest(self.remaining, since=began, until=ended) for name, (began, ended) in self.spans.items()}
        return [
            Figure(name="kubeocean_edges_stall", value=max(turns.values()), unit="s", most=MOST),
            *(Figure(name=f"kubeocean_edges_stall_{name}", value=turns[name], unit="s", most=MOST) for name in names),
            *(Figure(name=f"kubeocean_edges_lease_pause_{name}", value=pauses[name], unit="s", most=ON_TIME) for name in names),
            Figure(name="kubeocean_edges_stall_filling", value=self.longest("filling"), unit="s"),
            Figure(name="kubeocean_edges_rss", value=Outside(self.program.process.pid).rss_mib(), unit="MiB"),
        ]

    def longest(self, name: str) -> float:
        """Seconds of CPU of the longest turn; what long turns did goes to standard output."""
        return Turns(self.metered).longest(*self.spans[name])

    def _pods(self, when: Callable[[Mapping[str, Any]], bool]) -> Any:
        return moments_of(self.lease.bound.hub.kubeconfig, f"/api/v1/namespaces/{self.namespace}/pods", when=when)

    def _nodes(self, when: Callable[[Mapping[str, Any]], bool]) -> Any:
        return moments_of(self.lease.bound.hub.kubeconfig, "/api/v1/nodes", when=when)

    async def _all_day(self) -> Mapping[str, Any]:
        bound = self.lease.bound
        policy = bound.policy()
        now = json.loads(await bound.worker.kubectl("get", "resourceleasingpolicy", policy["metadata"]["name"], "-o", "json"))
        return {**now, "spec": policy["spec"]}


def _is_deleted(body: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in body["metadata"]


def _is_held(body: Mapping[str, Any]) -> bool:
    return any(taint["key"] == keys.TAINT_WORKER_UNREACHABLE for taint in body["spec"].get("taints") or ())


def _seen_since(seen: Moments, moment: float, names: Sequence[str]) -> bool:
    return all(seen.times.get(name, [0.0])[-1] >= moment for name in names)


@asynccontextmanager
async def served(site: Site, *, nodes: int) -> AsyncIterator[Edges]:
    """A binding served by a metered program, which reaches the worker through a line that can be cut."""
    with Cable(target=0) as cable:
        async with leased(site, "edges", nodes=nodes, worker_port=cable.lead_to, onUnreachable=FAIL_OVER) as lease:
            bound, metrics = lease.bound, f"127.0.0.1:{site.free_port()}"
            settings = {**bound.settings, "health": {"health_address": "127.0.0.1:0", "metrics_address": metrics}}
            run, metered = evolve(bound, settings=settings).program(), bound.directory / "turns.jsonl"
            program = Program("tests.benchmarks.metered", str(metered), *run.arguments, log=run.log)
            with moments_of(bound.hub.kubeconfig, LEASES) as renewals:
                async with lease.kubeocean(program, seconds=600):
                    yield Edges(
                        lease=lease,
                        cable=cable,
                        program=program,
                        metered=metered,
                        metrics=metrics,
                        namespace=await bound.hub.namespace("edges"),
                        renewals=renewals,
                    )
