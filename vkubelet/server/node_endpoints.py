"""Node endpoints of a kubelet: `/healthz`, `/pods`, `/runningpods/`, `/configz`, `/debug/pprof/goroutine`; and `/version`.

Invariant: everything here comes from memory or from the provider; nothing queries the API server.
"""

import asyncio
import io
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

import attrs
from aiohttp import web

from vkubelet.api.codec import encode_json
from vkubelet.api.objects import Json, JsonView
from vkubelet.provider import PodReport, Provider, Running
from vkubelet.server.node_pods import NodePods
from vkubelet.server.settings import ServerSettings

Health = Callable[[], str | None]
CHECKS = ("ping", "log", "syncloop")
PROFILING_OFF = "profiling endpoint is disabled."


@attrs.frozen(kw_only=True)
class NodeEndpoints:
    """Endpoints; `health` returns why the runtime does not work, None when it does; `configuration` is the response to `/configz`."""

    provider: Provider
    node_pods: NodePods
    health: Health
    configuration: JsonView
    profiling: bool

    def routes(self) -> list[web.RouteDef]:
        tasks = "/debug/pprof/goroutine"
        return [
            web.get("/healthz", self.healthz),
            web.get("/healthz/{check}", self.healthz),
            web.get("/pods", self.pods, allow_head=False),
            web.get("/pods/", self.pods, allow_head=False),
            web.get("/runningpods/", self.running_pods, allow_head=False),
            web.get("/runningpods", self.redirect_running_pods),
            web.get("/version", self.version),
            web.get("/configz", self.configz, allow_head=False),
            web.get(tasks, self.tasks, allow_head=False) if self.profiling else web.route("*", tasks, _profiling_off),
        ]

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

    async def configz(self, request: web.Request) -> web.Response:
        return web.Response(body=encode_json({"kubeletconfig": dict(self.configuration)}), content_type="application/json")

    async def tasks(self, request: web.Request) -> web.Response:
        """Lists the tasks of the process and where each waits, as a kubelet lists its goroutines."""
        return web.Response(text=waiting_tasks())


async def _profiling_off(request: web.Request) -> web.StreamResponse:
    return web.Response(status=405, text=PROFILING_OFF)


def waiting_tasks() -> str:
    """Lists the tasks of the running loop by name, each with the stack at which it waits."""
    blocks = []
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        out = io.StringIO()
        task.print_stack(file=out)
        blocks.append(f"task {task.get_name()}:\n{out.getvalue()}")
    return f"{len(blocks)} tasks\n\n" + "\n".join(blocks)


# --- Pure -------------------------------------------------------------------------------------------------------------------------------


def kubelet_configuration(settings: ServerSettings) -> Json:
    """Returns our settings by the names of a KubeletConfiguration (kubelet.config.k8s.io/v1beta1), with port 0 where there is none.

    Only fields that mean here what they mean for a kubelet are contained.
    """
    return {
        "enableServer": True,
        "address": settings.bind_address,
        "port": int(settings.main_port),
        "serverTLSBootstrap": settings.certificate == "csr",
        "authentication": {
            "x509": {"clientCAFile": settings.client_ca_file},
            "webhook": {"enabled": settings.token_review},
            "anonymous": {"enabled": settings.anonymous},
        },
        "authorization": {"mode": "Webhook"},
        "streamingConnectionIdleTimeout": duration(settings.stream_idle_timeout),
        "enableDebuggingHandlers": settings.debug.handlers,
        "enableProfilingHandler": settings.debug.profiling,
        "enableDebugFlagsHandler": False,
        "enableSystemLogHandler": settings.debug.node_logs,
        "enableSystemLogQuery": False,
    }


def duration(seconds: float) -> str:
    """Formats seconds as Go formats a time.Duration; with milliseconds at most."""
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    hours, minutes = divmod(minutes, 60)
    tail = f"{rest / 1000:g}s"
    return f"{hours}h{minutes}m{tail}" if hours else f"{minutes}m{tail}" if minutes else tail


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
