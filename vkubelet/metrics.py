"""Every Prometheus instrument of the runtime, built on a given registry.

Invariant: no series of the registry has the name of a pod or of a node, so their number does not grow with the cluster. Metrics of one node
are exposed at that node's port, and are removed with it.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain
from typing import Generic, TypeVar

from attrs import define, field
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from vkubelet.clock import Clock, in_batches

S = TypeVar("S")
F = TypeVar("F", bound=Metric)

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_CALL = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_DAYS = tuple(days * 86400.0 for days in (1, 7, 30, 90, 180, 365, 730))
_LATE = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0)


class Metrics:
    """All instruments; `registry` defaults to a new one that also exposes this process (memory, descriptors)."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
        self.registry = registry
        self.provider = CollectorRegistry()
        """Registry for the provider's own series; they are exposed by the process alone, and not by each of its nodes again."""
        self.nodes = Gauge("vkubelet_nodes", "Virtual nodes of this process by state.", ["state"], registry=registry)
        self.pods = Gauge("vkubelet_pods", "Pods on our nodes by phase.", ["phase"], registry=registry)
        self.streams = Gauge("vkubelet_streams", "Open logs, exec, attach and port-forward streams.", ["kind"], registry=registry)
        self.reconcile_total = Counts("vkubelet_reconcile", "Reconciles by result.", labels=["controller", "result"], registry=registry)
        self.reconcile_seconds = Timings("vkubelet_reconcile_seconds", "Duration of a reconcile.", labels=["controller"], registry=registry)
        self.queue_depth = Gauge("vkubelet_queue_depth", "Keys that are due and wait for a worker.", ["queue"], registry=registry)
        self.queue_oldest_seconds = Gauge("vkubelet_queue_oldest_seconds", "Age of the oldest due key.", ["queue"], registry=registry)
        self.watch_events = Counts("vkubelet_watch_events", "Watch events received.", labels=["resource", "type"], registry=registry)
        self.watch_stale = Staleness()
        registry.register(self.watch_stale)
        self.watch_restarts = Counter(
            "vkubelet_watch_restarts", "Watch streams that were closed.", ["resource", "reason"], registry=registry
        )
        self.api_seconds = Timings(
            "vkubelet_api_seconds", "Duration of calls to API servers.", labels=["verb", "resource", "code"], registry=registry
        )
        self.lease_lateness_seconds = Histogram(
            "vkubelet_lease_lateness_seconds", "How late node leases were renewed.", buckets=_LATE, registry=registry
        )
        self.status_lag_seconds = Histogram(
            "vkubelet_status_lag_seconds", "From a provider's report to the written pod status.", buckets=_LATE, registry=registry
        )
        self.loop_lag_seconds = Histogram("vkubelet_loop_lag_seconds", "How late the event loop woke up.", buckets=_FAST, registry=registry)
        self._kubelet(registry)
        self.pod_worker = NodeDurations()
        """Calls of the provider: create, sync, kill."""
        self.pod_status = NodeDurations()
        """From a provider's report to the written pod status."""

    def remove_node(self, node: str) -> None:
        """Drops a node that this process no longer serves."""
        self.pod_worker.remove(node)
        self.pod_status.remove(node)

    def _kubelet(self, registry: CollectorRegistry) -> None:
        """Creates those that a kubelet has under the same name, with its labels."""
        labels = ["method", "path", "server_type", "long_running"]
        self.http_requests = Counter("kubelet_http_requests", "Requests to the kubelet server.", labels, registry=registry)
        self.http_seconds = Histogram(
            "kubelet_http_requests_duration_seconds", "Duration of these requests.", labels, buckets=_CALL, registry=registry
        )
        self.http_inflight = Gauge("kubelet_http_inflight_requests", "Requests that are being answered.", labels, registry=registry)
        self.certificate_ttl = Gauge(
            "kubelet_certificate_manager_server_ttl_seconds", "Until the serving certificate expires.", registry=registry
        )
        self.certificate_ttl.set(math.inf)
        self.certificate_lived = Histogram(
            "kubelet_certificate_manager_server_rotation_seconds", "Age of a replaced certificate.", buckets=_DAYS, registry=registry
        )
        self.admission_rejections = Counter(
            "kubelet_admission_rejections", "Pods that their node did not admit.", ["reason"], registry=registry
        )
        self.certificate_errors = Counter("kubelet_server_expiration_renew_errors", "Certificate requests that failed.", registry=registry)

    async def scrape(self, clock: Clock, *, provider: bool = True) -> bytes:
        """Renders the series as they are now, with or without the provider's, in Prometheus text format 0.0.4.

        Thousands of nodes make thousands of series: other tasks run between two families, and another thread renders them.
        """
        families = chain(self.registry.collect(), self.provider.collect() if provider else ())
        return await asyncio.to_thread(generate_latest, Collected([each async for each in in_batches(clock, families, size=1)]))


class Staleness(Collector):
    """Silence of the running watches; of several on one resource the most silent."""

    def __init__(self) -> None:
        self._watches: dict[Callable[[], float], str] = {}

    @contextmanager
    def watched(self, resource: str, stale_for: Callable[[], float]) -> Iterator[None]:
        """Registers a watch for the duration of the `with`."""
        self._watches[stale_for] = resource
        try:
            yield
        finally:
            del self._watches[stale_for]

    def describe(self) -> Iterable[GaugeMetricFamily]:
        text = "Seconds since the last response of the API server on a watch: an event, a bookmark or a list."
        return [GaugeMetricFamily("vkubelet_watch_stale_seconds", text, labels=["resource"])]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        (family,) = self.describe()
        longest: dict[str, float] = {}
        for stale_for, resource in self._watches.items():
            longest[resource] = max(longest.get(resource, 0.0), stale_for())
        for resource, seconds in longest.items():
            family.add_metric([resource], seconds)
        return [family]


class Collected(CollectorRegistry):
    """Families that do not change any more."""

    def __init__(self, families: Sequence[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


@define
class Durations:
    """Histogram of the duration of one operation: counts at most as long as each of `limits`, one more count for all others, and the
    sum."""

    counts: list[int] = field(factory=lambda: [0] * (len(_CALL) + 1))
    seconds: float = 0.0
    failed: int = 0
    limits = _CALL

    def observe(self, seconds: float) -> None:
        """Counts one operation that took so long."""
        self.counts[bisect_left(_CALL, seconds)] += 1
        self.seconds += seconds


class _ByLabels(Collector, ABC, Generic[S, F]):
    """Series of one metric by labels. A reconcile and a request observe a few each, which costs little without the locks of
    prometheus_client; everything here runs in the event loop."""

    def __init__(self, name: str, text: str, *, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._name, self._text, self._labelnames = name, text, labels
        self._series: dict[tuple[str, ...], S] = {}
        registry.register(self)

    def labels(self, *values: str) -> S:
        """Returns the series of these values of the labels."""
        return self._series.setdefault(values, self._new())

    def describe(self) -> Iterable[F]:
        return [self._family()]

    def collect(self) -> Iterable[F]:
        family = self._family()
        for values, each in self._series.items():
            self._add(family, values, each)
        return [family]

    @abstractmethod
    def _new(self) -> S: ...

    @abstractmethod
    def _family(self) -> F: ...

    @abstractmethod
    def _add(self, family: F, values: Sequence[str], series: S) -> None: ...


class Timings(_ByLabels[Durations, HistogramMetricFamily]):
    """Histogram of durations by labels."""

    def _new(self) -> Durations:
        return Durations()

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._text, labels=self._labelnames)

    def _add(self, family: HistogramMetricFamily, values: Sequence[str], series: Durations) -> None:
        limits = [*map(floatToGoString, series.limits), "+Inf"]
        family.add_metric(values, list(zip(limits, accumulate(series.counts), strict=True)), series.seconds)


@define
class Count:
    """One series of a counter."""

    value: int = 0

    def inc(self, step: int = 1) -> None:
        self.value += step


class Counts(_ByLabels[Count, CounterMetricFamily]):
    """Counter by labels."""

    def _new(self) -> Count:
        return Count()

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self._name, self._text, labels=self._labelnames)

    def _add(self, family: CounterMetricFamily, values: Sequence[str], series: Count) -> None:
        family.add_metric(values, series.value)


class NodeDurations:
    """Durations by node and operation; much smaller than instruments of the registry, so that thousands of nodes can have them."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, Durations]] = {}

    def observe(self, node: str, operation: str, seconds: float, *, failed: bool = False) -> None:
        durations = self._nodes.setdefault(node, {}).setdefault(operation, Durations())
        durations.observe(seconds)
        durations.failed += failed

    def of(self, node: str) -> Mapping[str, Durations]:
        """Returns the durations by operation."""
        return self._nodes.get(node, {})

    def remove(self, node: str) -> None:
        """Drops a node that this process no longer serves."""
        self._nodes.pop(node, None)
