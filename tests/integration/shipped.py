"""The wheel in a virtual environment: its program, and the pod that it has to run.

Invariant: nothing of this checkout is importable there.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.program import eventually
from vkubelet.testing.cluster import ControlPlane


def outside() -> dict[str, str]:
    """An environment in which this checkout is not importable."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


@contextmanager
def vkubelet(venv: Path, cluster: ControlPlane, *arguments: str, kubeconfig: Path, directory: Path) -> Iterator[Path]:
    """`vkubelet run` of the wheel; gives its log. Started outside of the checkout, so that only the wheel is found."""
    command = [str(venv / "bin/vkubelet"), "run", "--kubeconfig", str(kubeconfig), "--node-address", cluster.host_address, *arguments]
    log = directory / "vkubelet.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=directory, env=outside(), stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield log
        assert process.poll() is None, f"it ended by itself:\n{log.read_text()}"
    finally:
        process.terminate()
        assert process.wait(30) == 0, log.read_text()


async def ready_node(cluster: ControlPlane, instance: str) -> str:
    """Name of the node of that instance, when it is Ready; else empty."""
    listed = json.loads(await cluster.kubectl("get", "nodes", "--selector", f"vkubelet.io/instance={instance}", "--output", "json"))
    for node in listed["items"]:
        if any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ())):
            return str(node["metadata"]["name"])
    return ""


def pod_on(node: str) -> str:
    containers = [{"name": "main", "image": "example.invalid/never-pulled"}]
    spec = {"nodeName": node, "containers": containers, "tolerations": [{"operator": "Exists"}]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec})


async def a_pod_runs_and_has_logs(cluster: ControlPlane, instance: str, log: Path, *, shows: str) -> None:
    node = await eventually(lambda: ready_node(cluster, instance), f"a node of {instance} is Ready", seconds=60)
    namespace = await cluster.namespace("wheel")
    try:
        await cluster.kubectl("--namespace", namespace, "create", "--filename", "-", stdin=pod_on(node))
        await cluster.kubectl("--namespace", namespace, "wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
        assert shows in await cluster.kubectl("--namespace", namespace, "logs", "web")
        await cluster.kubectl("--namespace", namespace, "delete", "pod", "web", "--timeout=60s")
    finally:
        print(log.read_text())


async def forget_nodes(cluster: ControlPlane, instance: str) -> None:
    """Only once the program has ended: it would register a node that is deleted by hand again."""
    await cluster.kubectl("delete", "nodes", "--selector", f"vkubelet.io/instance={instance}")
