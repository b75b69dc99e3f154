"""A backend that knows what its pods use, has log files of the node, and counts probes.

Invariant: the numbers are fixed, so that a test can say what must come out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

from tests.integration.server.backend import Backend
from vkubelet.api.objects import Json, PodRef
from vkubelet.clock import SystemClock
from vkubelet.provider import MetricsEndpoint
from vkubelet.stats import ContainerStats, Filesystem, Network, NodeStats, PodStats, ProbeCount, Usage, metrics, summary

STARTED = datetime(2026, 1, 1, tzinfo=UTC)
LISTING = b'<a href="kubelet.log">kubelet.log</a>\n'
FILES = {"": LISTING, "kubelet.log": b"it runs\n", "pods/": b"<pre></pre>\n", "pods/a b.log": b"spaced\n"}


class Metered(Backend):
    """All capabilities that are about a node."""

    def __init__(self) -> None:
        super().__init__()
        self.used: dict[str, PodRef] = {}
        self.asked: list[str] = []

    def use(self, pod: PodRef) -> None:
        self.used[pod.uid] = pod

    def stats(self, node: str) -> NodeStats:
        probes = [ProbeCount("Readiness", successful=4, failed=1)]
        disk = Filesystem(used_bytes=10, available_bytes=90, capacity_bytes=100)
        usage = Usage(cpu_seconds=2.5, cpu_cores=0.5, memory_bytes=1 << 20)
        pods = [
            PodStats(
                pod,
                [ContainerStats("app", usage, started_at=STARTED, id="made-up", image="none", rootfs=disk, probes=probes)],
                network=Network("eth0", received_bytes=3, sent_bytes=4),
            )
            for pod in self.used.values()
            if pod.node == node
        ]
        return NodeStats(node, pods, started_at=STARTED, cores=4, memory_bytes=1 << 30, filesystem=disk)

    async def stats_summary(self, node: str) -> Json:
        return summary(self.stats(node), now=SystemClock().now())

    async def metrics(self, node: str, endpoint: MetricsEndpoint) -> bytes:
        return metrics(endpoint, self.stats(node), now=SystemClock().now())

    async def node_logs(self, node: str, path: str) -> AsyncIterator[bytes]:
        self.asked.append(path)
        if path not in FILES:
            raise FileNotFoundError(path)
        yield FILES[path]
