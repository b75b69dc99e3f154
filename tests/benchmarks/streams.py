"""Bytes and waiting times of `kubectl exec` and `kubectl logs` through a virtual node, beside the same commands sent to the worker itself.

Both ways end at one container of a real kubelet; rounds of both take turns, so that the machine is the same for both.
"""

from __future__ import annotations

import asyncio
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from attrs import frozen
from kubernetes import client as k8s
from kubernetes.stream import stream

from tests.benchmarks.figures import Figure
from tests.support.bound import Bound, apply, physical, pod, running
from tests.support.kubectl import Kubectl
from tests.support.outside import Meter, Outside
from tests.support.program import eventually
from tests.support.witness import api_client
from vkubelet.testing.cluster import ControlPlane, Site, WorkerNode

MIB = 1 << 20
SIZE = 200 * MIB
LINE = 1024
ROUNDS = 3
SHORT = 30
"""Short commands each way."""
FOLLOWERS, FIRST = 200, 20
"""Streams of a log that are open at a time; and those that are opened before, so that what all streams share is not counted."""

INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
"""Of each user of the machine."""

Fetch = Callable[[], Awaitable[float]]
"""Fetches SIZE bytes; returns the seconds."""

POD = "source"
# The file for exec first, then as much to the log.
SCRIPT = f"""
head -c {SIZE} /dev/urandom > /tmp/file
yes $(head -c {LINE - 1} /dev/zero | tr '\\0' x) | head -n {SIZE // LINE}
touch /tmp/told
trap 'exit 0' TERM
while true; do sleep 0.2; done
"""


@frozen
class Way:
    """One way to the container: which cluster is asked, and what the pod is called there."""

    cluster: ControlPlane
    namespace: str
    pod: str

    async def seconds(self, *args: str) -> float:
        """How long kubectl takes to fetch SIZE bytes."""
        began = time.monotonic()
        async with Kubectl(self.cluster, self.namespace).kubectl(*args, stderr=DEVNULL) as process:
            assert process.stdout is not None
            size = 0
            while chunk := await process.stdout.read(MIB):
                size += len(chunk)
            assert await process.wait() == 0
        # exec brings the file, logs the lines; neither loses a byte.
        assert size == SIZE, size
        return time.monotonic() - began

    async def exec(self) -> float:
        return await self.seconds("exec", self.pod, "--", "cat", "/tmp/file")

    async def logs(self) -> float:
        return await self.seconds("logs", self.pod)

    def short(self) -> float:
        """How long a command that does nothing takes, without a kubectl that has to be started."""
        api = k8s.CoreV1Api(api_client(self.cluster.kubeconfig))
        began = time.monotonic()
        stream(api.connect_get_namespaced_pod_exec, self.pod, self.namespace, command=["true"], stdout=True, stderr=True)
        return time.monotonic() - began


@asynccontextmanager
async def both_ways(site: Site) -> AsyncIterator[tuple[Way, Way, Outside]]:
    """Through the virtual node, and straight, with the process; the file and the log are there."""
    async with ControlPlane("hub", site) as hub, ControlPlane("worker", site) as worker, WorkerNode("node-1", worker) as node:
        directory = Path(site.directory, "streams")
        bound = Bound(hub=hub, worker=worker, name="bench", directory=directory, settings={"log": {"level": "INFO"}})
        await bound.install()
        with bound.program() as program:
            await bound.node_ready(node.name)
            namespace = await hub.namespace("bench")
            body = pod(POD, namespace)
            body["spec"]["containers"][0]["command"] = ["sh", "-c", SCRIPT]
            await apply(hub, body)
            there = await physical(bound, await running(bound, namespace, POD))
            through = Way(hub, namespace, POD)
            straight = Way(worker, there["metadata"]["namespace"], there["metadata"]["name"])
            await eventually(lambda: _told(straight), "the file and the log are written", seconds=120, every=1)
            yield through, straight, Outside(program.process.pid)


async def _told(way: Way) -> bool:
    return (await Kubectl(way.cluster, way.namespace).run("exec", way.pod, "--", "test", "-e", "/tmp/told")).code == 0


async def measure(site: Site) -> Sequence[Figure]:
    """200 MiB by exec and by logs, commands that do nothing, and the memory of followers of a log."""
    async with both_ways(site) as (through, straight, process):
        return [
            await asyncio.to_thread(_followers, through, process),
            *await _throughput("exec", process, (through.exec, straight.exec)),
            *await _throughput("logs", process, (through.logs, straight.logs)),
            await _latency(through, straight),
        ]


async def _throughput(name: str, process: Outside, ways: tuple[Fetch, Fetch]) -> Sequence[Figure]:
    """The rate through the virtual node beside that of the other way, and what it costs the process."""
    through, straight = ways
    await through()
    pairs, cpu = [], []
    for _ in range(ROUNDS):
        meter = Meter(process)
        there = await through()
        cpu.append(meter.cpu)
        pairs.append((there, await straight()))
    rate = Figure(
        name=f"{name}_throughput",
        value=SIZE / 1e6 / median(seconds for seconds, _ in pairs),
        unit="MB/s",
        ratio_to="the worker directly",
        ratio=median(there / seconds for seconds, there in pairs),
        least_ratio=0.85,
    )
    return [rate, Figure(name=f"{name}_cpu", value=median(cpu) / (SIZE / (100 * MIB)), unit="s/100 MiB")]


def _followers(through: Way, process: Outside) -> Figure:
    """What the process keeps for each of many streams that follow a log and wait."""
    api = api_client(through.cluster.kubeconfig)
    path = f"/api/v1/namespaces/{through.namespace}/pods/{through.pod}/log?follow=true&tailLines=1"
    streams: list[Any] = []

    def follow(number: int) -> tuple[float, int]:
        for _ in range(number):
            streams.append(api.rest_client.pool_manager.request("GET", f"{api.configuration.host}{path}", preload_content=False))
            assert streams[-1].read(LINE), "the last line of the log"
        return process.rss_mib(), process.descriptors()

    with _many_followers_in_the_kubelet():
        try:
            before, few = follow(FIRST)
            after, many = follow(FOLLOWERS)
        finally:
            for each in streams:
                each.close()
    # One to the API server of each side.
    assert many - few >= 2 * FOLLOWERS, f"only {(many - few) // 2} of {FOLLOWERS} streams stayed open"
    return Figure(name="logs_follower_memory", value=(after - before) * 1024 / FOLLOWERS, unit="KiB", most=64)


@contextmanager
def _many_followers_in_the_kubelet() -> Iterator[None]:
    """A kubelet needs an inotify instance for each follower, without which it ends the stream after the last line; 128 is usual."""
    before = INSTANCES.read_text()
    INSTANCES.write_text(str(int(before) + 2 * FOLLOWERS))
    try:
        yield
    finally:
        INSTANCES.write_text(before)


async def _latency(through: Way, straight: Way) -> Figure:
    for way in (through, straight):
        await asyncio.to_thread(way.short)
    pairs = [(await asyncio.to_thread(through.short), await asyncio.to_thread(straight.short)) for _ in range(SHORT)]
    added = median(seconds for seconds, _ in pairs) - median(seconds for _, seconds in pairs)
    return Figure(name="exec_latency_added", value=added * 1000, unit="ms", most=30)
