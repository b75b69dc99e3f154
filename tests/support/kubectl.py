"""kubectl as a user runs it: with files, pipes and a choice of transport.

Invariant: a kubectl is gone with the block that started it.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from attrs import frozen

from vkubelet.testing.cluster import ControlPlane


@frozen
class Ran:
    """How a kubectl ended and what it said."""

    code: int
    stdout: bytes
    stderr: str


@frozen
class Kubectl:
    """For one namespace, with one of its transports."""

    plane: ControlPlane
    namespace: str
    websockets: bool = True

    @asynccontextmanager
    async def kubectl(self, *args: str, stdin: int = DEVNULL, **options: Any) -> AsyncIterator[Process]:
        """A running one, killed at the end of the block if it still runs."""
        binary = (await self.plane.site.binaries.ensure(["kubectl"]))["kubectl"]
        told = "true" if options.pop("websockets", self.websockets) else "false"
        process = await asyncio.create_subprocess_exec(
            str(binary),
            f"--kubeconfig={self.plane.kubeconfig}",
            f"--namespace={self.namespace}",
            *args,
            env={**os.environ, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": told, "KUBECTL_PORT_FORWARD_WEBSOCKETS": told},
            **{"stdin": stdin, "stdout": PIPE, "stderr": PIPE, **options},
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def run(self, *args: str, stdin: bytes | None = None, within: float = 60.0) -> Ran:
        """One to its end."""
        async with asyncio.timeout(within), self.kubectl(*args, stdin=DEVNULL if stdin is None else PIPE) as process:
            stdout, stderr = await process.communicate(stdin)
            return Ran(process.returncode or 0, stdout, stderr.decode())

    async def sh(self, pod: str, script: str, *flags: str, stdin: bytes | None = None) -> Ran:
        """`kubectl exec POD FLAGS -- sh -c SCRIPT`."""
        return await self.run("exec", pod, *flags, "--", "sh", "-c", script, stdin=stdin)
