"""The HTTP application behind all ports: routes, who may call them, and which error becomes which status code.

Invariant: every request passes the gate before any route, and no answer tells of our insides.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from attrs import frozen

from vkubelet.clock import Clock
from vkubelet.errors import BadRequest, NoSuchContainer, NoSuchPod, ProviderError, Unavailable
from vkubelet.logformat import bind
from vkubelet.server.auth import Gate
from vkubelet.server.listeners import MAIN
from vkubelet.server.logs import ContainerLogs
from vkubelet.server.node_endpoints import NodeEndpoints
from vkubelet.server.pods import NodePods

log = logging.getLogger(__name__)

Route = Callable[[web.Request], Awaitable[web.StreamResponse]]

_STATUS: dict[type[ProviderError], int] = {NoSuchPod: 404, NoSuchContainer: 404, BadRequest: 400, Unavailable: 503}
_UNSUPPORTED = ("exec", "attach", "portForward", "run", "stats", "metrics", "configz", "logs", "checkpoint")


@frozen(kw_only=True)
class Routes:
    """What the application is made of."""

    gate: Gate
    node_pods: NodePods
    logs: ContainerLogs
    node: NodeEndpoints
    clock: Clock
    is_current: Callable[[web.BaseRequest], bool]

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._observe, self._admit])
        application.on_response_prepare.append(self._close_if_outdated)
        router = application.router
        # allow_head is off: a HEAD on a stream would open it.
        router.add_get("/containerLogs/{namespace}/{pod}/{container}", self.logs.serve, allow_head=False)
        router.add_get("/healthz", self.node.healthz)
        router.add_get("/healthz/{check}", self.node.healthz)
        router.add_get("/pods", self.node.pods)
        router.add_get("/pods/", self.node.pods)
        router.add_get("/runningpods/", self.node.running_pods)
        router.add_get("/runningpods", self.node.redirect_running_pods)
        router.add_get("/version", self.node.version)
        for name in _UNSUPPORTED:
            router.add_route("*", f"/{name}", unsupported)
            router.add_route("*", f"/{name}/{{rest:.*}}", unsupported)
        return application

    @web.middleware
    async def _admit(self, request: web.Request, handler: Route) -> web.StreamResponse:
        await self.gate.admit(request, self._node_asked_about(request))
        return await handler(request)

    def _node_asked_about(self, request: web.Request) -> str:
        """At the main port the node of the pod in the path, or of all nodes when there is no such pod."""
        node = self.node_pods.node(request)
        if node == MAIN and "pod" in request.match_info:
            pod = self.node_pods.store.by_name(request.match_info["namespace"], request.match_info["pod"])
            return pod.node if pod is not None else MAIN
        return node or MAIN

    @web.middleware
    async def _observe(self, request: web.Request, handler: Route) -> web.StreamResponse:
        """The outermost: turns errors into answers, and notes the request. Queries are not noted, as they hold commands."""
        begin = self.clock.monotonic()
        with bind(node=self.node_pods.node(request) or "", method=request.method, path=request.path):
            response = await self._answered(request, handler)
            with bind(status=response.status, seconds=round(self.clock.monotonic() - begin, 3)):
                log.debug("request served")
        return response

    async def _close_if_outdated(self, request: web.Request, response: web.StreamResponse) -> None:
        """A connection made with an older certificate or client CA ends with the answer under way."""
        if not self.is_current(request):
            response.force_close()
            response.headers["Connection"] = "close"

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
    """501, as virtual-kubelet answers for what a provider lacks; a 404 would look like a missing pod."""
    return web.Response(status=501, text="501 not implemented")


def as_answer(error: web.HTTPException) -> web.Response:
    """An error raised by a route, or by the router: 404 with the text of Go's router, 405 with the allowed methods."""
    text = error.text or error.reason
    if error.status == 404 and text == "404: Not Found":
        text = "404 page not found"
    headers = {name: value for name, value in error.headers.items() if name in ("Allow", "Location", "Retry-After")}
    return web.Response(status=error.status, text=text, headers=headers)


def provider_answer(error: ProviderError) -> web.Response:
    """By class; only what is meant for the caller is shown."""
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), None)
    if status is None:
        with bind(error=str(error)):
            log.warning("provider failed a request")
        return web.Response(status=500, text="internal error")
    seconds = getattr(error, "retry_after", None)
    return web.Response(status=status, text=str(error), headers={"Retry-After": str(max(1, round(seconds)))} if seconds else None)
