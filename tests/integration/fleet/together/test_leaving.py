"""A cluster with works and addons leaves by either door, while its agent runs, is stopped for a while, or is gone for ever.

What ends works and addons is no part of ours yet: the `kubernetes` package does it here, with the rights of the cluster where it has them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from attrs import frozen

from tests.integration.fleet.player import CLUSTERS, MEMBERS, Body, Caller, addon, addons, gone, internal, reaches, work, works
from tests.integration.fleet.together.outages import SHORT, joined
from tests.integration.fleet.together.scene import Fleet, Laptop, with_token
from tests.integration.fleet.together.test_joins import nothing_left
from tests.support.ahead import ahead
from tests.support.audit import Audit
from tests.support.program import Program, eventually

HUB_USER = "system:serviceaccount:fleet-system:fleet-hub"
HELD = {"finalizers": ["test.example/held"]}
CONTENTS = [("managedclusteraddons", "a"), ("manifestworks", "early"), ("manifestworks", "late")]
"""In the order in which they have to be deleted."""
EVENTS = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name="
DOORS = ["ManagedCluster", "MemberCluster"]


@frozen
class Leaving:
    """A cluster that has joined by one door and is known by both; `own` has the rights of the cluster."""

    laptop: Laptop
    agent: Program
    owner: Caller
    own: Caller
    origin: str

    @property
    def name(self) -> str:
        return self.laptop.name

    async def fill(self) -> None:
        """Creates addons and works that something has to end."""
        await self.owner.create(addons(self.name), addon(self.name, "a", **HELD))
        for name, level in (("late", 20), ("early", 10)):
            annotations = {"open-cluster-management.io/cleanup-priority": str(level)}
            await self.owner.create(works(self.name), work(self.name, name, annotations=annotations, **HELD))

    async def end_contents(self) -> None:
        """Does what the agents of addons and works would do, until nothing is left."""
        while True:
            left = [(self.owner, addons(self.name), each) for each in await self.owner.items(addons(self.name))]
            left += [(self.own, works(self.name), each) for each in await self.owner.items(works(self.name))]
            if not left:
                return
            for caller, path, each in left:
                if "deletionTimestamp" in each["metadata"]:
                    await caller.merge(f"{path}/{each['metadata']['name']}", {"metadata": {"finalizers": None}})
            await asyncio.sleep(0.2)

    async def events(self) -> set[str]:
        return {each["reason"] for each in await self.owner.items(f"{EVENTS}{self.name}")}

    async def is_removed(self, audit: Audit) -> None:
        """Nothing of ours is left but the namespace, everything was deleted in its order and by its UID, and `fleet doctor` is content."""
        await nothing_left(self.owner, self.name)
        await gone(self.owner, f"/api/v1/namespaces/fleet-member-{self.name}")
        deletions = [call for call in audit.calls() if call.verb == "delete" and self.name in (call.namespace, call.name)]
        assert all(call.body.get("preconditions", {}).get("uid") for call in deletions)
        listed = [(call.what, call.name) for call in deletions]
        of_contents = [each for each in listed if each in CONTENTS]
        assert list(dict.fromkeys(of_contents)) == CONTENTS, listed
        rights = [at for at, (what, _) in enumerate(listed) if what in ("rolebindings", "clusterrolebindings", "clusterroles")]
        assert rights and min(rights) > max(at for at, each in enumerate(listed) if each in CONTENTS), listed
        assert await complaints(self.laptop.fleet, self.name) == []


async def complaints(fleet: Fleet, name: str) -> list[Body]:
    """What `fleet doctor` finds about a cluster, or left of any."""
    ran = await fleet.on_hub("doctor", "-o", "json")
    assert ran.code in (0, 1), ran.stderr
    results = json.loads(ran.stdout)
    assert not [each for each in results if each["subject"] == f"cluster {name}"]
    return [finding for each in results for finding in each["findings"] if name in finding["problem"]]


@asynccontextmanager
async def member(laptop: Laptop, owner: Caller) -> AsyncIterator[Leaving]:
    """A worker that joins by a MemberCluster that its hub's owner makes, whose identity is a ServiceAccount."""
    name, hub = laptop.name, laptop.fleet.hub
    await hub.kubectl("-n", "default", "create", "serviceaccount", name)
    token = (await hub.kubectl("-n", "default", "create", "token", name)).strip()
    identity = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    kind = {"apiVersion": "cluster.kubernetes-fleet.io/v1beta1", "kind": "MemberCluster"}
    await owner.create(MEMBERS, {**kind, "metadata": {"name": name}, "spec": {"identity": identity, "heartbeatPeriodSeconds": 1}})
    own = Caller(with_token(hub, token, laptop.directory / "member.kubeconfig"))
    with laptop.joining_as_member(token) as join, await laptop.agent(join) as agent:
        await reaches(owner, f"{MEMBERS}/{name}", "Joined", ("True", "MemberClusterJoined"))
        await reaches(owner, f"{CLUSTERS}/{name}", "HubAcceptedManagedCluster", ("True", "HubClusterAdminAccepted"))
        await eventually(lambda: not join.alive, "the line ends", by=[join, agent])
        yield Leaving(laptop, agent, owner, own, "MemberCluster")
    await hub.kubectl("-n", "default", "delete", "serviceaccount", name)


@asynccontextmanager
async def cluster(laptop: Laptop, owner: Caller) -> AsyncIterator[Leaving]:
    """A worker that joins with a certificate, and is a member by its mirror."""
    async with joined(laptop, owner, SHORT) as made:
        yield Leaving(laptop, made.agent, owner, (await laptop.issued()).own, "ManagedCluster")


@asynccontextmanager
async def filled(door: str, laptop: Laptop, owner: Caller) -> AsyncIterator[Leaving]:
    """A cluster that has joined by this door, with works and addons."""
    make: Any = {"ManagedCluster": cluster, "MemberCluster": member}[door]
    async with make(laptop, owner) as made:
        await made.fill()
        yield made


@pytest.mark.parametrize("door", DOORS)
@ahead("laptop")
async def test_f_127_f_156_a_cluster_leaves_by_either_door(fleet: Fleet, laptop: Laptop, owner: Caller, door: str) -> None:
    # F-28, F-157
    async with filled(door, laptop, owner) as leaving:
        audit, name = Audit(fleet.hub, HUB_USER), leaving.name
        async with asyncio.TaskGroup() as group:
            ends = group.create_task(fleet.done("leave", name, "--yes"))
            group.create_task(leaving.end_contents())
        assert f"{leaving.origin} {name} is deleted. Namespace {name} stays" in ends.result()
        await leaving.is_removed(audit)
        reasons = await leaving.events()
        assert "MemberClusterLeft" in reasons and not reasons & {"ForcedCleanup", "MemberClusterForcedToLeave"}, reasons
        assert leaving.agent.alive


@pytest.mark.parametrize("door", DOORS)
@ahead("laptop")
async def test_f_127_f_156_a_cluster_leaves_once_its_agent_is_back(fleet: Fleet, laptop: Laptop, owner: Caller, door: str) -> None:
    # F-147: what is waited for is named.
    async with filled(door, laptop, owner) as leaving:
        audit, name = Audit(fleet.hub, HUB_USER), leaving.name
        assert leaving.agent.terminate() == 0
        ran = await fleet.on_hub("leave", name, "--yes", "--timeout", "2")
        assert ran.code == 1 and f"fleet leave {name} --force-after" in ran.stderr, ran.stderr
        await reaches(leaving.owner, f"{CLUSTERS}/{name}", "Deleting", ("True", "ResourceRemaining"))
        assert await leaving.owner.get(f"{MEMBERS}/{name}") is not None and await leaving.owner.get(internal(name)) is not None
        leaving.agent.start()
        await leaving.end_contents()
        await leaving.is_removed(audit)
        assert not await leaving.events() & {"ForcedCleanup", "MemberClusterForcedToLeave"}


@pytest.mark.parametrize("door", DOORS)
@ahead("laptop")
async def test_f_128_f_156_without_its_agent_a_cluster_is_removed_in_time(fleet: Fleet, laptop: Laptop, owner: Caller, door: str) -> None:
    # F-57: what may remain in the worker is reported.
    async with filled(door, laptop, owner) as leaving:
        audit, name = Audit(fleet.hub, HUB_USER), leaving.name
        leaving.agent.kill()
        await fleet.done("leave", name, "--yes", "--force-after", "3")
        await leaving.is_removed(audit)
        assert await leaving.events() >= {"ForcedCleanup", "MemberClusterForcedToLeave", "MemberClusterLeft"}
