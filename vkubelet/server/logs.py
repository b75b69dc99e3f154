"""`/containerLogs`, `kubectl logs` for the containers of virtual pods; and `/logs/`, the log files of a node, if its provider has any.

Invariant: the response to an invalid request has the kubelet's code and text; a caller that disconnects closes the provider's stream; a
provider is never called with a path outside its logs, however it is spelled.
"""

import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta

import attrs
from aiohttp import web

from vkubelet.api.objects import JsonView, Pod, PodRef
from vkubelet.clock import Clock, parse_rfc3339
from vkubelet.errors import NoSuchContainer, NoSuchPod
from vkubelet.metrics import Metrics
from vkubelet.provider import LogOptions, Provider, SupportsLogOptions, SupportsLogs, SupportsNodeLogs
from vkubelet.server.answer import TEXT, closing, streamed
from vkubelet.server.logfilter import LineCount, LogFilter
from vkubelet.server.node_pods import NodePods, container_status, has_container

_INTEGER = re.compile(r"[+-]?[0-9]+\Z", re.ASCII)
_PULL_REASONS = {"ErrImagePull": "image can't be pulled", "ImagePullBackOff": "trying and failing to pull image"}
DISABLED = "logs endpoint is disabled."
_LISTING = "text/html; charset=utf-8"
_NOT_FOUND = "404 page not found"


@attrs.frozen(kw_only=True)
class ContainerLogs:
    """Endpoint; `node_pods` finds the pod of a request."""

    provider: Provider
    node_pods: NodePods
    clock: Clock
    metrics: Metrics

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serves one log, in chunks as they come. Raises web.HTTPException and ProviderError before the first byte."""
        pod_name, container = request.match_info["pod"], request.match_info["container"]
        options = parse_options(request.query, now=self.clock.now())
        pod = self.node_pods.find(request, request.match_info["namespace"], pod_name)
        if not has_container(pod, container):
            raise web.HTTPNotFound(text=f'container "{container}" not found in pod "{pod_name}"')
        if not isinstance(self.provider, SupportsLogs):
            raise web.HTTPNotImplemented(text="the provider of this node does not support logs")
        problem = not_available(pod, container, previous=options.previous)
        if problem:
            raise web.HTTPBadRequest(text=problem)
        with self.metrics.streams.labels(kind="logs").track_inprogress():
            try:
                return await streamed(request, self._chunks(self.provider, pod.ref, container, options=options), clock=self.clock)
            except NoSuchPod as error:
                raise web.HTTPNotFound(text=f'pod "{pod_name}" does not exist') from error
            except NoSuchContainer as error:
                raise web.HTTPNotFound(text=f'container "{container}" not found in pod "{pod_name}"') from error

    async def _chunks(self, provider: SupportsLogs, pod: PodRef, container: str, *, options: LogOptions) -> AsyncIterator[bytes]:
        if isinstance(provider, SupportsLogOptions) and provider.logs_apply_options:
            async with closing(provider.stream_logs(pod, container, options)) as stream:
                async for chunk in stream:
                    yield chunk
            return
        plain = LogOptions(follow=options.follow, previous=options.previous)
        skip, lines = 0, None
        if options.tail is not None:
            # Counting first needs no memory, and shows a follower where the existing log stops.
            total = await _count_lines(provider.stream_logs(pod, container, attrs.evolve(plain, follow=False)))
            skip = max(0, total - options.tail)
            lines = None if options.follow else total - skip
        wanted = LogFilter(skip=skip, lines=lines, since=options.since, timestamps=options.timestamps, limit=options.limit_bytes)
        if wanted.done:
            return
        async with closing(provider.stream_logs(pod, container, plain)) as stream:
            async for chunk in stream:
                data = wanted.feed(chunk)
                if data:
                    yield data
                if wanted.done:
                    return
        data = wanted.finish()
        if data:
            yield data


async def _count_lines(stream: AsyncIterator[bytes]) -> int:
    count = LineCount()
    async with closing(stream):
        async for chunk in stream:
            count.feed(chunk)
    return count.lines


# --- Pure -------------------------------------------------------------------------------------------------------------------------------


def parse_options(query: Mapping[str, str], *, now: datetime) -> LogOptions:
    """Parses the query as the kubelet parses it. Raises 400 for what cannot be parsed, 422 for invalid values."""
    try:
        tail = None if query.get("tail") == "all" else _integer(query, "tail" if query.get("tail") else "tailLines")
        limit, seconds = _integer(query, "limitBytes"), _integer(query, "sinceSeconds")
        since_time = query.get("sinceTime")
        since = parse_rfc3339(since_time) if since_time else None
    except ValueError as error:
        raise web.HTTPBadRequest(text='{"message": "Unable to decode query."}') from error
    negative = (tail is not None and tail < 0) or (limit is not None and limit < 1) or (seconds is not None and seconds < 1)
    if negative or (seconds is not None and since_time is not None) or query.get("stream", "All") != "All":
        raise web.HTTPUnprocessableEntity(text='{"message": "Invalid request."}')
    if seconds is not None:
        since = _before(now, seconds)
    return LogOptions(
        follow=_boolean(query, "follow"),
        previous=_boolean(query, "previous"),
        timestamps=_boolean(query, "timestamps"),
        tail=tail,
        since=since,
        since_seconds=seconds if since is not None else None,
        limit_bytes=limit,
    )


def _integer(query: Mapping[str, str], name: str) -> int | None:
    """Parses a signed 64-bit integer, as the API machinery does; None when absent. Raises ValueError."""
    text = query.get(name)
    if text is None:
        return None
    if not _INTEGER.match(text) or not -(2**63) <= int(text[:21]) < 2**63 or len(text) > 20:
        raise ValueError(f"{name} is not a 64-bit integer")
    return int(text)


def _boolean(query: Mapping[str, str], name: str) -> bool:
    """Parses a boolean: the API machinery takes everything but "false" and "0" for true, also an empty value."""
    text = query.get(name)
    return text is not None and text.lower() not in ("false", "0")


def _before(now: datetime, seconds: int) -> datetime | None:
    """Returns the time that many seconds before, None when that is before the year 1."""
    room = (now - datetime.min.replace(tzinfo=UTC)).total_seconds()
    return now - timedelta(seconds=seconds) if seconds < room else None


def not_available(pod: Pod, container: str, *, previous: bool) -> str:
    """Returns why this container has no log to show, as the kubelet's message; "" when it has one.

    Unlike a kubelet this does not require container ids, which a provider need not have.
    """
    name = pod.metadata.name
    status = container_status(pod, container)
    if status is None:
        return f'container "{container}" in pod "{name}" is not available'
    state: JsonView = status.get("state") or {}
    ended_before = bool((status.get("lastState") or {}).get("terminated"))
    if previous:
        return "" if ended_before else f'previous terminated container "{container}" in pod "{name}" not found'
    if "running" in state or ended_before:
        return ""
    if "terminated" in state:
        return f'container "{container}" in pod "{name}" is terminated' if _never_ran(state["terminated"]) else ""
    reason = (state.get("waiting") or {}).get("reason", "")
    return f'container "{container}" in pod "{name}" is waiting to start: {_PULL_REASONS.get(reason, reason)}'


def _never_ran(terminated: JsonView) -> bool:
    """Checks for the runtime's mark of a container of which nothing is known (kubelet: ContainerStatusUnknown)."""
    return terminated.get("reason") == "ContainerStatusUnknown" and not terminated.get("containerID")


# --- Log files of a node ------------------------------------------------------------------------------------------------------------------


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
