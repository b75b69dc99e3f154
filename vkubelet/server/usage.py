"""`/stats/summary`, `/metrics/resource`, `/metrics/cadvisor`, `/metrics/probes`: the provider's usage data of a node.

Invariant: a provider's document is forwarded unchanged, or reduced; nothing is added that the provider did not report.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from aiohttp import web

from vkubelet.api.codec import encode_json
from vkubelet.api.shapes import Json, JsonView
from vkubelet.provider import MetricsEndpoint, Provider, SupportsMetrics, SupportsStats
from vkubelet.server.pods import NodePods

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
_ALIKE = ("name", "startTime", "cpu", "memory", "swap")


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
