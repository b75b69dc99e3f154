"""Statistics of a virtual node: a kubelet's `/stats/summary` with the virtual names, and the node's usage as the sum of its pods. Pure.

Invariant: it contains no pod but the given ones, and of the machine only the start time. The CPU time of a node never decreases while the
process runs, though its pods come and go; readers take a smaller value for a restart, and leave the node out.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Final

from attrs import define, field

from kubeocean.worker.exposition import Alias, Reading, Tenancy
from vkubelet.api.objects import Json, JsonView, Pod
from vkubelet.stats import family

_MOST: Final = 2**63 - 1
"""Largest number of the document; a worker that reports more must not make those of the process unreadable."""


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
            self.total = min(self.total + (counter - before if counter >= before else counter), _MOST)
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


_CPU_TIME: Final = "usageCoreNanoSeconds"
_CPU: Final = ("usageNanoCores",)
_MEMORY: Final = ("workingSetBytes", "usageBytes", "rssBytes", "pageFaults", "majorPageFaults")


def virtual_summary(summary: JsonView, tenancy: Tenancy, meter: CpuMeter) -> Json:
    """Returns the document of a virtual node; its CPU time continues from the meter's total."""
    aliases = {alias.physical_uid: alias for alias in tenancy.aliases}
    ours = [(alias, pod) for pod in summary.get("pods") or () if (alias := aliases.get((pod.get("podRef") or {}).get("uid", "")))]
    machine = summary.get("node") or {}
    counters = {alias.virtual.uid: _total(pod, "cpu", _CPU_TIME) for alias, pod in ours}
    cpu = _summed([pod for _, pod in ours], "cpu", _CPU, machine)
    cpu[_CPU_TIME] = meter.add(counters, alive=tenancy.uids())
    memory = _summed([pod for _, pod in ours], "memory", _MEMORY, machine)
    node: Json = {"nodeName": tenancy.node, "cpu": cpu, "memory": memory}
    if "startTime" in machine:
        node["startTime"] = machine["startTime"]
    return {"node": node, "pods": [_virtual_pod(pod, alias) for alias, pod in ours]}


def _summed(pods: Sequence[JsonView], kind: str, names: Iterable[str], machine: JsonView) -> Json:
    times = [time for each in _parts(pods, kind) if (time := each.get("time"))]
    time = max(times, default=(machine.get(kind) or {}).get("time"))
    return {**({"time": time} if time else {}), **{name: sum(_total(pod, kind, name) for pod in pods) for name in names}}


def _total(pod: JsonView, kind: str, name: str) -> int:
    """Returns the pod's own value, or the sum over its containers when that is larger, as while the pod has not been measured."""
    own = int((pod.get(kind) or {}).get(name) or 0)
    return max(own, sum(int(part.get(name) or 0) for part in _parts(pod.get("containers") or (), kind)))


def _parts(holders: Iterable[JsonView], kind: str) -> Iterable[JsonView]:
    return (part for holder in holders if (part := holder.get(kind)))


def _virtual_pod(pod: JsonView, alias: Alias) -> Json:
    virtual = alias.virtual
    named: Json = {**pod, "podRef": {"name": virtual.name, "namespace": virtual.namespace, "uid": virtual.uid}}
    if pod.get("volume"):
        claims = _claims(alias.pod)
        named["volume"] = [_virtual_volume(volume, claims, namespace=virtual.namespace) for volume in pod["volume"]]
    return named


def _virtual_volume(volume: JsonView, claims: Mapping[str, str], *, namespace: str) -> Json:
    named = {key: value for key, value in volume.items() if key != "pvcRef"}
    claim = claims.get(volume.get("name", ""))
    if "pvcRef" in volume and claim:
        named["pvcRef"] = {"name": claim, "namespace": namespace}
    return named


def _claims(pod: Pod | None) -> dict[str, str]:
    """Returns the claim behind each volume of a virtual pod that has one."""
    found: dict[str, str] = {}
    for volume in (pod.spec.get("volumes") or ()) if pod is not None else ():
        if "persistentVolumeClaim" in volume:
            found[volume["name"]] = volume["persistentVolumeClaim"]["claimName"]
        elif "ephemeral" in volume and pod is not None:
            found[volume["name"]] = f"{pod.metadata.name}-{volume['name']}"
    return found
