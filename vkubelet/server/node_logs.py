"""`/logs/` and below: the log files of a node, if its provider has any.

Invariant: a provider is never called with a path outside its logs, however it is spelled.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import attrs
from aiohttp import web

from vkubelet.clock import Clock
from vkubelet.metrics import Metrics
from vkubelet.provider import Provider, SupportsNodeLogs
from vkubelet.server.answer import TEXT, closing, streamed
from vkubelet.server.pods import NodePods

DISABLED = "logs endpoint is disabled."
_LISTING = "text/html; charset=utf-8"
_NOT_FOUND = "404 page not found"


@attrs.frozen(kw_only=True)
class NodeLogs:
    """Endpoint. An empty path, or one with a slash as its last character, requests a listing, in HTML."""

    provider: Provider
    node_pods: NodePods
    clock: Clock
    metrics: Metrics
    enabled: bool

    def routes(self) -> list[web.RouteDef]:
        if not self.enabled:
            return [web.route("*", path, _disabled) for path in ("/logs", "/logs/{path:.*}")]
        return [
            web.get("/logs", self.redirect, allow_head=False),
            web.get("/logs/{path:.*}", self.serve, allow_head=False),
        ]

    async def redirect(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPMovedPermanently("/logs/")

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serves a log file. Raises ProviderError before the first byte; 404 for a path that cannot be one of a log."""
        node, path = self.node_pods.single_node(request), request.match_info["path"]
        if not isinstance(self.provider, SupportsNodeLogs):
            raise NotImplementedError
        if not stays_inside(path):
            raise web.HTTPNotFound(text=_NOT_FOUND)
        kind = _LISTING if not path or path.endswith("/") else TEXT
        with self.metrics.streams.labels(kind="node-logs").track_inprogress():
            return await streamed(request, _found(self.provider.node_logs(node, path)), clock=self.clock, content_type=kind)


async def _found(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async with closing(stream):
            async for chunk in stream:
                yield chunk
    except FileNotFoundError as error:
        raise web.HTTPNotFound(text=_NOT_FOUND) from error


async def _disabled(request: web.Request) -> web.StreamResponse:
    return web.Response(status=405, text=DISABLED)


def stays_inside(path: str) -> bool:
    """Checks that the path is relative, goes down only, and reads the same to every file system; it is decoded once already."""
    parts = path.removesuffix("/").split("/") if path else []
    return all(part not in ("", ".", "..") for part in parts) and not any(ord(c) < 32 or c == "\\" for c in path)
