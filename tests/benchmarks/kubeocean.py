"""Pods leased from a worker: how fast do they run, compared with the ideal pipeline, and what do they cost?"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from tests.benchmarks.figures import Figure
from tests.benchmarks.leased import Bursts, Lease, calm, leased
from tests.support.audit import Audit, Call
from tests.support.load import Load, pod
from tests.support.moments import Moments, moments_of
from tests.support.outside import Meter, Outside
from tests.support.program import Program, eventually
from tests.support.stage import physical_name
from vkubelet.node.render import REPORT_EVERY
from vkubelet.testing.cluster import ControlPlane, Site

NODES = 50
ROUNDS = 3
STEADY_RATE = 20
STEADY = 180
"""Seconds."""
IDLE = REPORT_EVERY
"""One interval, in which each node is reported once."""
QUIET = 10.0
"""Seconds without a write but of leases and statuses of nodes; then nothing follows any more from what was done."""
AT_REST = ("leases", "nodes/status")
"""What is written of a node that does not change."""
CROWD = 10_000
CROWD_NODES = 500
WAVE = 1_000


async def burst(site: Site) -> Sequence[Figure]:
    """500 pods on 50 simulated nodes, by the ideal pipeline and by the real program in turn; medians after a round that is not counted.

    Those of the ideal pipeline are removed by the ideal deleter.
    """
    async with leased(site, "burst", nodes=NODES) as lease:
        await Bursts(lease, pods=100).round()
        bursts = Bursts(lease)
        for _ in range(ROUNDS):
            await bursts.round()
    pairs = list(zip(bursts.ours, bursts.ideal, strict=True))
    removals = [(ours.removal, ideal.removal) for ours, ideal in pairs if ours.removal and ideal.removal]
    return [
        Figure(
            name="kubeocean_burst",
            value=median(ours.rate for ours in bursts.ours),
            unit="pods/s",
            ratio_to="ideal pipeline",
            ratio=median(ours.rate / ideal.rate for ours, ideal in pairs),
            least_ratio=0.85,
        ),
        Figure(
            name="kubeocean_burst_p99",
            value=median(ours.p99 for ours in bursts.ours),
            unit="s",
            ratio_to="ideal pipeline",
            ratio=median(ours.p99 / ideal.p99 for ours, ideal in pairs),
            most_ratio=1.25,
        ),
        Figure(name="kubeocean_burst_ideal", value=median(ideal.rate for ideal in bursts.ideal), unit="pods/s"),
        _cpu("kubeocean_burst_cpu", [(ours.cpu, ideal.cpu) for ours, ideal in pairs], "ideal pipeline", most_ratio=2),
        Figure(name="kubeocean_burst_ideal_cpu", value=median(ideal.cpu for ideal in bursts.ideal) * 1000, unit="ms/pod"),
        Figure(
            name="kubeocean_burst_deletion",
            value=median(ours.rate for ours, _ in removals),
            unit="pods/s",
            ratio_to="ideal deleter",
            ratio=median(ours.rate / ideal.rate for ours, ideal in removals),
            least_ratio=0.8,
        ),
        _cpu("kubeocean_burst_deletion_cpu", [(ours.cpu, ideal.cpu) for ours, ideal in removals], "ideal deleter"),
        Figure(name="kubeocean_burst_deletion_ideal_cpu", value=median(ideal.cpu for _, ideal in removals) * 1000, unit="ms/pod"),
    ]


def _cpu(name: str, pairs: Sequence[tuple[float, float]], ideal: str, *, most_ratio: float | None = None) -> Figure:
    """The CPU of our process for each pod, beside that of the ideal one; `pairs` are the seconds of both in each round."""
    ratio = median(ours / other for ours, other in pairs)
    value = median(ours for ours, _ in pairs) * 1000
    return Figure(name=name, value=value, unit="ms/pod", ratio_to=ideal, ratio=ratio, most_ratio=most_ratio)


async def steady(site: Site) -> Sequence[Figure]:
    """20 pods a second for three minutes: what leasing adds to the time until a pod runs, and what is written, then and at rest."""
    async with leased(site, "steady", nodes=NODES, audited=True) as lease, lease.kubeocean():
        bound = lease.bound
        namespace = await bound.hub.namespace("steady")
        await Bursts(lease, pods=50).burst(await bound.hub.namespace("warm"), lease.vnodes)
        audits = Audit(bound.hub, lease.user), Audit(bound.worker, lease.user)
        added = await _added(lease, namespace)
        last = await _quiet(audits)
        writes = [call for audit in audits for call in audit.writes() if _is_for_one_pod(call)]
        await eventually(lambda: datetime.now(UTC) - last > IDLE, "some idle minutes", seconds=2 * IDLE.total_seconds(), every=1)
        idle = [call for audit in audits for call in audit.writes() if last < call.at <= last + IDLE and call.what != "leases"]
    print(f"    at rest: {dict(Counter(f'{call.verb} {call.what}' for call in idle))}")
    return [
        Figure(name="kubeocean_steady_p99", value=added[int(0.99 * len(added))], unit="s", most=0.15),
        Figure(name="kubeocean_steady_p50", value=median(added), unit="s"),
        Figure(name="kubeocean_writes_per_pod", value=len(writes) / len(added), unit="writes", most=4.01),
        Figure(name="kubeocean_idle_writes", value=len(idle) / (IDLE.total_seconds() / 60), unit="writes/min", most=10.01),
    ]


async def _added(lease: Lease, namespace: str) -> Sequence[float]:
    """Of each pod: its time from the answer to its creation until it is told to run at home, less what the worker itself took."""
    hub, worker = lease.bound.hub.kubeconfig, lease.bound.worker.kubeconfig
    there = f"/api/v1/namespaces/{lease.bound.mount}/pods"
    running = {"fields": "status.phase=Running"}
    created: list[float] = []
    with ExitStack() as stack:
        home = stack.enter_context(moments_of(hub, f"/api/v1/namespaces/{namespace}/pods", **running))
        made, runs = stack.enter_context(moments_of(worker, there)), stack.enter_context(moments_of(worker, there, **running))
        load, began = Load(hub, connections=4), time.monotonic()
        for number in range(0, STEADY * STEADY_RATE, 4):
            await asyncio.sleep(max(0.0, began + number / STEADY_RATE - time.monotonic()))
            bodies = [pod(f"p-{each}", namespace, lease.vnodes[each % len(lease.vnodes)]) for each in range(number, number + 4)]
            created += await load.send(bodies)
        await eventually(lambda: len(home) == len(created), f"{len(created)} pods run", seconds=120, every=0.1)
    return sorted(_less(home, made, runs, name=f"p-{number}", namespace=namespace) - at for number, at in enumerate(created))


def _less(home: Moments, made: Moments, runs: Moments, *, name: str, namespace: str) -> float:
    there = physical_name(namespace, name)
    return home.first(name) - (runs.first(there) - made.first(there))


def _is_for_one_pod(call: Call) -> bool:
    """Not an Event, and not a copy that pods share."""
    shared = call.what in ("secrets", "configmaps") and not call.name.startswith("p-")
    return call.what.partition("/")[0] in ("pods", "secrets", "configmaps", "serviceaccounts") and not shared


async def _quiet(audits: Sequence[Audit]) -> datetime:
    """Wait until nothing more is written; when the last write was."""

    def last() -> datetime | None:
        at = max(call.at for audit in audits for call in audit.writes() if call.what not in AT_REST)
        return at if datetime.now(UTC) - at > timedelta(seconds=QUIET) else None

    found: datetime = await eventually(last, "nothing is written any more", seconds=180, every=1)
    return found


async def ten_thousand(site: Site) -> Sequence[Figure]:
    """10,000 pods on 500 simulated nodes: memory, CPU of the first and of the last thousand, and a restart with all of them."""
    async with leased(site, "tenthousand", nodes=CROWD_NODES) as lease:
        namespace = await lease.bound.hub.namespace("crowd")
        async with lease.kubeocean(seconds=300) as program:
            costs = [await _wave(lease, program, namespace, first=first) for first in range(0, CROWD, WAVE)]
            await calm(program)
            rss = Outside(program.process.pid).rss_mib()
            before = await versions(lease, namespace)
            assert program.terminate() == 0
            restarted = await _restarted(lease, program, namespace)
            written = [name for name, version in (await versions(lease, namespace)).items() if before.get(name, version) != version]
    return [
        Figure(name="kubeocean_10k_rss", value=rss, unit="MiB", most=400),
        Figure(
            name="kubeocean_10k_cpu_growth", value=costs[-1] / costs[0], unit="ratio", most=1.3, ratio_to="the first 1,000 pods", ratio=1.0
        ),
        Figure(name="kubeocean_10k_cpu", value=costs[-1] * 1000, unit="ms/pod"),
        Figure(name="kubeocean_restart_writes", value=len(written), unit="objects", most=1),
        Figure(name="kubeocean_restart_caught_up", value=restarted, unit="s", most=30),
    ]


async def _wave(lease: Lease, program: Program, namespace: str, *, first: int) -> float:
    """A thousand more pods until all run; the seconds of CPU for each."""
    hub, path = lease.bound.hub.kubeconfig, f"/api/v1/namespaces/{namespace}/pods"
    numbers = range(first, first + WAVE)
    with moments_of(hub, path, fields="status.phase=Running") as running:
        meter = Meter(Outside(program.process.pid))
        await Load(hub).send(pod(f"p-{number}", namespace, lease.vnodes[number % len(lease.vnodes)]) for number in numbers)
        names = {f"p-{number}" for number in numbers}
        await eventually(lambda: names <= running.times.keys(), f"pods {first} to {first + WAVE} run", seconds=300, every=0.2)
        meter.stop()
    print(f"    pod {first + WAVE}: {meter.cpu / WAVE * 1000:.2f} ms of CPU for each", flush=True)
    return meter.cpu / WAVE


async def _restarted(lease: Lease, program: Program, namespace: str) -> float:
    """Start the process again; the seconds until a pod that is created then runs, and the process has come to rest."""
    hub = lease.bound.hub.kubeconfig
    began = time.monotonic()
    program.start()
    with moments_of(hub, f"/api/v1/namespaces/{namespace}/pods", fields="metadata.name=new,status.phase=Running") as running:
        await Load(hub).send([pod("new", namespace, lease.vnodes[0])])
        await eventually(lambda: len(running) == 1, "a new pod runs", seconds=120, every=0.05)
    await calm(program)
    return time.monotonic() - began


async def versions(lease: Lease, namespace: str) -> Mapping[str, str]:
    """The resourceVersions of all pods of the crowd, and of what was made for them in the worker."""
    found: dict[str, str] = {}
    bound = lease.bound
    for plane, where, kind in ((bound.hub, namespace, "pods"), (bound.worker, bound.mount, "pods"), (bound.worker, bound.mount, "secrets")):
        found |= {f"{plane.name} {kind} {name}": version for name, version in await _listed(plane, f"/api/v1/namespaces/{where}/{kind}")}
    return found


async def _listed(plane: ControlPlane, path: str) -> Sequence[tuple[str, str]]:
    token, found = "", []
    while True:
        page: Any = await Load(plane.kubeconfig).get(f"{path}?limit=1000&continue={token}")
        found += [(body["metadata"]["name"], body["metadata"]["resourceVersion"]) for body in page["items"]]
        token = page["metadata"].get("continue", "")
        if not token:
            return found
