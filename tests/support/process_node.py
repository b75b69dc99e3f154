"""A process node in a cluster: `vkubelet run --provider process` on this machine, as its owner would start it.

Invariant: when it is removed, no pod, process, mount, control group or Node of it is left, whatever became of the program.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from attrs import field, frozen

from tests.integration.process.conftest import clear, remove_groups
from tests.support.bound import delete
from tests.support.program import PATIENCE, Program, eventually
from vkubelet.settings import merged
from vkubelet.testing.cluster import ControlPlane, WorkerNode
from vkubelet.testing.cluster.cgroups import hierarchies
from vkubelet_providers.process import Process

_WEIGHT = "cpu.shares"


async def telling_as(node: WorkerNode) -> dict[str, Any]:
    """Settings by which the pods of a process node are told of it what those of `node` are told: its size and its DNS."""

    async def sizes() -> dict[str, str] | None:
        allocatable = json.loads(await node.cluster.kubectl("get", "node", node.name, "-o", "jsonpath={.status.allocatable}") or "{}")
        found = {name: allocatable[name] for name in ("cpu", "memory", "ephemeral-storage") if name in allocatable}
        return found if len(found) == 3 else None

    # A kubelet knows its disk a moment after the rest.
    told = await eventually(sizes, "the node tells its size")
    # The kubelet of the development clusters is told of no cluster domain.
    return {"pods": {"resolv_conf": node.plan.path("resolv.conf"), "cluster_domain": ""}, "provider": {"allocatable": told}}


@frozen
class ProcessNode:
    """One node; its kubelet server has a certificate of the cluster's CA, so that kubectl's streams work."""

    name: str
    plane: ControlPlane
    directory: Path
    settings: Mapping[str, Any] = field(factory=dict)
    """Laid over its own."""
    cgroup: str = field(init=False, factory=lambda: f"vkubelet-e2e-{os.getpid()}")

    @property
    def state(self) -> Path:
        return self.directory / "process"

    @property
    def pods(self) -> Path:
        """A directory for each pod."""
        return self.state / "pods"

    def program(self) -> Program:
        """Not started."""
        settings = {
            "instance": self.name,
            "server": {"node_address": self.plane.host_address, "main_port": 0, "approve_own_csr": True},
            "health": {"health_address": "", "metrics_address": ""},
            "log": {"level": "DEBUG"},
            "provider": {
                "node": self.name,
                "address": self.plane.host_address,
                "directory": str(self.state),
                "allow_root": True,
                "cgroup": self.cgroup,
            },
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o711)
        self._make_room()
        config = self.directory / "settings.yaml"
        config.write_text(yaml.safe_dump(merged(settings, self.settings)))
        arguments = ("run", "--provider", "process", "--config", str(config), "--kubeconfig", str(self.plane.kubeconfig))
        return Program("vkubelet", *arguments, log=self.directory / "vkubelet.log")

    def _make_room(self) -> None:
        """The engine of a real node is in no group, where on this machine each process weighs as much as a whole group does by itself."""
        with suppress(PermissionError):
            for top in hierarchies():
                if (top / _WEIGHT).exists():
                    (top / self.cgroup).mkdir(exist_ok=True)
                    (top / self.cgroup / _WEIGHT).write_text(str(64 << 10))

    async def emptied(self) -> None:
        """All pods end; the program must run."""
        here = f"--field-selector=spec.nodeName={self.name}"
        await delete(self.plane, "pods", "--all-namespaces", here, "--grace-period=1", "--wait=false")
        await eventually(lambda: not self.pods.exists() or not list(self.pods.iterdir()), "nothing is left of its pods", seconds=PATIENCE)

    async def removed(self) -> None:
        """What is left; the program must have ended."""
        await delete(self.plane, "node", self.name, "--ignore-not-found", "--wait=false")
        if self.pods.exists() and list(self.pods.iterdir()):
            await clear(
                Process.Settings(node=self.name, address="127.0.0.1", directory=str(self.state), allow_root=True, cgroup=self.cgroup)
            )
        remove_groups(self.cgroup)
