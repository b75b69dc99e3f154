"""Every Prometheus series of Kubeocean, built on a given registry: those of the manager, and those of the process of one binding.

Invariant: a gauge is computed at each scrape from the state of that moment; so a removed node has no series any more.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Final, TypeVar

from attrs import field, frozen
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from vkubelet.api.quantity import Quantity, Resources, sum_resources
from vkubelet.errors import AlreadyExists, VKubeletError

_Labels = TypeVar("_Labels", bound=tuple[str, ...])

_TKE: Final = "tke.cloud.tencent.com/"
_PER_CORE: Final = 1000
_MEBIBYTE: Final = 1 << 20
_UNITS: Final[Mapping[str, float]] = {
    "cpu": _PER_CORE,
    "gocrane.io/cpu": _PER_CORE,
    "memory": 1 / _MEBIBYTE,
    "ephemeral-storage": 1 / _MEBIBYTE,
    "gocrane.io/memory": 1 / _MEBIBYTE,
    "nvidia.com/gpu": 1,
    **{f"{_TKE}{name}": 1 for name in ("eni-ip", "sub-eni", "direct-eni", "tke-shared-rdma")},
}
"""Factor of each exported resource: cores are exported as millicores, bytes as MiB; a resource that is not named here is omitted."""


class ManagerMetrics:
    """Series of the manager: its passes over bindings, and the number of bindings by state."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.sync_seconds = Histogram(
            "kubeocean_manager_sync_duration_seconds", "Duration of a pass over a ClusterBinding.", registry=registry
        )
        self.sync_total = Counter("kubeocean_manager_sync", "Passes over a ClusterBinding.", ["clusterbinding"], registry=registry)
        self.sync_errors = Counter(
            "kubeocean_manager_sync_errors", "Passes over a ClusterBinding that failed.", ["clusterbinding"], registry=registry
        )
        self.clusterbindings = Gauge(
            "kubeocean_clusterbindings_total", "ClusterBindings by state: Deleting, Pending, Ready, Failed.", ["status"], registry=registry
        )

    def remove(self, binding: str) -> None:
        """Removes the series of a deleted binding."""
        for counter in (self.sync_total, self.sync_errors):
            counter.remove_by_labels({"clusterbinding": binding})


@frozen(kw_only=True)
class NodeAmounts:
    """Amounts of one virtual node: the physical node's capacity, the lease, and the requests of other pods and of ours on it."""

    name: str
    origin: Resources
    available: Resources
    physical: Resources
    virtual: Resources
    ready: bool = True
    """Whether its condition Ready is True, as mirrored from the physical node."""


@frozen(kw_only=True)
class Snapshot:
    """State at one moment; None and missing entries have no series."""

    phase: str = ""
    ready: bool | None = None
    nodes: Sequence[NodeAmounts] = ()
    virtual_pods: Mapping[str, int] = field(factory=dict)
    physical_pods: Mapping[str, int] = field(factory=dict)
    dependents: Mapping[str, int] = field(factory=dict)
    stale: Mapping[str, float] = field(factory=dict)
    credentials_left: float | None = None
    lent: Mapping[tuple[str, str], Resources] = field(factory=dict)
    """Resource-seconds lent since the ledger was created, by virtual node and namespace."""
    reclaim_overdue: float = 0.0
    load: float | None = None
    """CPU of the process, in cores."""


class SyncerMetrics:
    """Series of the process of one binding; `follow` sets the source of its gauges."""

    def __init__(self, registry: CollectorRegistry, *, binding: str) -> None:
        self.binding = binding
        labels = ["clusterbinding"]
        self._create = Counter(
            "kubeocean_syncer_create_pod", "Attempts to create a pod in the worker, including what it refers to.", labels, registry=registry
        )
        self._create_errors = Counter(
            "kubeocean_syncer_create_pod_errors", "Attempts to create a pod in the worker that failed.", labels, registry=registry
        )
        self._created = Counter("kubeocean_syncer_pod_created", "Physical pods created.", labels, registry=registry)
        self._created_failed = Counter(
            "kubeocean_syncer_pod_created_failed", "Physical pods that the worker refused to create.", labels, registry=registry
        )
        self.create_pod = self._create.labels(binding)
        self.create_pod_errors = self._create_errors.labels(binding)
        self.pod_created = self._created.labels(binding)
        self.pod_created_failed = self._created_failed.labels(binding)
        self._events = Counter(
            "kubeocean_mirrored_events",
            "The worker's Events about our pods: mirrored, dropped.",
            ["result"],
            registry=registry,
        )
        self.events_mirrored = self._events.labels("mirrored")
        self.events_dropped = self._events.labels("dropped")
        self.gauges = Gauges(binding)
        registry.register(self.gauges)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Counts an attempt to create a pod in the worker, with all that it refers to."""
        self.create_pod.inc()
        try:
            yield
        except VKubeletError:
            self.create_pod_errors.inc()
            raise

    @contextmanager
    def creation(self) -> Iterator[None]:
        """Counts one call that creates a physical pod; one that exists already is no failure."""
        try:
            yield
        except AlreadyExists:
            raise
        except VKubeletError:
            self.pod_created_failed.inc()
            raise
        self.pod_created.inc()

    def follow(self, read: Callable[[], Callable[[], Snapshot]]) -> None:
        """Fills the gauges from `read` at each scrape: it captures in the event loop, and what it returns runs in the scraper's thread."""
        self.gauges.read = read

    def stop_exporting(self) -> None:
        """Stops exporting gauges, because another process exports them from now on, and sums must not count both."""
        self.gauges.read = None


class Gauges(Collector):
    """Gauges of one binding, and the counter of its ledger.

    Thousands of nodes have tens of thousands of samples, which are computed in the thread that renders them.
    """

    def __init__(self, binding: str) -> None:
        self.read: Callable[[], Callable[[], Snapshot]] | None = lambda: Snapshot
        self._binding = binding

    def describe(self) -> Iterable[Metric]:
        """Yields every family without samples, also those without a current value."""
        return (family for family in self._families(Snapshot(ready=True, credentials_left=0.0, load=0.0)))

    def collect(self) -> Iterable[Metric]:
        if self.read is None:
            return ()
        late, families = _Late(self._families, self.read()), list(self.describe())
        for family in families:
            family.samples = _LateSamples(late, family.name)
        return families

    def _families(self, now: Snapshot) -> Iterator[Metric]:
        yield from self._of_nodes(now.nodes)
        yield self._of_the_ledger(now.lent)
        yield from self._of_pods(now)
        yield from self._of_the_binding(now)

    def _of_nodes(self, nodes: Sequence[NodeAmounts]) -> Iterator[GaugeMetricFamily]:
        yield _gauge("kubeocean_syncer_vnode_total", "Virtual nodes.", {(self._binding,): len(nodes)}, labels=["clusterbinding"])
        missing = sum(not node.ready for node in nodes)
        text = "Virtual nodes whose physical node is not Ready."
        yield _gauge("kubeocean_vnodes_not_ready", text, {(self._binding,): missing}, labels=["clusterbinding"])
        for name, what, amounts in _KINDS:
            by_node = {(self._binding, node.name, *key): amount for node in nodes for key, amount in _in_units(amounts(node))}
            text = f"{what} (cpu in millicores, memory and storage in MiB)."
            yield _gauge(f"kubeocean_syncer_vnode_{name}", text, by_node, labels=["clusterbinding", "node", "resource"])
            total = {(self._binding, *key): amount for key, amount in _in_units(sum_resources(amounts(node) for node in nodes))}
            text = f"{what}, of all virtual nodes (cpu in millicores, memory and storage in MiB)."
            yield _gauge(f"kubeocean_syncer_cluster_{name}", text, total, labels=["clusterbinding", "resource"])
        offered = {(name,): _number(amount) for name, amount in sum_resources(node.available for node in nodes).items()}
        yield _gauge(
            "kubeocean_allocatable",
            "Allocatable resources of all virtual nodes, in cores, bytes and numbers.",
            offered,
            labels=["resource"],
        )

    def _of_pods(self, now: Snapshot) -> Iterator[GaugeMetricFamily]:
        labels = ["clusterbinding", "phase"]
        virtual = {(self._binding, phase): count for phase, count in now.virtual_pods.items()}
        yield _gauge("kubeocean_syncer_virtual_pod_total", "Pods on the virtual nodes of this binding.", virtual, labels=labels)
        physical = {(self._binding, phase): count for phase, count in now.physical_pods.items()}
        yield _gauge("kubeocean_syncer_physical_pod_total", "Pods of this binding in the worker.", physical, labels=labels)
        dependents = {(kind,): count for kind, count in now.dependents.items()}
        yield _gauge("kubeocean_dependents", "Copies in the worker of objects that pods refer to.", dependents, labels=["kind"])

    def _of_the_ledger(self, lent: Mapping[tuple[str, str], Resources]) -> Metric:
        text = "Resource-seconds lent to pods of a hub namespace on a node, in cores, bytes and numbers, times seconds."
        family = CounterMetricFamily("kubeocean_lent_resource_seconds", text, labels=["clusterbinding", "node", "namespace", "resource"])
        for place, amounts in lent.items():
            for name, amount in amounts.items():
                family.add_metric((self._binding, *place, name), _number(amount))
        return family

    def _of_the_binding(self, now: Snapshot) -> Iterator[GaugeMetricFamily]:
        own, labels = (self._binding,), ["clusterbinding"]
        phase = {(now.phase,): 1.0} if now.phase else {}
        yield _gauge("kubeocean_bindings", "1 for the phase of the binding that this process serves.", phase, labels=["phase"])
        ready = {own: float(now.ready)} if now.ready is not None else {}
        yield _gauge("kubeocean_binding_ready", "1 while the binding is Ready, else 0.", ready, labels=labels)
        stale = {(self._binding, resource): seconds for resource, seconds in now.stale.items()}
        text = "Seconds since the last response of the worker on a watch: an event, a bookmark or a list."
        yield _gauge("kubeocean_watch_stale_seconds", text, stale, labels=[*labels, "resource"])
        left = {own: now.credentials_left} if now.credentials_left is not None else {}
        text = "Until the client certificate or token of the worker's kubeconfig expires; none if it never does."
        yield _gauge("kubeocean_credentials_ttl_seconds", text, left, labels=labels)
        load = {own: now.load} if now.load is not None else {}
        text = "CPU of this process in cores, over the last half minute; one process uses at most one core."
        yield _gauge("kubeocean_load", text, load, labels=labels)
        text = "Seconds by which the most overdue pod exceeds the grace period of its reclaim."
        yield _gauge("kubeocean_reclaim_overdue_seconds", text, {own: now.reclaim_overdue}, labels=labels)


class _Late:
    """Samples of a scrape by family, computed when the first of them is rendered."""

    def __init__(self, families: Callable[[Snapshot], Iterable[Metric]], snapshot: Callable[[], Snapshot]) -> None:
        self._families = families
        self._snapshot = snapshot

    @cached_property
    def samples(self) -> Mapping[str, Sequence[Sample]]:
        return {family.name: family.samples for family in self._families(self._snapshot())}


class _LateSamples(list[Sample]):
    """Samples of one family."""

    def __init__(self, late: _Late, family: str) -> None:
        super().__init__()
        self._late = late
        self._family = family

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._late.samples[self._family])


_KINDS: Final[Sequence[tuple[str, str, Callable[[NodeAmounts], Resources]]]] = (
    ("origin_resource", "Allocatable resources of the physical node", lambda node: node.origin),
    ("available_resource", "Leased resources of the physical node", lambda node: node.available),
    ("physical_usage", "Requests of other pods on the physical node", lambda node: node.physical),
    ("virtual_usage", "Requests of physical pods of this binding on the node", lambda node: node.virtual),
)


def _gauge(name: str, text: str, values: Mapping[_Labels, float], *, labels: Sequence[str]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _in_units(amounts: Resources) -> Iterator[tuple[tuple[str], float]]:
    for name, factor in _UNITS.items():
        if name in amounts:
            yield (name,), _number(amounts[name]) * factor


def _number(amount: Quantity) -> float:
    return amount.nanos / 1e9
