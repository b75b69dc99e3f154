"""Labels, annotations and taints that another manager applies to the objects of a fleet survive the writes of `fleet hub`."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes import client as k8s

from tests.integration.fleet.player import (
    CLUSTERS,
    MEMBERS,
    RBAC,
    Body,
    Caller,
    agent_of,
    conditions,
    found,
    gone,
    has_condition,
    internal,
    joined,
    lease,
    member,
    profile,
    reaches,
    report,
    taints,
)
from tests.integration.fleet.test_health import AVAILABLE, STOPPED, UNREACHABLE, renewing, tainted
from tests.support.ahead import ahead
from tests.support.program import LONG, eventually, holds
from vkubelet.testing.cluster import ControlPlane

pytestmark = pytest.mark.usefixtures("lasting_program")
OTHER = "other"
LEASE = 2
"""Seconds; five times as long is enough for what comes between joining and the next renewal."""
MARKS = {"labels": {"other.example/a": "kept"}, "annotations": {"other.example/b": "kept"}}
NEWER = "/apis/cluster.kubernetes-fleet.io/v1/memberclusters"


@pytest.fixture(scope="module")
def hub_settings() -> Body:
    return {"profile_namespace": "default"}


async def applied(admin: Caller, path: str, *, force: bool = False, **further: Any) -> int:
    """Applies what the other manager wants of an object; the HTTP status, which is 409 for a conflict."""
    live = await found(admin, path)
    body = {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": dict(MARKS), **further}
    try:
        await admin.call("PATCH", f"{path}?fieldManager={OTHER}&force={str(force).lower()}", body, content="application/apply-patch+yaml")
    except k8s.ApiException as error:
        assert error.status == 409, error
        return 409
    return 200


async def keeps(admin: Caller, *paths: str) -> None:
    """Everything that the other manager has applied is there, and still its own."""
    for path in paths:
        metadata = (await admin.call("GET", path))["metadata"]
        for part, wanted in MARKS.items():
            assert (metadata.get(part) or {}).items() >= wanted.items(), (path, metadata.get(part))
        (own,) = [each["fieldsV1"] for each in metadata["managedFields"] if (each["manager"], each["operation"]) == (OTHER, "Apply")]
        assert own["f:metadata"].keys() == {"f:labels", "f:annotations"}, (path, own)


@ahead(group="managers")
async def test_f_9_what_another_manager_applies_to_a_cluster_survives(prepared: ControlPlane, bootstrap: Caller, admin: Caller) -> None:
    # F-27, F-142, F-155: on every object of ours, through writes of each.
    agent, cluster = await joined(prepared, bootstrap, admin, "o1", seconds=LEASE), f"{CLUSTERS}/o1"
    await found(admin, internal("o1"))
    await report(admin, "o1")
    role = "open-cluster-management:managedcluster:o1"
    paths = [
        f"{MEMBERS}/o1",
        "/api/v1/namespaces/o1",
        "/api/v1/namespaces/fleet-member-o1",
        lease("o1"),
        internal("o1"),
        profile("default", "o1"),
        f"{RBAC}/clusterroles/{role}",
        f"{RBAC}/namespaces/o1/rolebindings/{role}:registration",
    ]
    async with renewing(agent):
        await tainted(admin, "o1")
        for path in paths:
            assert await applied(admin, path) == 200
        mine = {"taints": [{"key": "mine", "effect": "PreferNoSelect"}]}
        # The list of taints is one value, and the hub has written it before.
        assert await applied(admin, cluster, force=True, spec=mine) == 200
    # For a moment this takes the rights of the agent, which renews no longer.
    await changes_of_each(admin, "o1", role)
    await has_condition(admin, "o1", AVAILABLE, STOPPED)
    await tainted(admin, "o1", ("mine", "PreferNoSelect"), UNREACHABLE)
    # The hub reverts what is reported before the Lease is renewed.
    await agent.renew()
    async with renewing(agent):
        await agent.report_joined()
        await tainted(admin, "o1", ("mine", "PreferNoSelect"))
    await keeps(admin, *paths, cluster)
    # Nothing of it was taken from its manager.
    for path in paths:
        assert await applied(admin, path) == 200
    assert await applied(admin, cluster, spec=mine) == 200


async def changes_of_each(admin: Caller, name: str, role: str) -> None:
    """Changes something on every object that the hub then writes, or corrects."""
    await admin.merge(f"{CLUSTERS}/{name}", {"metadata": {"labels": {"env": "prod"}}})
    await admin.merge(f"{MEMBERS}/{name}", {"spec": {"heartbeatPeriodSeconds": 7}})
    await admin.merge(lease(name), {"metadata": {"labels": {"open-cluster-management.io/cluster-name": None}}})
    await admin.merge(f"/api/v1/namespaces/fleet-member-{name}", {"metadata": {"labels": {"kubernetes-fleet.io/is-fleet-resource": None}}})
    await admin.merge(f"{RBAC}/clusterroles/{role}", {"rules": []})
    await admin.merge(f"{RBAC}/namespaces/{name}/rolebindings/{role}:registration", {"subjects": []})
    await admin.merge(profile("default", name), {"spec": {"displayName": "another"}})

    async def check() -> None:
        mirror, space = await admin.call("GET", f"{MEMBERS}/{name}"), await admin.call("GET", f"/api/v1/namespaces/fleet-member-{name}")
        assert mirror["metadata"]["labels"].get("env") == "prod"
        assert space["metadata"]["labels"].get("kubernetes-fleet.io/is-fleet-resource") == "true"
        assert (await admin.call("GET", internal(name)))["spec"]["heartbeatPeriodSeconds"] == 7
        assert (await admin.call("GET", lease(name)))["metadata"]["labels"].get("open-cluster-management.io/cluster-name") == name
        assert (await admin.call("GET", f"{RBAC}/clusterroles/{role}"))["rules"]
        assert (await admin.call("GET", f"{RBAC}/namespaces/{name}/rolebindings/{role}:registration")).get("subjects")
        assert (await admin.call("GET", profile("default", name)))["spec"]["displayName"] == name

    await holds(check, seconds=LONG)


@ahead(group="managers")
async def test_f_9_what_another_manager_applies_to_a_member_survives(prepared: ControlPlane, admin: Caller) -> None:
    # F-11: the record is written as v1. F-23, F-27: its mirror gets a taint of its own, too.
    body = member("o2")
    await admin.create(NEWER, {**body, "apiVersion": "cluster.kubernetes-fleet.io/v1"})
    taint = {"key": "mine", "effect": "NoSchedule"}
    assert await applied(admin, f"{NEWER}/o2", spec={**body["spec"], "taints": [taint]}) == 200
    mirror = await found(admin, f"{CLUSTERS}/o2")
    block = {"taints": [*mirror["spec"].get("taints", []), {"key": "theirs", "effect": "NoSelect"}]}
    assert await admin.status_of("PATCH", f"{CLUSTERS}/o2", {"spec": block}) == 200
    assert await applied(admin, f"{CLUSTERS}/o2") == 200
    await report(await agent_of(prepared, "o2"), "o2")
    await reaches(admin, f"{NEWER}/o2", "Joined", ("True", "MemberClusterJoined"))
    await admin.merge(f"{MEMBERS}/o2", {"metadata": {"labels": {"env": "prod"}}})

    async def follows() -> bool:
        record = await admin.call("GET", f"{CLUSTERS}/o2")
        return record["metadata"]["labels"].get("env") == "prod" and ("mine", "NoSelectIfNew") in taints(record)

    await eventually(follows, "the mirror is written")
    assert ("theirs", "NoSelect") in taints(await admin.call("GET", f"{CLUSTERS}/o2"))
    older, newer = [await admin.call("GET", f"{each}/o2") for each in (MEMBERS, NEWER)]
    assert (older["spec"], older["status"]) == (newer["spec"], newer["status"]) and newer["spec"]["taints"] == [taint]
    assert conditions(newer)["ReadyToJoin"] == ("True", "MemberClusterReadyToJoin")
    await admin.delete(f"{NEWER}/o2")
    await report(admin, "o2", joined="False")
    await gone(admin, f"{MEMBERS}/o2")
