"""Metrics of one node: `/metrics` and `/metrics/slis` by the names of a kubelet, and the provider's usage data, `/stats/summary` among it.

Invariant: only known values are exposed; a series of a kubelet that would always be zero here is omitted, and a provider's document is
forwarded unchanged, or reduced.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

import attrs
from aiohttp import web

from vkubelet.api.codec import encode_json
from vkubelet.api.objects import Json, JsonView, Pod
from vkubelet.api.podspec import CONTAINER_STATUSES
from vkubelet.clock import Clock
from vkubelet.metrics import Durations, Metrics
from vkubelet.provider import MetricsEndpoint, Provider, SupportsMetrics, SupportsStats
from vkubelet.server.node_endpoints import CHECKS, Health, failing_checks
from vkubelet.server.node_pods import NodePods
from vkubelet.stats import Labels, Sample, family

_MIRROR = "kubernetes.io/config.mirror"
_CONTAINER_STATES = {"running": "running", "terminated": "exited"}
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
_ALIKE = ("name", "startTime", "cpu", "memory", "swap")


@attrs.frozen(kw_only=True)
class MetricsEndpoints:
    """Endpoints; `due` returns how many pods of a node wait for a worker, by queue."""

    metrics: Metrics
    node_pods: NodePods
    health: Health
    due: Callable[[str], Mapping[str, int]]
    clock: Clock

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/metrics", self.serve, allow_head=False),
            web.get("/metrics/slis", self.slis, allow_head=False),
        ]

    async def serve(self, request: web.Request) -> web.Response:
        node = self.node_pods.single_node(request)
        parts = (
            await self.metrics.scrape(self.clock, provider=False),
            *pod_families(node, self.node_pods.all(request)),
            *queue_families(node, self.due(node)),
            *worker_families(self.metrics.pod_worker.of(node)),
            status_family(self._status_durations(node)),
        )
        return web.Response(body=b"".join(parts), headers={"Content-Type": EXPOSITION})

    def _status_durations(self, node: str) -> Iterator[tuple[Labels, Durations]]:
        return (({}, found) for found in self.metrics.pod_status.of(node).values())

    async def slis(self, request: web.Request) -> web.Response:
        self.node_pods.single_node(request)
        return web.Response(body=health_family(failing_checks(self.health)), headers={"Content-Type": EXPOSITION})


# --- Pure -------------------------------------------------------------------------------------------------------------------------------


def pod_families(node: str, pods: Iterable[Pod]) -> Iterator[bytes]:
    """Yields the counts that a kubelet exposes for its pods, from their objects."""
    count: Counter[str] = Counter()
    desired, active = Counter({"": 0, "true": 0}), Counter({"": 0, "true": 0})
    working: Counter[tuple[str, str]] = Counter({(stage, ""): 0 for stage in ("sync", "terminating", "terminated")})
    containers: Counter[str] = Counter(dict.fromkeys(_CONTAINER_STATES.values(), 0))
    for pod in pods:
        static = "true" if _MIRROR in pod.metadata.annotations else ""
        desired[static] += 1
        active[static] += not pod.terminal
        working["terminated" if pod.terminal else "terminating" if pod.terminating else "sync", static] += 1
        found = _states(pod)
        states = [state for _, state in found]
        containers.update(states)
        count["running"] += "running" in states
        count["mirror"] += static == "true"
        count["ephemeral"] += sum(kind == "ephemeralContainerStatuses" for kind, _ in found)
    yield family("kubelet_node_name", "gauge", "Name of the node.", samples=[({"node": node}, 1, None)])
    yield family("kubelet_running_pods", "gauge", "Pods with a running container.", samples=[({}, count["running"], None)])
    yield _counted("kubelet_running_containers", "Containers by state.", containers, label="container_state")
    yield _counted("kubelet_desired_pods", "Pods bound to the node.", desired, label="static")
    yield _counted("kubelet_active_pods", "Pods that have not ended.", active, label="static")
    stages = [({"lifecycle": stage, "config": "desired", "static": static}, n, None) for (stage, static), n in working.items()]
    yield family("kubelet_working_pods", "gauge", "Pods by where in their life they are.", samples=stages)
    yield family("kubelet_mirror_pods", "gauge", "Mirror pods.", samples=[({}, count["mirror"], None)])
    name, text = "kubelet_managed_ephemeral_containers", "Ephemeral containers that run or have ended."
    yield family(name, "gauge", text, samples=[({}, count["ephemeral"], None)])


def _states(pod: Pod) -> list[tuple[str, str]]:
    """Returns type and state of every container that exists."""
    status = pod.status
    entries = [(kind, entry.get("state") or {}) for kind in CONTAINER_STATUSES for entry in status.get(kind) or ()]
    return [(kind, name) for kind, state in entries for key, name in _CONTAINER_STATES.items() if key in state]


def _counted(name: str, text: str, counts: Mapping[str, int], *, label: str) -> bytes:
    return family(name, "gauge", text, samples=[({label: value}, n, None) for value, n in counts.items()])


def queue_families(node: str, due: Mapping[str, int]) -> Iterator[bytes]:
    samples: list[Sample] = [({"node": node, "queue": queue}, n, None) for queue, n in due.items()]
    yield family("vkubelet_node_queue_depth", "gauge", "Pods of the node that wait for a worker.", samples=samples)


def worker_families(operations: Mapping[str, Durations]) -> Iterator[bytes]:
    told = [({"operation_type": operation}, found) for operation, found in operations.items()]
    yield durations("kubelet_pod_worker_duration_seconds", "Calls of the provider for one pod.", told)
    failed: list[Sample] = [(labels, found.failed, None) for labels, found in told]
    yield family("vkubelet_pod_worker_failures_total", "counter", "Those of them that failed.", samples=failed)


def status_family(told: Iterable[tuple[Labels, Durations]]) -> bytes:
    return durations("kubelet_pod_status_sync_duration_seconds", "From a change to the written status.", told)


def health_family(failing: Collection[str]) -> bytes:
    samples: list[Sample] = [({"name": name, "type": "healthz"}, name not in failing, None) for name in CHECKS]
    return family("kubernetes_healthcheck", "gauge", "Whether a health check succeeds.", samples=samples)


def durations(name: str, text: str, told: Iterable[tuple[Labels, Durations]]) -> bytes:
    """Renders a histogram in text format 0.0.4."""
    lines: list[str] = []
    for labels, found in told:
        inside = "".join(f'{label}="{value}",' for label, value in labels.items())
        limits = [*map(repr, found.limits), "+Inf"]
        below = list(accumulate(found.counts))
        lines += [f'{name}_bucket{{{inside}le="{limit}"}} {n}' for limit, n in zip(limits, below, strict=True)]
        lines += [f"{name}_sum{{{inside.rstrip(',')}}} {found.seconds!r}", f"{name}_count{{{inside.rstrip(',')}}} {below[-1]}"]
    return "\n".join((f"# HELP {name} {text}", f"# TYPE {name} histogram", *lines, "")).encode() if lines else b""


# --- Usage data of the provider -----------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class UsageEndpoints:
    """Endpoints; a provider without the capability responds with 501."""

    provider: Provider
    node_pods: NodePods

    def routes(self) -> list[web.RouteDef]:
        found = [
            web.get("/stats/summary", self.summary, allow_head=False),
            web.post("/stats/summary", self.summary),
        ]
        return found + [web.get(f"/metrics/{endpoint.value}", self.metrics, allow_head=False) for endpoint in MetricsEndpoint]

    async def summary(self, request: web.Request) -> web.Response:
        node = self.node_pods.single_node(request)
        if not isinstance(self.provider, SupportsStats):
            raise NotImplementedError
        asked = list(request.query.getall("only_cpu_and_memory", ()))
        if request.method == "POST":
            asked += [value for value in (await request.post()).getall("only_cpu_and_memory", ()) if isinstance(value, str)]
        document = await self.provider.stats_summary(node)
        # Exactly this, as in a kubelet: "1" or a second value requests everything.
        wanted = cpu_and_memory(document) if asked == ["true"] else document
        return web.Response(body=encode_json(wanted), content_type="application/json")

    async def metrics(self, request: web.Request) -> web.Response:
        node = self.node_pods.single_node(request)
        if not isinstance(self.provider, SupportsMetrics):
            raise NotImplementedError
        text = await self.provider.metrics(node, MetricsEndpoint(request.path.rpartition("/")[2]))
        return web.Response(body=text, headers={"Content-Type": EXPOSITION})


def cpu_and_memory(document: JsonView) -> Json:
    """Returns the part of a summary that `?only_cpu_and_memory=true` selects."""
    node: JsonView = document.get("node") or {}
    kept = _only(node, ("nodeName", *_ALIKE))
    if node.get("systemContainers"):
        kept["systemContainers"] = [_only(container, _ALIKE) for container in node["systemContainers"]]
    return {"node": kept, "pods": [_pod(pod) for pod in document.get("pods") or ()]}


def _pod(pod: JsonView) -> Json:
    kept = _only(pod, ("podRef", *_ALIKE))
    return kept | {"containers": [_only(container, _ALIKE) for container in pod.get("containers") or ()]}


def _only(body: JsonView, names: Sequence[str]) -> Json:
    return {name: body[name] for name in names if name in body}
