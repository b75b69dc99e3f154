"""Translates a kubelet's `/stats/summary` to the virtual names (pure).

Invariant: it contains no pod but the given ones, and its node is the sum of these pods; of the machine it contains only the start time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kubeocean.worker.exposition import Alias, Tenancy
from kubeocean.worker.node_usage import CpuMeter
from vkubelet.api.objects import Pod
from vkubelet.api.shapes import Json, JsonView

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
