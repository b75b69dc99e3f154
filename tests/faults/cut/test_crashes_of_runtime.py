"""Killed at its writes while pods start and end, `vkubelet run` starts each container once and deletes every pod.

The mock provider keeps its pods in memory, so a pod that was reported before a kill fails as lost; those of the process provider live on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from attrs import define, field

from tests.faults.cut.choice import Choice
from tests.faults.cut.crashes import Killer, Operation
from tests.integration.process.conftest import clear, long_time, remove_groups, sleeping
from tests.integration.runtime.conftest import fleet_on
from tests.integration.runtime.fleet import Body, Fleet
from tests.support.audit import Audit
from tests.support.bound import condition
from tests.support.gate import Gate
from tests.support.program import eventually
from vkubelet.testing.cluster import ControlPlane
from vkubelet_providers.process import Process

PODS = ("a", "b")


@define(eq=False)
class Pods:
    """Two pods on a node, made and deleted again and again; `starts` is where each container that starts adds a line."""

    fleet: Fleet
    node: str
    starts: Path
    sleeps: str
    rounds: int = 0
    uids: set[str] = field(factory=set)

    def names(self) -> list[str]:
        return [f"{name}-{self.rounds}" for name in PODS]

    async def create(self) -> None:
        self.rounds += 1
        for name in self.names():
            command = ["sh", "-c", f"echo {name} >> /etc/starts-of-test/all; exec sleep {self.sleeps}"]
            mount = {"name": "starts", "mountPath": "/etc/starts-of-test"}
            container = {"name": "main", "image": "none", "command": command, "volumeMounts": [mount]}
            volume = {"name": "starts", "hostPath": {"path": str(self.starts.parent)}}
            await self.fleet.create(name, node=self.node, containers=[container], volumes=[volume], automountServiceAccountToken=False)

    async def all_ready(self) -> bool:
        found = await self._found()
        return len(found) == len(PODS) and all(condition(body, "Ready") == "True" for body in found)

    async def all_ready_or_lost(self) -> bool:
        """As far as a backend can know that forgets everything with its process."""
        found = await self._found()
        return len(found) == len(PODS) and all(
            condition(body, "Ready") == "True" or (body["status"]["phase"], body["status"].get("reason")) == ("Failed", "ProviderLost")
            for body in found
        )

    async def delete(self) -> None:
        await self.fleet.kubectl("delete", "pod", *self.names(), "--wait=false")

    async def gone(self) -> bool:
        return not await self._found() and not sleeping(self.sleeps)

    async def _found(self) -> list[Body]:
        found = [body for body in await self.fleet.pods() if body["metadata"]["name"] in self.names()]
        self.uids |= {body["metadata"]["uid"] for body in found}
        return found


@pytest.fixture
async def fleet(hub: ControlPlane, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with fleet_on(hub, tmp_path / "fleet") as made:
        yield made


def _led_by(gate: Gate, fleet: Fleet) -> Audit:
    user = f"{fleet.instance}-killed"
    fleet.kubeconfig = gate.lead(fleet.plane, fleet.plane.client_config(user, ["system:masters"]))
    return Audit(fleet.plane, user)


async def _killed(fleet: Fleet, pods: Pods, killer: Killer, *, forgets: bool) -> None:
    await fleet.ready([pods.node], program=killer.program)
    create = Operation(name="create", begin=pods.create, reached=pods.all_ready_or_lost if forgets else pods.all_ready)
    delete = Operation(name="delete", begin=pods.delete, reached=pods.gone)
    async with fleet.watched("nodes") as nodes:
        await killer.at_each_write(create, delete)
    assert not nodes.where(lambda event: event.kind == "DELETED" or event.condition("Ready") != "True")


async def test_mock_pods_end_and_none_is_deleted_unasked(fleet: Fleet, gate: Gate, choice: Choice, tmp_path: Path) -> None:
    audit = _led_by(gate, fleet)
    node = fleet.name("mock")
    pods = Pods(fleet, node, tmp_path / "starts" / "all", long_time())
    with fleet.program("mock", provider={"node": node, "resolve": False}) as program:
        await _killed(fleet, pods, Killer(gate, program, choice), forgets=True)
    deleted = [call for call in audit.writes() if (call.verb, call.what) == ("delete", "pods")]
    assert deleted and all(call.body["preconditions"]["uid"] in pods.uids for call in deleted)


async def test_containers_of_processes_start_once_and_all_end(fleet: Fleet, gate: Gate, choice: Choice, tmp_path: Path) -> None:
    _led_by(gate, fleet)
    node, group = fleet.name("process"), f"vkubelet-{fleet.instance}"
    starts = tmp_path / "starts" / "all"
    starts.parent.mkdir()
    tmp_path.chmod(0o711)
    own = {
        "node": node,
        "address": fleet.plane.host_address,
        "directory": str(tmp_path / "process"),
        "allow_root": True,
        "cgroup": group,
        "host_paths": [str(starts.parent)],
    }
    pods = Pods(fleet, node, starts, long_time())
    try:
        with fleet.program("process", provider=own) as program:
            await _killed(fleet, pods, Killer(gate, program, choice), forgets=False)
            lines = starts.read_text().split()
            assert sorted(lines) == sorted(f"{name}-{at}" for at in range(1, pods.rounds + 1) for name in PODS)
            left = tmp_path / "process" / "pods"
            await eventually(lambda: not list(left.iterdir()), "nothing is left of the pods")
    finally:
        await clear(Process.Settings(**own))
        remove_groups(group)
