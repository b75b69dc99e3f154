"""What one binding comes to in numbers, read when somebody scrapes.

Invariant: it only reads what is in memory, asks no cluster, and counts nothing of other bindings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from attrs import frozen

from kubeocean.bottomup.binding import BindingReconciler
from kubeocean.bottomup.reclaim import Reclaimer
from kubeocean.bottomup.virtual_nodes import VirtualNodes
from kubeocean.leasing.usage import Usage
from kubeocean.metrics import NodeFigures, Snapshot
from kubeocean.topdown.identity import daemonset_allowed, leaves_home
from kubeocean.worker import WorkerCluster
from vkubelet.api.conditions import get_condition
from vkubelet.api.objects import Key, Pod
from vkubelet.api.quantity import ZERO, Resources, parse_resources
from vkubelet.provider import Host

_NOT_YET = "Pending"


@frozen(kw_only=True)
class Live:
    """What there is only while a worker is connected."""

    worker: WorkerCluster
    usage: Usage


@frozen(kw_only=True)
class Sources:
    """Where the numbers come from."""

    host: Host
    binding: BindingReconciler
    virtual: VirtualNodes
    reclaimers: Sequence[Reclaimer] = ()
    live: Live | None = None


def snapshot(sources: Sources, *, credentials_end: datetime | None = None) -> Snapshot:
    """Everything at this moment."""
    live, now = sources.live, sources.host.clock.now()
    phase, ready = _health(sources.binding)
    worker = live.worker if live is not None else None
    return Snapshot(
        phase=phase,
        ready=ready,
        nodes=list(_nodes(sources)),
        virtual_pods=Counter(_phase(pod) for pod in sources.host.pods if _is_counted(pod, sources.binding)),
        physical_pods=Counter(_phase(pod) for pod in worker.backing_pods()) if worker is not None else {},
        dependents=_copies(worker) if worker is not None else {},
        stale=worker.stale() if worker is not None else {},
        credentials_left=(credentials_end - now).total_seconds() if credentials_end is not None else None,
        reclaim_overdue=max((each.overdue(now) for each in sources.reclaimers), default=0.0),
    )


def _copies(worker: WorkerCluster) -> dict[str, int]:
    kinds = {"ConfigMap": worker.configmaps, "Secret": worker.secrets, "PersistentVolumeClaim": worker.claims}
    return {kind: len(informer.store) for kind, informer in kinds.items()}


def _health(binding: BindingReconciler) -> tuple[str, bool | None]:
    """Phase and Ready as they stand on the binding; nothing while there is none."""
    obj = binding.informer.store.get(Key("", binding.name))
    if obj is None:
        return "", None
    status = obj.body.get("status") or {}
    ready = get_condition(status.get("conditions") or (), "Ready")
    return status.get("phase") or _NOT_YET, ready is not None and ready.get("status") == "True"


def _nodes(sources: Sources) -> Iterator[NodeFigures]:
    for node in sources.virtual:
        origin, physical, virtual = _of_physical(sources.live, node.physical_name)
        # A resource of which nothing is used has a series as well.
        none = dict.fromkeys(origin, ZERO)
        yield NodeFigures(
            name=node.description.name,
            origin=origin,
            available=_amounts(node.description.allocatable),
            physical={**none, **physical},
            virtual={**none, **virtual},
        )


def _of_physical(live: Live | None, name: str) -> tuple[Resources, Resources, Resources]:
    node = live.worker.nodes.store.get(Key("", name)) if live is not None else None
    if live is None or node is None:
        return {}, {}, {}
    return _amounts(node.status.get("allocatable") or {}), live.usage.local(name), live.usage.leased(name)


def _amounts(written: Mapping[str, str]) -> Resources:
    return _parsed(tuple(written.items()))


@lru_cache(maxsize=1024)
def _parsed(written: tuple[tuple[str, str], ...]) -> Resources:
    """Nodes of one kind have the same amounts, scrape after scrape."""
    return parse_resources(dict(written))


def _is_counted(pod: Pod, binding: BindingReconciler) -> bool:
    """Pods that never leave home, and those of DaemonSets that nobody asked to run on virtual nodes, are not counted."""
    if not leaves_home(pod.metadata):
        return False
    return binding.current is None or daemonset_allowed(pod.metadata, binding.current)


def _phase(pod: Pod) -> str:
    return pod.phase or _NOT_YET
