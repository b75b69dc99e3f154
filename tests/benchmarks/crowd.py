"""100,000 pods leased by one process: 5,000 nodes with 20 pods each. What does it need, and what does a restart with all of them do?

Invariant: the program is the real one between two real API servers, metered inside its event loop; its memory is read from proc(5).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from tests.benchmarks.figures import Figure
from tests.benchmarks.kubeocean import versions
from tests.benchmarks.leased import Lease, calm, leased
from tests.benchmarks.stalled import Turns
from tests.support.load import Load, pod
from tests.support.moments import moments_of
from tests.support.outside import Meter, Outside
from tests.support.program import Program, eventually
from vkubelet.testing.cluster import Site

NODES, PODS = 5_000, 20
WAVE = 1_000
AHEAD = 500
"""Pods of a wave that may still start when the next one is created."""
PATIENCE = 3_600.0
"""Seconds for what is limited by two API servers on a small machine."""


@frozen(kw_only=True)
class Crowd:
    """All pods of a lease, in one namespace of the hub."""

    lease: Lease
    namespace: str
    pods: int

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def fill(self, program: Program) -> float:
        """Creates all pods and waits until they run; returns the seconds of CPU of the process for each."""
        hub, vnodes = self.lease.bound.hub.kubeconfig, self.lease.vnodes
        with moments_of(hub, self.path, fields="status.phase=Running") as running:
            meter = Meter(Outside(program.process.pid))
            for first in range(0, self.pods, WAVE):
                numbers = range(first, min(first + WAVE, self.pods))
                await Load(hub).send(pod(f"p-{number}", self.namespace, vnodes[number % len(vnodes)]) for number in numbers)
                wanted = self.pods if numbers.stop == self.pods else numbers.stop - AHEAD
                await eventually(lambda end=wanted: len(running) >= end, f"{wanted} pods run", seconds=PATIENCE, every=0.2)
                if numbers.stop % max(WAVE, self.pods // 10) == 0:
                    print(f"    {len(running)} pods run, {Outside(program.process.pid).rss_mib():.0f} MiB", flush=True)
            meter.stop()
        return meter.cpu / self.pods

    async def new_pod_runs(self) -> float:
        """Creates a pod; returns the moment (monotonic) at which it runs."""
        hub = self.lease.bound.hub.kubeconfig
        with moments_of(hub, self.path, fields="metadata.name=new,status.phase=Running") as running:
            await Load(hub).send([pod("new", self.namespace, self.lease.vnodes[0])])
            await eventually(lambda: len(running) == 1, "a new pod runs", seconds=PATIENCE, every=0.05)
            return running.first("new")


async def measure(site: Site, *, nodes: int = NODES) -> Sequence[Figure]:
    """5,000 nodes with 20 pods each: memory and longest turns of the process; what a restart writes, and when a new pod runs."""
    async with leased(site, "crowd", nodes=nodes) as lease:
        metered = Path(lease.bound.directory, "turns.jsonl")
        run = lease.bound.program()
        program, turns = Program("tests.benchmarks.metered", str(metered), *run.arguments, log=run.log), Turns(metered)
        crowd = Crowd(lease=lease, namespace=await lease.bound.hub.namespace("crowd"), pods=nodes * PODS)
        async with lease.kubeocean(program, seconds=PATIENCE):
            began = time.monotonic()
            cpu = await crowd.fill(program)
            await calm(program, cores=0.5, seconds=PATIENCE)
            filled = time.monotonic()
            process = Outside(program.process.pid)
            rss, peak = process.rss_mib(), process.peak_mib()
            before = await versions(lease, crowd.namespace)
            # The clock of the meter may go off when its handler is removed already, after the program has stopped.
            assert program.terminate() in (0, -signal.SIGPROF)
            restarted = time.monotonic()
            program.start()
            new = await crowd.new_pod_runs() - restarted
            await calm(program, cores=0.5, seconds=PATIENCE)
            caught_up = time.monotonic()
            process = Outside(program.process.pid)
            rss_restarted, peak_restarted = process.rss_mib(), process.peak_mib()
            written = [name for name, version in (await versions(lease, crowd.namespace)).items() if before.get(name, version) != version]
    return [
        Figure(name="kubeocean_100k_rss", value=max(rss, rss_restarted), unit="MiB", most=1228.8),
        Figure(name="kubeocean_100k_rss_filled", value=rss, unit="MiB"),
        Figure(name="kubeocean_100k_rss_restarted", value=rss_restarted, unit="MiB"),
        Figure(name="kubeocean_100k_peak", value=peak, unit="MiB"),
        Figure(name="kubeocean_100k_peak_restarted", value=peak_restarted, unit="MiB"),
        Figure(name="kubeocean_100k_cpu", value=cpu * 1000, unit="ms/pod"),
        Figure(name="kubeocean_100k_stall_filling", value=turns.longest(began, filled), unit="s", most=0.1),
        Figure(name="kubeocean_100k_stall_restart", value=turns.longest(restarted, caught_up), unit="s", most=0.1),
        Figure(name="kubeocean_100k_restart_writes", value=len(written), unit="objects", most=1),
        Figure(name="kubeocean_100k_restart_new_pod", value=new, unit="s", most=60),
        Figure(name="kubeocean_100k_restart_caught_up", value=caught_up - restarted, unit="s"),
    ]
