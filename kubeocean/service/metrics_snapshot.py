"""Captures the metrics of one binding, at each scrape.

Invariant: it only reads what is in memory, sends no request to a cluster, and counts nothing of other bindings.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from attrs import evolve, frozen

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.binding.virtual_nodes import VirtualNode
from kubeocean.leasing.capacity import Usage
from kubeocean.ledger.keeper import LedgerKeeper
from kubeocean.metrics import NodeAmounts, Snapshot
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.identity import daemonset_allowed, leaves_home
from kubeocean.nodes.reclaim import Reclaimer
from kubeocean.scope import Scope
from kubeocean.worker.cluster import WorkerCluster
from vkubelet.api.objects import Key, Node, Pod, get_condition
from vkubelet.api.quantity import ZERO, Resources, parse_resources
from vkubelet.clock import Clock

_PENDING = "Pending"
_LOAD_OVER, _LOAD_NOTED_EVERY = 30.0, 5.0
"""Seconds."""


@frozen(kw_only=True)
class Connected:
    """Sources that exist only while a worker is connected."""

    worker: WorkerCluster
    usage: Usage
    ledger: LedgerKeeper


@frozen(kw_only=True)
class Sources:
    """Sources of the metrics."""

    scope: Scope
    reclaimers: Sequence[Reclaimer] = ()
    connected: Connected | None = None


@frozen(kw_only=True)
class _Node:
    """A virtual node, its physical node and the requests on that, at the time of a scrape."""

    virtual: VirtualNode
    physical: Node | None = None
    local: Resources = {}
    leased: Resources = {}


class Load:
    """CPU of this process over the last half minute, in cores; None in its first seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen = deque([(clock.monotonic(), time.process_time())])

    def now(self) -> float | None:
        """Returns the load since a moment that was noted half a minute ago, or since the start."""
        moment, used = self._clock.monotonic(), time.process_time()
        while len(self._seen) > 1 and self._seen[1][0] <= moment - _LOAD_OVER:
            self._seen.popleft()
        since, before = self._seen[0]
        if moment - self._seen[-1][0] >= _LOAD_NOTED_EVERY:
            self._seen.append((moment, used))
        return (used - before) / (moment - since) if moment - since >= _LOAD_NOTED_EVERY else None


def capture(sources: Sources, *, credentials_end: datetime | None = None, load: float | None = None) -> Callable[[], Snapshot]:
    """Captures the current state. The returned function counts it and may run in another thread: captured objects never change."""
    scope, connected, now = sources.scope, sources.connected, sources.scope.host.clock.now()
    phase, ready = _health(scope.binding) if scope.shard.is_first else ("", None)
    worker = connected.worker if connected is not None else None
    rest = Snapshot(
        phase=phase,
        ready=ready,
        dependents=_copies(worker) if worker is not None and scope.shard.is_first else {},
        stale=worker.stale() if worker is not None else {},
        credentials_left=(credentials_end - now).total_seconds() if credentials_end is not None else None,
        load=load,
        reclaim_overdue=max((each.overdue(now) for each in sources.reclaimers), default=0.0),
    )
    nodes, virtual, binding = [_node(node, connected) for node in scope.virtual], iter(scope.host.pods), scope.binding.current
    # Both only copy references here: tens of thousands of pods are filtered in the other thread.
    physical = worker.backing_pods(scope.owns) if worker is not None else iter(())
    lent = connected.ledger.lent() if connected is not None else dict

    def counted() -> Snapshot:
        return evolve(
            rest,
            nodes=[_figures(node) for node in nodes],
            virtual_pods=Counter(_phase(pod) for pod in virtual if _is_counted(pod, binding)),
            physical_pods=Counter(map(_phase, physical)),
            lent=lent(),
        )

    return counted


def _copies(worker: WorkerCluster) -> dict[str, int]:
    kinds = {"ConfigMap": worker.configmaps, "Secret": worker.secrets, "PersistentVolumeClaim": worker.claims}
    return {kind: len(informer.store) for kind, informer in kinds.items()}


def _health(binding: BindingReconciler) -> tuple[str, bool | None]:
    """Returns phase and Ready of the binding's status; "" and None while the binding does not exist."""
    obj = binding.informer.store.get(Key("", binding.name))
    if obj is None:
        return "", None
    status = obj.body.get("status") or {}
    ready = get_condition(status.get("conditions") or (), "Ready")
    return status.get("phase") or _PENDING, ready is not None and ready.get("status") == "True"


def _node(virtual: VirtualNode, connected: Connected | None) -> _Node:
    name = virtual.physical_name
    physical = connected.worker.nodes.store.get(Key("", name)) if connected is not None else None
    if connected is None or physical is None:
        return _Node(virtual=virtual)
    return _Node(virtual=virtual, physical=physical, local=connected.usage.local(name), leased=connected.usage.leased(name))


def _figures(node: _Node) -> NodeAmounts:
    origin = _amounts(node.physical.status.get("allocatable") or {}) if node.physical is not None else {}
    # A resource without any usage gets a series too.
    none = dict.fromkeys(origin, ZERO)
    ready = get_condition(node.virtual.description.conditions, "Ready") or {}
    return NodeAmounts(
        name=node.virtual.description.name,
        ready=ready.get("status", "True") == "True",
        origin=origin,
        available=_amounts(node.virtual.description.allocatable),
        physical={**none, **node.local},
        virtual={**none, **node.leased},
    )


def _amounts(written: Mapping[str, str]) -> Resources:
    return _parsed(tuple(written.items()))


@lru_cache(maxsize=16384)
def _parsed(written: tuple[tuple[str, str], ...]) -> Resources:
    """Parses amounts; cached, because a node has the same ones scrape after scrape."""
    return parse_resources(dict(written))


def _is_counted(pod: Pod, binding: ClusterBinding | None) -> bool:
    """Excludes pods that never leave the hub, and those of DaemonSets that do not opt in to virtual nodes."""
    if not leaves_home(pod.metadata):
        return False
    return binding is None or daemonset_allowed(pod.metadata, binding)


def _phase(pod: Pod) -> str:
    return pod.phase or _PENDING
