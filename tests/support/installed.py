"""Two clusters whose nodes can hold our image, and helm as their owners use it.

Invariant: helm keeps nothing outside the directory of the test; what is listed of a cluster is everything that can be listed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from vkubelet.testing.cluster import ControlPlane, WorkerNode
from vkubelet.testing.cluster.processes import run

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "deploy" / "charts"
REPOSITORY, TAG = "localhost/kubeocean", "dev"
FLEETING = {"Event", "PodMetrics", "NodeMetrics", "ComponentStatus"}
"""Kinds that come and go by themselves."""

Listed = dict[tuple[str, str, str], dict[str, Any]]


async def image() -> Path:
    """The archive of the image for the sources as they are, built when it is not there."""
    said = await run(sys.executable, str(ROOT / "deploy" / "dev" / "image.py"))
    return Path(said.splitlines()[-1])


async def load(node: WorkerNode, archive: Path, *more_names: str) -> None:
    """Give a node the image, under other names as well."""
    await node.ctr("images", "import", str(archive))
    for name in more_names:
        await node.ctr("images", "tag", "--force", f"{REPOSITORY}:{TAG}", name)


async def serve_kubernetes(node: WorkerNode) -> None:
    """What kube-proxy would do for the one Service that our pods use: its address leads to the API server."""
    plane = node.cluster
    rule = ["--destination", plane.plane.first_service_address, "--protocol", "tcp", "--dport", "443"]
    target = ["--jump", "DNAT", "--to-destination", f"{plane.host_address}:{plane.port}"]
    for chain in ("PREROUTING", "OUTPUT"):
        await node.run("iptables", "--table", "nat", "--append", chain, *rule, *target)


@frozen
class Helm:
    """helm for one cluster."""

    plane: ControlPlane
    directory: Path

    async def __call__(self, *args: str, **values: str) -> str:
        """`helm ARGS --set KEY=VALUE …`; dots of keys are written as two underscores. Raises CommandFailed."""
        binary = (await self.plane.site.binaries.ensure(["helm"]))["helm"]
        homes = {f"HELM_{name}_HOME": str(self.directory / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        given = [f"--set={key.replace('__', '.')}={value}" for key, value in values.items()]
        return await run(str(binary), f"--kubeconfig={self.plane.kubeconfig}", *args, *given, env={**os.environ, **homes})


async def everything(plane: ControlPlane) -> Listed:
    """Every object that `kubectl get` can list, by kind, namespace and name."""
    kinds = (await plane.kubectl("api-resources", "--verbs=list", "--output=name")).split()
    wanted = [kind for kind in kinds if not kind.startswith(("events", "componentstatuses"))]
    text = await plane.kubectl("get", ",".join(wanted), "--all-namespaces", "--output=json")
    found: Listed = {}
    for body in json.loads(text)["items"]:
        metadata = body["metadata"]
        if body["kind"] not in FLEETING:
            found[(body["kind"], metadata.get("namespace", ""), metadata["name"])] = body
    return found


def marks(body: Mapping[str, Any]) -> dict[str, Any]:
    """What somebody else's hand would show on an object."""
    metadata = body["metadata"]
    ours = {kind: {key: value for key, value in metadata.get(kind, {}).items() if "kubeocean" in key} for kind in ("labels", "annotations")}
    return {"uid": metadata["uid"], "finalizers": metadata.get("finalizers", []), **ours}


def differences(before: Listed, after: Listed) -> dict[str, Any]:
    """What is new, what is missing, and what bears other marks."""
    both = before.keys() & after.keys()
    return {
        "new": sorted(after.keys() - before.keys()),
        "missing": sorted(before.keys() - after.keys()),
        "marked": [(key, marks(before[key]), marks(after[key])) for key in sorted(both) if marks(before[key]) != marks(after[key])],
    }


class Watched:
    """Follows `kubectl get nodes --watch` inside a block: every time a node was seen not Ready is in `unready`."""

    def __init__(self, plane: ControlPlane, *nodes: str) -> None:
        self._plane = plane
        self._nodes = set(nodes)
        self.unready: list[str] = []
        self.seen = 0

    async def __aenter__(self) -> Watched:
        binary = (await self._plane.site.binaries.ensure(["kubectl"]))["kubectl"]
        columns = '--output=jsonpath={.metadata.name} {.status.conditions[?(@.type=="Ready")].status}{"\\n"}'
        command = [str(binary), f"--kubeconfig={self._plane.kubeconfig}", "get", "nodes", "--watch", columns]
        self._process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        self._reader = asyncio.get_running_loop().create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await self._process.wait()
        await self._reader

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            name, _, ready = line.decode().strip().partition(" ")
            if name in self._nodes:
                self.seen += 1
                if ready != "True":
                    self.unready.append(f"{name} {ready}")
