"""Every Prometheus instrument of the runtime, built on a given registry.

Invariant: no series carries the name of a pod or of a node, so their number does not grow with the cluster.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_CALL = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LATE = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0)


class Metrics:
    """All instruments; `registry` defaults to a new one that also tells of this process (memory, descriptors)."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
        self.registry = registry
        self.nodes = Gauge("vkubelet_nodes", "Virtual nodes of this process by state.", ["state"], registry=registry)
        self.pods = Gauge("vkubelet_pods", "Pods on our nodes by phase.", ["phase"], registry=registry)
        self.streams = Gauge("vkubelet_streams", "Open logs, exec, attach and port-forward streams.", ["kind"], registry=registry)
        self.reconcile_total = Counter("vkubelet_reconcile", "Reconciles by result.", ["controller", "result"], registry=registry)
        self.reconcile_seconds = Histogram(
            "vkubelet_reconcile_seconds", "Duration of a reconcile.", ["controller"], buckets=_CALL, registry=registry
        )
        self.queue_depth = Gauge("vkubelet_queue_depth", "Keys that are due and wait for a worker.", ["queue"], registry=registry)
        self.queue_oldest_seconds = Gauge("vkubelet_queue_oldest_seconds", "Age of the oldest due key.", ["queue"], registry=registry)
        self.watch_events = Counter("vkubelet_watch_events", "Watch events received.", ["resource", "type"], registry=registry)
        self.watch_restarts = Counter("vkubelet_watch_restarts", "Watch streams that ended.", ["resource", "reason"], registry=registry)
        self.api_seconds = Histogram(
            "vkubelet_api_seconds", "Duration of calls to API servers.", ["verb", "resource", "code"], buckets=_CALL, registry=registry
        )
        self.lease_lateness_seconds = Histogram(
            "vkubelet_lease_lateness_seconds", "How late node leases were renewed.", buckets=_LATE, registry=registry
        )
        self.status_lag_seconds = Histogram(
            "vkubelet_status_lag_seconds", "From a provider's report to the written pod status.", buckets=_LATE, registry=registry
        )
        self.loop_lag_seconds = Histogram("vkubelet_loop_lag_seconds", "How late the event loop woke up.", buckets=_FAST, registry=registry)

    def render(self) -> bytes:
        """Everything on the registry in Prometheus text format 0.0.4."""
        return generate_latest(self.registry)
