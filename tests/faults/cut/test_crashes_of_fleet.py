"""Killed at its writes while clusters are accepted, denied and removed and members join and leave, `fleet hub` completes each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml
from attrs import define

from fleet.api import keys
from tests.faults.cut.choice import Choice
from tests.faults.cut.crashes import Killer, Operation
from tests.integration.fleet.conftest import admin, fleet_hub, prepared
from tests.integration.fleet.player import CLUSTERS, MEMBERS, RBAC, Caller, conditions, internal, lease, managed, member, profile
from tests.support.gate import Gate
from tests.support.program import Program, eventually
from vkubelet.testing.cluster import ControlPlane

__all__ = ["admin", "fleet_hub", "prepared"]

ROLE = "open-cluster-management:managedcluster"


@define(eq=False)
class Fleet:
    """One cluster of each API, made and deleted again and again."""

    admin: Caller
    rounds: int = 0

    @property
    def cluster(self) -> str:
        return f"x{self.rounds}"

    @property
    def member(self) -> str:
        return f"y{self.rounds}"

    async def exist(self, *paths: str) -> bool:
        return all([await self.admin.get(path) is not None for path in paths])

    async def missing(self, *paths: str) -> bool:
        return all([await self.admin.get(path) is None for path in paths])

    def rights(self) -> list[str]:
        bindings = [f"{RBAC}/namespaces/{self.cluster}/rolebindings/{ROLE}:{self.cluster}:{each}" for each in ("registration", "work")]
        return [*bindings, f"{RBAC}/namespaces/fleet-system/rolebindings/{ROLE}:{self.cluster}:gateway"]

    async def accept(self) -> None:
        self.rounds += 1
        await self.admin.create(CLUSTERS, managed(self.cluster))

    async def accepted(self) -> bool:
        name = self.cluster
        made = await self.exist(*self.rights(), lease(name), f"{RBAC}/clusterrolebindings/{ROLE}:{name}", internal(name))
        found = conditions(await self.admin.get(f"{CLUSTERS}/{name}")).get("HubAcceptedManagedCluster")
        return made and found == ("True", "HubClusterAdminAccepted")

    async def deny(self) -> None:
        await self.admin.merge(f"{CLUSTERS}/{self.cluster}", {"spec": {"hubAcceptsClient": False}})

    async def accept_again(self) -> None:
        await self.admin.merge(f"{CLUSTERS}/{self.cluster}", {"spec": {"hubAcceptsClient": True}})

    async def denied(self) -> bool:
        role = await self.admin.get(f"{RBAC}/clusterroles/{ROLE}:{self.cluster}")
        found = conditions(await self.admin.get(f"{CLUSTERS}/{self.cluster}")).get("HubAcceptedManagedCluster")
        small = role is not None and len(role["rules"]) == 1
        return small and await self.missing(*self.rights()) and found == ("False", "HubClusterAdminDenied")

    async def remove(self) -> None:
        await self.admin.delete(f"{CLUSTERS}/{self.cluster}")

    async def removed(self) -> bool:
        name = self.cluster
        bound = [f"{RBAC}/clusterroles/{ROLE}:{name}", f"{RBAC}/clusterrolebindings/{ROLE}:{name}", lease(name)]
        records = (f"{CLUSTERS}/{name}", f"{MEMBERS}/{name}")
        return await self.missing(*self.rights(), *bound, *records) and await self.exist(f"/api/v1/namespaces/{name}")

    async def join(self) -> None:
        self.rounds += 1
        await self.admin.create(MEMBERS, member(self.member))

    async def joins(self) -> bool:
        found = conditions(await self.admin.get(f"{MEMBERS}/{self.member}")).get("ReadyToJoin")
        mirrored = conditions(await self.admin.get(f"{CLUSTERS}/{self.member}")).get("HubAcceptedManagedCluster")
        return found == ("True", "MemberClusterReadyToJoin") and mirrored == ("True", "HubClusterAdminAccepted")

    async def leave(self) -> None:
        name = self.member
        reported = {"type": "Joined", "status": "False", "reason": "Left", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        agents = [{"type": "MemberAgent", "conditions": [reported]}]
        await self.admin.merge(f"{internal(name)}/status", {"status": {"agentStatus": agents}})
        await self.admin.delete(f"{MEMBERS}/{name}")

    async def left(self) -> bool:
        name = self.member
        paths = (f"{MEMBERS}/{name}", f"{CLUSTERS}/{name}", f"/api/v1/namespaces/fleet-member-{name}", profile("default", name))
        return await self.missing(*paths)


@pytest.fixture
def program(prepared: ControlPlane, tmp_path: Path, gate: Gate) -> Iterator[Program]:
    """`fleet hub` behind the gate; without an election its successor need not wait."""
    anywhere = {"health_address": "127.0.0.1:0", "metrics_address": "127.0.0.1:0"}
    config = tmp_path / "settings.yaml"
    config.write_text(yaml.safe_dump({"health": anywhere, "leader": {"enabled": False}, "hub": {"profile_namespace": "default"}}))
    kubeconfig = gate.way(prepared, keys.HUB)
    with Program("fleet", "hub", "--config", str(config), "--kubeconfig", str(kubeconfig), log=tmp_path / "hub.log") as made:
        yield made


@pytest.fixture
async def fleet(admin: Caller) -> AsyncIterator[Fleet]:
    yield Fleet(admin)


async def test_clusters_are_accepted_denied_and_removed(fleet: Fleet, gate: Gate, program: Program, choice: Choice) -> None:
    async def accepted() -> None:
        await fleet.accept()
        await eventually(fleet.accepted, "accepted")

    async def denied() -> None:
        await accepted()
        await fleet.deny()
        await eventually(fleet.denied, "denied")

    await Killer(gate, program, choice).at_each_write(
        Operation(name="accept", begin=fleet.accept, reached=fleet.accepted),
        Operation(name="deny", prepare=accepted, begin=fleet.deny, reached=fleet.denied),
        Operation(name="accept again", prepare=denied, begin=fleet.accept_again, reached=fleet.accepted),
        Operation(name="remove", prepare=accepted, begin=fleet.remove, reached=fleet.removed),
    )


async def test_members_join_and_leave(fleet: Fleet, gate: Gate, program: Program, choice: Choice) -> None:
    async def joined() -> None:
        await fleet.join()
        await eventually(fleet.joins, "joined")

    await Killer(gate, program, choice).at_each_write(
        Operation(name="join", begin=fleet.join, reached=fleet.joins),
        Operation(name="leave", prepare=joined, begin=fleet.leave, reached=fleet.left),
    )
