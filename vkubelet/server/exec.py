"""`/exec`, `/attach` and `/run`: commands in the containers of virtual pods, and the containers themselves.

Invariant: every error of a request is detected before the connection is upgraded, and answered with the kubelet's code and text.
"""

from collections.abc import AsyncIterator

import attrs
from aiohttp import web

from vkubelet.api.objects import Json, Pod
from vkubelet.api.podspec import PLANNED_CONTAINERS
from vkubelet.provider import ContainerIO, Provider, SupportsAttach, SupportsExec, TerminalSize
from vkubelet.server import statuses
from vkubelet.server.node_pods import NodePods, container_spec, container_status
from vkubelet.server.remotecommand import Resizes, Streaming, Wishes, Work, serve

LONGEST_RUN = 16 * 1024 * 1024
"""Bytes of each output that `/run` returns; the rest is dropped, as by containerd."""

_EXECUTING = "executing command in container"
_ATTACHING = "attaching to container"


@attrs.frozen(kw_only=True)
class ContainerStreams:
    """Endpoints; `node_pods` finds the pod of a request."""

    provider: Provider
    node_pods: NodePods
    streaming: Streaming

    async def exec(self, request: web.Request) -> web.StreamResponse:
        """Executes a command, over SPDY or WebSocket."""
        provider = self.provider
        if not isinstance(provider, SupportsExec):
            raise statuses.not_supported("exec")
        wishes = Wishes.of(request.query)
        pod, container = self._running(request)
        command = request.query.getall("command", [])
        if not command:
            raise web.HTTPBadRequest(text="you must specify a command")

        async def call(io: ContainerIO) -> Json:
            code = await provider.exec(pod.ref, container, command, io)
            return statuses.exit_status(statuses.exit_code(code), command)

        return await self._serve(request, wishes, Work(call=call, action=_EXECUTING, tty=wishes.tty), kind="exec")

    async def attach(self, request: web.Request) -> web.StreamResponse:
        """Attaches to the main process of the container; its spec, not the client, decides about a terminal and stdin."""
        provider = self.provider
        if not isinstance(provider, SupportsAttach):
            raise statuses.not_supported("attach")
        wishes = Wishes.of(request.query)
        pod, container = self._attachable(request)
        spec = container_spec(pod, container) or {}

        async def call(io: ContainerIO) -> Json:
            await provider.attach(pod.ref, container, io)
            return statuses.SUCCESS

        work = Work(call=call, action=_ATTACHING, tty=spec.get("tty", False), stdin=spec.get("stdin", False))
        return await self._serve(request, wishes, work, kind="attach")

    async def run(self, request: web.Request) -> web.StreamResponse:
        """Runs a command without input until it exits; the response is its output."""
        provider = self.provider
        if not isinstance(provider, SupportsExec):
            raise statuses.not_supported("exec")
        pod, container = self._running(request)
        command = request.query.get("cmd", "").split(" ")
        printed = Printed()
        with self.streaming.metrics.streams.labels(kind="exec").track_inprogress():
            code = statuses.exit_code(await provider.exec(pod.ref, container, command, printed))
        if code:
            said = printed.stderr.decode(errors="replace")
            raise web.HTTPInternalServerError(text=f"command '{' '.join(command)}' exited with {code}: {said}")
        return web.Response(body=bytes(printed.stdout + printed.stderr), content_type="application/json")

    async def _serve(self, request: web.Request, wishes: Wishes, work: Work, *, kind: str) -> web.StreamResponse:
        with self.streaming.metrics.streams.labels(kind=kind).track_inprogress():
            return await serve(request, wishes, work, streaming=self.streaming)

    def _running(self, request: web.Request) -> tuple[Pod, str]:
        """Returns the pod and the name of its running container. Raises 404 and 500, as a kubelet."""
        pod, container = pod_of(request, self.node_pods), request.match_info["container"]
        if not runs(pod, container):
            raise web.HTTPInternalServerError(text=f'container not found ("{container}")')
        return pod, container

    def _attachable(self, request: web.Request) -> tuple[Pod, str]:
        pod, container = pod_of(request, self.node_pods), request.match_info["container"]
        if not runs(pod, container):
            name = f"{pod.metadata.name}_{pod.metadata.namespace}"
            raise web.HTTPInternalServerError(text=f"container {container} not found in pod {name}")
        return pod, container


class Printed:
    """ContainerIO that buffers what is written."""

    def __init__(self) -> None:
        self.tty = False
        self.stdin: AsyncIterator[bytes] | None = None
        self.stdout, self.stderr = bytearray(), bytearray()
        sizes = Resizes()
        sizes.end()
        self.resizes: AsyncIterator[TerminalSize] = sizes

    async def write_stdout(self, data: bytes) -> None:
        self.stdout += data[: LONGEST_RUN - len(self.stdout)]

    async def write_stderr(self, data: bytes) -> None:
        self.stderr += data[: LONGEST_RUN - len(self.stderr)]


def pod_of(request: web.Request, node_pods: NodePods) -> Pod:
    """Returns the pod of a stream. Raises the 404 of a kubelet, also for commands meant for an earlier pod of that name."""
    pod = node_pods.lookup(request, request.match_info["namespace"], request.match_info["pod"])
    if pod is None:
        raise web.HTTPNotFound(text="pod does not exist")
    if request.match_info.get("uid", pod.metadata.uid) != pod.metadata.uid:
        raise web.HTTPNotFound(text="pod not found")
    return pod


def runs(pod: Pod, container: str) -> bool:
    """Checks whether the container may be running.

    During its postStart hook a container is published as waiting, and only the provider knows whether it runs already.
    """
    state = (container_status(pod, container) or {}).get("state") or {}
    return "running" in state or ("waiting" in state and _has_post_start(pod, container))


def _has_post_start(pod: Pod, container: str) -> bool:
    specs = [each for key in PLANNED_CONTAINERS for each in pod.spec.get(key) or ()]
    return any(each.get("name") == container and (each.get("lifecycle") or {}).get("postStart") for each in specs)
