"""Node endpoints of a kubelet: `/healthz`, `/pods`, `/runningpods/`; and `/version` at the main port.

Invariant: everything here comes from memory or from the provider; nothing queries the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

import attrs
from aiohttp import web

from vkubelet.api.codec import encode_json
from vkubelet.api.shapes import Json
from vkubelet.provider import PodReport, Provider, Running
from vkubelet.server.pods import NodePods

Health = Callable[[], str | None]
CHECKS = ("ping", "log", "syncloop")


@attrs.frozen(kw_only=True)
class NodeEndpoints:
    """Endpoints; `health` returns why the runtime does not work, None when it does."""

    provider: Provider
    node_pods: NodePods
    health: Health

    async def healthz(self, request: web.Request) -> web.Response:
        failing = failing_checks(self.health)
        check = request.match_info.get("check")
        if check is None:
            return health_report(failing, excluded=request.query.getall("exclude", []), verbose="verbose" in request.query)
        if check not in CHECKS:
            raise web.HTTPNotFound(text="404 page not found")
        if check in failing:
            return web.Response(status=500, text="internal server error: the runtime is not healthy\n")
        return web.Response(text="ok")

    async def pods(self, request: web.Request) -> web.Response:
        """Lists the pods bound to the node, as the API server has them."""
        items = [{"metadata": pod.metadata, "spec": pod.spec, "status": pod.status} for pod in self.node_pods.all(request)]
        return _pod_list(items)

    async def running_pods(self, request: web.Request) -> web.Response:
        """Lists the pods that have a running container according to the backend."""
        reports = await self.provider.list_pods(self.node_pods.single_node(request))
        return _pod_list([_running_pod(report) for report in reports if any(isinstance(c.state, Running) for c in report.containers)])

    async def redirect_running_pods(self, request: web.Request) -> web.Response:
        raise web.HTTPMovedPermanently("/runningpods/")

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"kubeletVersion": own_version()})


def own_version() -> str:
    """Returns our version as Kubernetes formats versions."""
    try:
        return f"v{version('vkubelet')}"
    except PackageNotFoundError:
        return "v0.0.0"


def failing_checks(health: Health) -> Sequence[str]:
    """Returns which of CHECKS fail now."""
    return ("syncloop",) if health() is not None else ()


def health_report(failing: Sequence[str], *, excluded: Sequence[str] = (), verbose: bool = False) -> web.Response:
    """Returns the response of `/healthz`, in the form of the component-base health checks."""
    lines = [_health_line(check, failing, excluded=excluded) for check in CHECKS]
    unknown = [f'"{name}"' for name in excluded if name not in CHECKS]
    if unknown:
        lines.append(f"warn: some health checks cannot be excluded: no matches for {', '.join(unknown)}")
    if set(failing) - set(excluded):
        return _plain("\n".join((*lines, "healthz check failed", "")), status=500)
    return _plain("\n".join((*lines, "healthz check passed", "")) if verbose else "ok")


def _health_line(check: str, failing: Sequence[str], *, excluded: Sequence[str]) -> str:
    if check in excluded:
        return f"[+]{check} excluded: ok"
    return f"[-]{check} failed: reason withheld" if check in failing else f"[+]{check} ok"


def _running_pod(report: PodReport) -> Json:
    pod = report.pod
    running = [{"name": c.name, "image": c.image_id} for c in report.containers if isinstance(c.state, Running)]
    return {"metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}, "spec": {"containers": running}, "status": {}}


def _pod_list(items: Sequence[Json]) -> web.Response:
    body = encode_json({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
    return web.Response(body=body, content_type="application/json")


def _plain(text: str, *, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, headers={"X-Content-Type-Options": "nosniff"})
