"""Worker nodes without containers: our own runtime with the mock provider, registered in the worker cluster as ordinary nodes.

Invariant: for kubeocean they are physical nodes like any other; only their kubelet is ours.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.support.bound import condition, items
from tests.support.program import PATIENCE, Program, eventually
from vkubelet.testing.cluster import ControlPlane


def simulated_nodes(worker: ControlPlane, name: str, *, nodes: int, directory: Path, label: str = "") -> Program:
    """The program, not started; its nodes are `NAME-0` …, or `NAME` when there is one. Their label `simulated` is the name unless given."""
    settings = {
        "instance": name,
        "node": {"taint": ""},
        "server": {"node_address": worker.host_address, "main_port": 0, "approve_own_csr": True},
        "health": {"health_address": "", "metrics_address": ""},
        "provider": {"node": name, "nodes": nodes, "resolve": False, "labels": {"type": "simulated", "simulated": label or name}},
    }
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / f"{name}.yaml"
    config.write_text(yaml.safe_dump(settings))
    arguments = ("run", "--provider", "mock", "--config", str(config), "--kubeconfig", str(worker.kubeconfig))
    return Program("vkubelet", *arguments, log=directory / f"{name}.log")


def names(name: str, nodes: int) -> list[str]:
    return [name] if nodes == 1 else [f"{name}-{i}" for i in range(nodes)]


async def all_ready(cluster: ControlPlane, nodes: list[str], *, seconds: float = PATIENCE) -> None:
    """Wait until all these Nodes are Ready."""

    async def check() -> bool:
        ready = {item["metadata"]["name"] for item in await items(cluster, "nodes") if condition(item, "Ready") == "True"}
        return set(nodes) <= ready

    await eventually(check, f"nodes Ready: {nodes}", seconds=seconds, every=0.3)
