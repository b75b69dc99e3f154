"""Follows the README from a fresh clone to a running pod on a leased node, and prints each command, its output and its time.

Run it as root: `python -m tests.e2e.first_contact`. Invariant: the commands are those of the README, in a clone of the last commit with an
environment of its own; two control planes, a node for each, and the image on the hub's node are what a reader has already.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.installed import image, load, serve_kubernetes
from tests.support.pages import ROOT, Shell, block
from tests.support.program import eventually
from vkubelet.testing.cluster import ControlPlane, Site, WorkerNode

IMAGE = "registry.example.com/team/kubeocean:0.1.0"
VNODE = "vnode-demo-node-1"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@asynccontextmanager
async def clusters() -> AsyncIterator[tuple[ControlPlane, ControlPlane]]:
    """A hub with a node that has the image, and a worker with a node."""
    site = Site(say=print)
    await site.start()
    try:
        hub, worker = ControlPlane("first-hub", site), ControlPlane("first-worker", site)
        await asyncio.gather(hub.start(), worker.start())
        nodes = WorkerNode("hub-1", hub), WorkerNode("node-1", worker)
        await asyncio.gather(*(node.start() for node in nodes))
        await load(nodes[0], await image(), IMAGE)
        await serve_kubernetes(nodes[0])
        yield hub, worker
    finally:
        await site.stop()


async def follow(shell: Shell, cloned: float) -> None:
    """Types the commands."""
    readme = block("README.md", 1)
    # The image of the README's registry is on the node already; the third command asks for a confirmation.
    for lines, typed in (((0,), None), ((1, 2), None), ((3,), "y\n"), *(((each,), None) for each in (4, 5, 6, 7))):
        began = time.monotonic()
        await shell.run(readme.lines(*lines), typed=typed)
        print(f"--- {time.monotonic() - began:.1f} s, {time.monotonic() - cloned:.1f} s since the clone\n")


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="first-contact-") as scratch:
        async with clusters() as (hub, worker):
            base = await Shell.of(Path(scratch) / "shell", {"hub": hub, "worker": worker})
            began = time.monotonic()
            clone, venv = Path(scratch) / "clone", Path(scratch) / "venv"
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
            path = f"{venv / 'bin'}:{base.directory / 'programs'}:{SYSTEM_PATH}"
            shell = Shell(clone, {**base.env, "PATH": path})
            await follow(shell, began)

            async def greets() -> bool:
                return "hello from hello-" in await hub.kubectl("logs", "deploy/hello")

            await eventually(greets, "the pod greets")
            print(await hub.kubectl("logs", "deploy/hello", "--tail=2"))
            print(f"from the clone to a running pod on {VNODE}: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    asyncio.run(main())
