"""Usage of a virtual node: the sum over its pods, and nothing of the rest of the machine (pure).

Invariant: the CPU time of a node never decreases while the process runs, though its pods come and go; readers take a smaller value for a
restart, and leave the node out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from datetime import UTC, datetime

from attrs import define, field

from kubeocean.worker.exposition import Reading
from vkubelet.stats import family


@define
class CpuMeter:
    """CPU time of all pods of a node since the first reading, in nanoseconds."""

    total: int = 0
    at: int = 0
    """Time of the last reading: Unix time in milliseconds."""
    _last: dict[str, int] = field(factory=dict)

    def add(self, counters: Mapping[str, int], *, alive: Set[str], at: int = 0) -> int:
        """Adds the pods' own counters, by UID; returns the total. Counters of pods that are not `alive` are dropped."""
        for uid, counter in counters.items():
            before = self._last.get(uid, 0)
            # A counter that decreased was restarted.
            self.total += counter - before if counter >= before else counter
        self._last = {uid: counter for uid, counter in {**self._last, **counters}.items() if uid in alive}
        self.at = max(self.at, at)
        return self.total


def node_series(readings: Iterable[Reading], meter: CpuMeter) -> bytes:
    """Renders the node's own series of `/metrics/resource`.

    An idle node shows one nanosecond and one byte: metrics-server takes a zero for a missing value, and `kubectl top` would show no node.
    """
    readings = list(readings)
    at = datetime.fromtimestamp(meter.at / 1000, UTC) if meter.at else None
    cpu, memory = max(1, meter.total) / 10**9, max(1, sum(reading.memory or 0 for reading in readings))
    swaps = [reading.swap for reading in readings if reading.swap is not None]
    swap = sum(swaps) if swaps else None
    return b"".join(
        (
            family("node_cpu_usage_seconds_total", "counter", "CPU time used by the node's pods.", samples=[({}, cpu, at)]),
            family("node_memory_working_set_bytes", "gauge", "Working set of the node's pods.", samples=[({}, memory, at)]),
            family("node_swap_usage_bytes", "gauge", "Swap used by the node's pods.", samples=[({}, swap, at)]),
        )
    )
