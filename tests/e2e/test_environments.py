"""A process on a process node sees the variables, arguments, files and names that a container sees on a real node.

Invariant: both halves of a pair are the same pod in the same namespace; what they may differ in is named in `tests/support/dumps.py` alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.support.bound import apply, items, vacate
from tests.support.dumps import is_complete, parse
from tests.support.environments import CASES, OBJECTS, body
from tests.support.process_node import ProcessNode
from tests.support.program import KUBECTL_TIMEOUT, LONG, eventually
from vkubelet.testing.cluster import ControlPlane, WorkerNode
from vkubelet.testing.cluster.images import BUSYBOX

Body = dict[str, Any]

REAL, OURS = "real", "ours"
MARK = {"set": "environments"}
DNS = "search corp.example lab.example\nnameserver 192.0.2.53\nnameserver 192.0.2.54\noptions ndots:3 rotate\n"


@pytest.fixture
def host_dns(worker_node: WorkerNode) -> Iterator[None]:
    """Something for both nodes to hand on; without it a container engine shows the host's file."""
    file = Path(worker_node.plan.path("resolv.conf"))
    before = file.read_text()
    file.write_text(DNS)
    yield
    file.write_text(before)


@frozen
class Pairs:
    """The forty pods, each on both nodes, by the suffix of their names."""

    plane: ControlPlane
    namespace: str
    nodes: Mapping[str, str]

    async def kubectl(self, *args: str, stdin: str | None = None) -> str:
        return await self.plane.kubectl("-n", self.namespace, *args, stdin=stdin)

    async def start(self) -> None:
        """With all they refer to."""
        await apply(self.plane, *(self._object(kind, made) for kind, made in OBJECTS))
        pods = [
            body(case, namespace=self.namespace, node=node, image=BUSYBOX, name=f"{case.name}-{suffix}")
            for case in CASES
            for suffix, node in self.nodes.items()
        ]
        for pod in pods:
            pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), **MARK}
        await self.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))

    def _object(self, kind: str, made: Body) -> Body:
        return {"apiVersion": "v1", "kind": kind, **made, "metadata": {**made["metadata"], "namespace": self.namespace}}

    async def ended(self) -> dict[str, Body]:
        """All pods by name, once none of them runs."""

        async def over() -> bool:
            phases = (await self.kubectl("get", "pods", "-o", "jsonpath={.items[*].status.phase}")).split()
            return len(phases) == len(CASES) * len(self.nodes) and set(phases) <= {"Succeeded", "Failed"}

        try:
            await eventually(over, "all pods have ended", seconds=2 * LONG, every=0.5)
        except AssertionError as error:
            stuck = await self.kubectl("get", "pods", "-o", "wide", "--field-selector=status.phase!=Succeeded")
            raise AssertionError(f"{error}\n{stuck}") from None
        return {pod["metadata"]["name"]: pod for pod in await items(self.plane, "pods", "-n", self.namespace)}

    async def logs(self, names: Iterable[str]) -> dict[str, str]:
        """Of these pods, once they are complete: a container runtime may store the last lines after it has reported the exit."""

        async def complete() -> dict[str, str]:
            found = await self._logs()
            return found if all(is_complete(found.get(name, "")) for name in names) else {}

        logs: dict[str, str] = await eventually(complete, "complete logs of all pods", seconds=30, every=0.5)
        return logs

    async def _logs(self) -> dict[str, str]:
        """Of all pods by name, in one go."""
        selector = ",".join(f"{key}={value}" for key, value in MARK.items())
        found: dict[str, list[str]] = {}
        for line in (await self.kubectl("logs", f"--selector={selector}", "--prefix", "--tail=-1")).splitlines():
            origin, _, text = line.partition("] ")
            found.setdefault(origin.split("/")[1], []).append(text)
        return {name: "\n".join(lines) for name, lines in found.items()}


def places(pod: Body, node: Body) -> dict[str, str]:
    """What only this pod has, with the word for it."""
    return {
        pod["metadata"]["name"]: "<pod>",
        pod["metadata"]["uid"]: "<uid>",
        node["metadata"]["name"]: "<node>",
        node["metadata"]["uid"]: "<node's uid>",
        # A process has the address of its node, a container one of its own.
        pod["status"]["podIP"]: "<address>",
        pod["status"]["hostIP"]: "<address>",
    }


@pytest.mark.timeout(1500)
async def test_forty_pods_see_as_processes_what_they_see_as_containers(
    worker: ControlPlane, worker_node: WorkerNode, process_node: ProcessNode, host_dns: None
) -> None:
    pairs = Pairs(worker, await worker.namespace("environments"), {REAL: worker_node.name, OURS: process_node.name})
    try:
        await pairs.start()
        pods = await pairs.ended()
        failed = {name: pod["status"] for name, pod in pods.items() if pod["status"]["phase"] != "Succeeded"}
        assert not failed, json.dumps(failed, indent=1)
        logs = await pairs.logs(pods)
        nodes = {node["metadata"]["name"]: node for node in await items(worker, "nodes")}
        dumps = {name: parse(logs.get(name, "")).told(places(pod, nodes[pod["spec"]["nodeName"]])) for name, pod in pods.items()}
    finally:
        await vacate(worker, pairs.namespace, workloads=True)
    found = [f"{case.name}: {line}" for case in CASES for line in dumps[f"{case.name}-{REAL}"].differences(dumps[f"{case.name}-{OURS}"])]
    assert not found, f"{len(found)} differences, first the container's, then the process's:\n" + "\n".join(found)
    assert sum(len(dump.env) + len(dump.files) for dump in dumps.values()) > 1000, "the pods have seen little"


@pytest.mark.skipif(os.getuid() != 0, reason="only root chooses groups")
async def test_a_pod_gets_no_groups_but_its_own_where_it_insists(worker: ControlPlane, process_node: ProcessNode) -> None:
    namespace = await worker.namespace("groups")
    strict = {"supplementalGroupsPolicy": "Strict", "runAsUser": 65534, "supplementalGroups": [4711]}
    container = {"name": "main", "image": BUSYBOX, "command": ["busybox", "id", "-G"]}
    spec = {
        "nodeName": process_node.name,
        "tolerations": [{"operator": "Exists"}],
        "restartPolicy": "Never",
        "securityContext": strict,
        "containers": [container],
    }
    try:
        await apply(worker, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "strict", "namespace": namespace}, "spec": spec})
        await worker.kubectl("-n", namespace, "wait", "pod/strict", "--for=jsonpath={.status.phase}=Succeeded", KUBECTL_TIMEOUT)
        assert await worker.kubectl("-n", namespace, "logs", "strict") == "65534 4711\n"
    finally:
        await vacate(worker, namespace, workloads=True)
