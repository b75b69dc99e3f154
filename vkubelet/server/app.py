"""The HTTP application behind all ports: routes, authorization, request metrics, and the mapping of errors to status codes.

Invariant: every request passes the gate before any route, no response reveals internals, and no caller can create a new metric series:
methods and paths that are not known count as `other`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from aiohttp import hdrs, web
from attrs import field, frozen
from multidict import CIMultiDict
from prometheus_client import Counter, Gauge, Histogram

from vkubelet.clock import Clock
from vkubelet.errors import ProviderError
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics
from vkubelet.server.auth import Caller, Gate, is_debug, served_path
from vkubelet.server.exec import ContainerStreams
from vkubelet.server.listeners import MAIN
from vkubelet.server.logs import ContainerLogs
from vkubelet.server.node_pods import NodePods
from vkubelet.server.portforward import PortForwards
from vkubelet.server.ports import admit
from vkubelet.server.remotecommand import ACCEPTED_HEADER
from vkubelet.server.statuses import HIDDEN, http_status

log = logging.getLogger(__name__)

STOPPING = "this kubelet server is stopping; try again in a few seconds"
HANDLERS_OFF = "Debug endpoints are disabled."

Route = Callable[[web.Request], Awaitable[web.StreamResponse]]

_MEANT_HEADERS = frozenset({"Allow", "Location", "Retry-After", ACCEPTED_HEADER})
OTHER = "other"
_METHODS = frozenset(hdrs.METH_ALL)
_FIRST = frozenset(
    (
        *("attach", "checkpoint", "configz", "containerLogs", "debug", "exec", "healthz", "logs", "metrics"),
        *("pods", "portForward", "run", "runningpods", "stats", "version"),
    )
)
_METRICS = frozenset(("cadvisor", "probes", "resource", "slis"))
_LONG = frozenset(("attach", "debug", "exec", "portForward"))


class Endpoints(Protocol):
    """One family of handlers."""

    def routes(self) -> Iterable[web.RouteDef]: ...


@frozen(kw_only=True)
class Routes:
    """Handlers and collaborators of the application."""

    gate: Gate
    node_pods: NodePods
    logs: ContainerLogs
    streams: ContainerStreams
    port_forwards: PortForwards
    clock: Clock
    stops: Callable[[], bool]
    traffic: Traffic
    endpoints: Sequence[Endpoints] = ()
    debugging: bool = True

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._observe, self._admit])
        router = application.router
        # allow_head is off: a HEAD on a stream would open it.
        router.add_get("/containerLogs/{namespace}/{pod}/{container}", self.logs.serve, allow_head=False)
        for tail in ("{namespace}/{pod}/{container}", "{namespace}/{pod}/{uid}/{container}"):
            for name, handler in (("exec", self.streams.exec), ("attach", self.streams.attach)):
                router.add_get(f"/{name}/{tail}", handler, allow_head=False)
                router.add_post(f"/{name}/{tail}", handler)
            router.add_post(f"/run/{tail}", self.streams.run)
        for tail in ("{namespace}/{pod}", "{namespace}/{pod}/{uid}"):
            router.add_get(f"/portForward/{tail}", self.port_forwards.serve, allow_head=False)
            router.add_post(f"/portForward/{tail}", self.port_forwards.serve)
        router.add_post("/checkpoint/{namespace}/{pod}/{container}", unsupported)
        for each in self.endpoints:
            router.add_routes(each.routes())
        return application

    @web.middleware
    async def _admit(self, request: web.Request, handler: Route) -> web.StreamResponse:
        if self.stops():
            raise web.HTTPServiceUnavailable(text=STOPPING)
        caller = await self.gate.authenticate(request)
        await self.gate.authorize(caller.user, request, node=self._node_asked_about(request, caller))
        admit(request)
        if not self.debugging and is_debug(served_path(request)):
            return web.Response(status=405, text=HANDLERS_OFF)
        return await handler(request)

    def _node_asked_about(self, request: web.Request, caller: Caller) -> str:
        """Returns, at the main port, the node that the API server names, or that of the pod in the path, or "" for all nodes without
        such a pod."""
        claimed = self.node_pods.claim(request) if caller.by_certificate else None
        if claimed is not None:
            return claimed
        node = self.node_pods.node(request)
        if node == MAIN and "pod" in request.match_info:
            pod = self.node_pods.store.by_name(request.match_info["namespace"], request.match_info["pod"])
            return pod.node if pod is not None else MAIN
        return node or MAIN

    @web.middleware
    async def _observe(self, request: web.Request, handler: Route) -> web.StreamResponse:
        """Turns errors into responses, and logs the request; the outermost middleware. Queries are not logged, as they contain commands."""
        begin = self.clock.monotonic()
        with bind(node=self.node_pods.node(request) or "", method=request.method, path=request.path):
            with self.traffic.watch(request):
                response = await self._answered(request, handler)
            with bind(status=response.status, seconds=round(self.clock.monotonic() - begin, 3)):
                log.debug("request served")
        return response

    async def _answered(self, request: web.Request, handler: Route) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            return as_answer(error)
        except ProviderError as error:
            return provider_answer(error)
        except NotImplementedError:
            return await unsupported(request)
        except Exception:
            log.exception("request failed")
            return web.Response(status=500, text="internal error")


async def unsupported(request: web.Request) -> web.StreamResponse:
    """Returns 501, as virtual-kubelet does for what a provider lacks; a 404 would mean that the pod is missing."""
    return web.Response(status=501, text="501 not implemented")


def as_answer(error: web.HTTPException) -> web.Response:
    """Turns an error raised by a route or by the router into a response: 404 with the text of Go's router, 405 with the allowed methods."""
    text = error.text or error.reason
    if error.status == 404 and text == "404: Not Found":
        text = "404 page not found"
    headers = CIMultiDict((name, value) for name, value in error.headers.items() if name in _MEANT_HEADERS)
    return web.Response(status=error.status, text=text, headers=headers, content_type=error.content_type)


def provider_answer(error: ProviderError) -> web.Response:
    """Turns a provider error into a response, by its class; only a message meant for the caller is shown."""
    status = http_status(error)
    if status is None:
        with bind(error=str(error)):
            log.warning("provider failed a request")
        return web.Response(status=500, text=HIDDEN)
    seconds = getattr(error, "retry_after", None)
    return web.Response(status=status, text=str(error), headers={"Retry-After": str(max(1, round(seconds)))} if seconds else None)


# --- Request metrics ----------------------------------------------------------------------------------------------------------------------


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
    route = f"metrics/{parts[2]}" if first == "metrics" and len(parts) == 3 and parts[2] in _METRICS else first
    return (method if method in _METHODS else OTHER, route, "readwrite", "true" if first in _LONG else "false")
