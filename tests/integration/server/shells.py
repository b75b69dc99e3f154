"""A pod whose containers are processes, behind a kubelet server, and kubectl to reach it through the real API server.

Invariant: at the end no call is under way and no process is left; kubectls are ended with their block.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from tests.integration.server.backend import RUNNING, Stand, serving, tls
from tests.integration.server.processes import ProcessBackend
from tests.support.program import eventually
from tests.support.spdy_client import SpdyClient, connected, upgrade_request
from vkubelet.api.objects import Pod
from vkubelet.server import Endpoint
from vkubelet.testing.cluster import ControlPlane

CONTAINERS = (
    {"name": "app"},
    {"name": "reading", "stdin": True},
    {"name": "screen", "stdin": True, "tty": True},
    {"name": "dead"},
    {"name": "coming"},
)
STATES = {
    **{name: {"state": RUNNING} for name in ("app", "reading", "screen")},
    "dead": {"state": {"terminated": {"exitCode": 3, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z"}}},
    "coming": {"state": {"waiting": {"reason": "ContainerCreating"}}},
}
WEBSOCKETS, SPDY = True, False
NOTICED = 2.0
"""Seconds in which the loss of a client ends its call. Nothing else would end one for hours, but a time that a test shortens."""


@frozen
class Ran:
    """How a program ended and what it said."""

    code: int
    stdout: bytes
    stderr: str


@frozen
class Target:
    """A pod, and the kubelet that serves it."""

    hub: ControlPlane
    endpoint: Endpoint
    namespace: str
    name: str

    def path(self, verb: str, query: str, *, container: str = "app") -> str:
        """At the kubelet; port-forwards have no container."""
        tail = "" if verb == "portForward" else f"/{container}"
        return f"/{verb}/{self.namespace}/{self.name}{tail}?{query}"

    @asynccontextmanager
    async def spdy(self, path: str, *protocols: str, status: int = 101) -> AsyncIterator[SpdyClient]:
        """A client whose upgrade was answered with `status`."""
        context = tls(self.hub, certificate=True)
        async with connected(self.endpoint.address, self.endpoint.port, context) as client:
            assert await client.upgrade(upgrade_request(path, *protocols)) == status, client.head
            yield client

    # --- kubectl --------------------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def kubectl(self, *args: str, websockets: bool = True, stdin: int = DEVNULL, **options: Any) -> AsyncIterator[Process]:
        """A running kubectl, killed at the end of the block if it still runs."""
        binary = (await self.hub.site.binaries.ensure(["kubectl"]))["kubectl"]
        value = "true" if websockets else "false"
        process = await asyncio.create_subprocess_exec(
            str(binary), f"--kubeconfig={self.hub.kubeconfig}", "-n", self.namespace, *args,
            env={**os.environ, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": value, "KUBECTL_PORT_FORWARD_WEBSOCKETS": value},
            **{"stdin": stdin, "stdout": PIPE, "stderr": PIPE, **options},
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def run(self, *args: str, websockets: bool = True, stdin: bytes | None = None, within: float = 60.0) -> Ran:
        """A kubectl to its end."""
        async with asyncio.timeout(within), self.kubectl(*args, websockets=websockets, stdin=DEVNULL if stdin is None else PIPE) as process:
            stdout, stderr = await process.communicate(stdin)
            return Ran(process.returncode or 0, stdout, stderr.decode())


@frozen
class Shells(Target):
    """`pod` on its own node, served by `stand`."""

    stand: Stand
    backend: ProcessBackend
    pod: Pod
    directory: Path

    async def exec(
        self, *command: str, flags: str = "", websockets: bool = True, stdin: bytes | None = None, container: str = "app"
    ) -> Ran:
        options = ("-c", container, *flags.split())
        return await self.run("exec", self.name, *options, "--", *command, websockets=websockets, stdin=stdin)

    def streams(self, kind: str) -> float:
        """As the metrics have it."""
        value = self.stand.metrics.registry.get_sample_value("vkubelet_streams", {"kind": kind})
        return value or 0.0

    async def until_idle(self) -> float:
        """Wait until no call of the provider is under way; the seconds that this took."""
        began = asyncio.get_running_loop().time()
        await eventually(lambda: self.backend.calls.running.total() == 0, "all calls have ended", every=0.02)
        return asyncio.get_running_loop().time() - began


@asynccontextmanager
async def shells_on(hub: ControlPlane, namespace: str, directory: Path, *, path: str = "", **settings: Any) -> AsyncIterator[Shells]:
    """The directory is where commands run; `path` is searched for programs first."""
    backend = ProcessBackend(directory, path=path)
    name = f"v-{uuid.uuid4().hex[:8]}"
    async with serving(hub, backend, **settings) as stand:
        endpoint = await stand.node(name)
        pod = await stand.pod(namespace, name, name=f"web-{name}", states=STATES, containers=CONTAINERS)
        yield Shells(hub, endpoint, namespace, pod.metadata.name, stand, backend, pod, directory)
    assert backend.calls.running.total() == 0
    assert not backend.processes
