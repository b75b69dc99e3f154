"""Counts the requests to the kubelet server, with the names and labels of a kubelet's metrics.

Invariant: no caller can create a new series: methods and paths that are not known count as `other`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import hdrs, web
from attrs import field, frozen
from prometheus_client import Counter, Gauge, Histogram

from vkubelet.clock import Clock
from vkubelet.metrics import Metrics
from vkubelet.server.rights import served_path

OTHER = "other"
_METHODS = frozenset(hdrs.METH_ALL)
_FIRST = frozenset(
    (
        *("attach", "checkpoint", "configz", "containerLogs", "debug", "exec", "flagz", "healthz", "logs", "metrics"),
        *("pods", "portForward", "run", "runningpods", "stats", "statusz", "version"),
    )
)
_METRICS = frozenset(("cadvisor", "probes", "resource", "slis"))
_LONG = frozenset(("attach", "debug", "exec", "portForward"))


@frozen
class Traffic:
    """Request metrics in the registry of the process."""

    metrics: Metrics
    clock: Clock
    _known: dict[tuple[str, ...], tuple[Counter, Gauge, Histogram]] = field(factory=dict, init=False)

    @contextmanager
    def watch(self, request: web.Request) -> Iterator[None]:
        """Counts the request that is served inside."""
        labels = series(request.method, served_path(request))
        requests, inflight, seconds = self._counters(labels)
        began = self.clock.monotonic()
        requests.inc()
        with inflight.track_inprogress():
            try:
                yield
            finally:
                seconds.observe(self.clock.monotonic() - began)

    def _counters(self, labels: tuple[str, ...]) -> tuple[Counter, Gauge, Histogram]:
        if labels not in self._known:
            metrics = self.metrics
            self._known[labels] = (
                metrics.http_requests.labels(*labels),
                metrics.http_inflight.labels(*labels),
                metrics.http_seconds.labels(*labels),
            )
        return self._known[labels]


def series(method: str, path: str) -> tuple[str, str, str, str]:
    """Returns method, path, server type, and whether such a request may last long, of a `served_path`."""
    parts = path.split("/")
    first = parts[1] if len(parts) > 1 and parts[1] in _FIRST else OTHER
    told = f"metrics/{parts[2]}" if first == "metrics" and len(parts) == 3 and parts[2] in _METRICS else first
    return (method if method in _METHODS else OTHER, told, "readwrite", "true" if first in _LONG else "false")
