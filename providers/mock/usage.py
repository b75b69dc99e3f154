"""Resource usage of the pods of a mock node: constant rates from their annotations, as a kubelet would report them.

Invariant: a node's CPU time only grows, also when pods terminate: their usage is kept.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Self

from attrs import define, frozen

from vkubelet.api.objects import JsonView
from vkubelet.api.quantity import Quantity
from vkubelet.provider import NodeDescription
from vkubelet.stats import Filesystem, Network, NodeStats, PodStats, ProbeCount, Usage

NODE_CORES: Final = 0.05
"""CPU usage of the node itself, beside its pods."""
NODE_MEMORY: Final = 256 << 20
_PACKET: Final = 1000
_PROBES: Final = {"livenessProbe": "Liveness", "readinessProbe": "Readiness", "startupProbe": "Startup"}


@define
class Meter:
    """CPU time at a rate that changes now and then; times are monotonic."""

    seconds: float = 0.0
    rate: float = 0.0
    since: float = 0.0

    def turn(self, rate: float, now: float) -> None:
        self.seconds, self.rate, self.since = self.read(now), rate, now

    def read(self, now: float) -> float:
        return self.seconds + self.rate * (now - self.since)


@frozen
class Probe:
    """One probe of a container, which always succeeds."""

    kind: str
    period: float

    @classmethod
    def of(cls, container: JsonView) -> Sequence[Self]:
        return [cls(kind, container[name].get("periodSeconds", 10)) for name, kind in _PROBES.items() if name in container]

    def count(self, seconds: float) -> ProbeCount:
        times = 1 if self.kind == "Startup" else 1 + int(seconds // self.period)
        return ProbeCount(self.kind, successful=times)  # type: ignore[arg-type]


def node_stats(node: NodeDescription, pods: Sequence[PodStats], *, spent: float, uptime: float, started: datetime) -> NodeStats:
    """Returns the usage of a node; `spent` are the CPU seconds of terminated containers; `uptime` is in seconds."""
    used = [pod.total for pod in pods]
    total = Usage(
        cpu_seconds=NODE_CORES * uptime + spent + sum(usage.cpu_seconds or 0.0 for usage in used),
        cpu_cores=NODE_CORES + sum(usage.cpu_cores or 0.0 for usage in used),
        memory_bytes=NODE_MEMORY + sum(usage.memory_bytes or 0 for usage in used),
    )
    capacity = {name: Quantity.parse(amount).nanos // 10**9 for name, amount in node.capacity.items()}
    disk, written = (
        capacity.get("ephemeral-storage", 0),
        sum(pod.ephemeral_storage.used_bytes or 0 for pod in pods if pod.ephemeral_storage),
    )
    packets = int(uptime) * _PACKET
    return NodeStats(
        node.name,
        pods,
        usage=total,
        started_at=started,
        network=Network("eth0", received_bytes=packets, receive_errors=0, sent_bytes=packets, send_errors=0),
        filesystem=Filesystem(used_bytes=written, capacity_bytes=disk, available_bytes=max(0, disk - written)),
        cores=float(capacity.get("cpu", 0)),
        memory_bytes=capacity.get("memory"),
    )
