"""Clusters that are deleted: `fleet hub` with its own rights against an agent that the `kubernetes` package plays."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.fleet.player import (
    CLUSTERS,
    RBAC,
    Caller,
    addon,
    addons,
    gone,
    has_condition,
    joined,
    lease,
    work,
    works,
)
from tests.support.ahead import ahead
from tests.support.program import eventually, holds
from vkubelet.testing.cluster import ControlPlane

pytestmark = pytest.mark.usefixtures("lasting_program")
HELD = {"finalizers": ["test.example/held"]}


def first(level: int) -> dict[str, Any]:
    return {**HELD, "annotations": {"open-cluster-management.io/cleanup-priority": str(level)}}


async def leaving(admin: Caller, cluster: str) -> set[str]:
    """Names of the works and addons whose deletion was requested."""
    listed = [*await admin.items(works(cluster)), *await admin.items(addons(cluster))]
    return {each["metadata"]["name"] for each in listed if "deletionTimestamp" in each["metadata"]}


@ahead(group="removal")
async def test_f_156_f_157_addons_then_works_are_removed_in_their_order(prepared: ControlPlane, bootstrap: Caller, admin: Caller) -> None:
    agent = await joined(prepared, bootstrap, admin, "r1")
    await admin.create(addons("r1"), addon("r1", "tunnel", **HELD))
    for name, level in (("late", 20), ("early", 10)):
        await admin.create(works("r1"), work("r1", name, **first(level)))
    await admin.delete(f"{CLUSTERS}/r1")
    await has_condition(admin, "r1", "Deleting", ("True", "ResourceRemaining"))
    for name, path in (("tunnel", addons("r1", "tunnel")), ("early", works("r1", "early")), ("late", works("r1", "late"))):

        async def alone(name: str = name) -> bool:
            return await leaving(admin, "r1") == {name}

        await eventually(alone, f"{name} alone is being deleted")
        if path.startswith(works("r1")):
            # The agent ends its works with the rights that it has until the last one.
            await agent.own.merge(path, {"metadata": {"finalizers": None}})
        else:
            await admin.merge(path, {"metadata": {"finalizers": None}})
    await gone(admin, f"{CLUSTERS}/r1")

    async def nothing_left() -> None:
        label = "labelSelector=open-cluster-management.io/cluster-name=r1"
        kinds = ("clusterroles", "clusterrolebindings", "rolebindings")
        assert [each for kind in kinds for each in await admin.items(f"{RBAC}/{kind}?{label}")] == []
        assert await admin.get(lease("r1")) is None

    await holds(nothing_left)
    assert "deletionTimestamp" not in (await admin.call("GET", "/api/v1/namespaces/r1"))["metadata"]


@ahead(group="removal")
async def test_f_156_without_its_agent_a_cluster_is_removed_by_force(prepared: ControlPlane, bootstrap: Caller, admin: Caller) -> None:
    await joined(prepared, bootstrap, admin, "r2")
    await admin.create(works("r2"), work("r2", "held", **HELD))
    await admin.delete(f"{CLUSTERS}/r2")
    await has_condition(admin, "r2", "Deleting", ("True", "ResourceRemaining"))
    record = await admin.call("GET", f"{CLUSTERS}/r2")
    (message,) = [each["message"] for each in record["status"]["conditions"] if each["type"] == "Deleting"]
    assert message == "0 ManagedClusterAddOns and 1 ManifestWorks are left, the oldest: held"
    await admin.merge(f"{CLUSTERS}/r2", {"metadata": {"annotations": {"fleet.vkubelet.io/force-cleanup-after": "1"}}})
    await gone(admin, f"{CLUSTERS}/r2")
    assert await admin.items(works("r2")) == []

    async def recorded() -> bool:
        events = await admin.items("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=r2,reason=ForcedCleanup")
        return any("may remain in the worker" in each["message"] for each in events)

    await eventually(recorded, "an Event about what may be left")


@ahead(group="removal")
async def test_f_57_a_cluster_that_was_never_accepted_leaves_at_once(bootstrap: Caller, admin: Caller) -> None:
    body = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": {"name": "r3"}, "spec": {}}
    await bootstrap.create(CLUSTERS, body)
    role = f"{RBAC}/clusterroles/open-cluster-management:managedcluster:r3"
    await eventually(lambda: admin.get(role), "the role of a cluster that is not accepted")
    await admin.delete(f"{CLUSTERS}/r3")
    await gone(admin, f"{CLUSTERS}/r3")
    assert await admin.get(role) is None and await admin.get("/api/v1/namespaces/r3") is None
