"""Members of KubeFleet and mirrors: `fleet hub` with its own rights against an agent that the `kubernetes` package plays."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.integration.fleet.player import (
    CLUSTERS,
    MEMBERS,
    RBAC,
    Caller,
    agent_of,
    conditions,
    found,
    gone,
    internal,
    managed,
    member,
    reaches,
    report,
    rfc3339,
    taints,
)
from tests.support.ahead import ahead
from tests.support.program import Program, eventually, holds
from vkubelet.testing.cluster import ControlPlane

pytestmark = pytest.mark.usefixtures("lasting_program")
ORIGIN = "fleet.vkubelet.io/origin"


@ahead(group="members")
async def test_f_122_a_member_gets_namespace_rights_and_its_membership(prepared: ControlPlane, admin: Caller) -> None:
    await admin.create(MEMBERS, member("m1"))
    await reaches(admin, f"{MEMBERS}/m1", "ReadyToJoin", ("True", "MemberClusterReadyToJoin"))
    record = await admin.call("GET", f"{MEMBERS}/m1")
    assert record["metadata"]["finalizers"] == ["kubernetes-fleet.io/membercluster-finalizer"]
    namespace = await admin.call("GET", "/api/v1/namespaces/fleet-member-m1")
    assert namespace["metadata"]["labels"]["kubernetes-fleet.io/is-fleet-resource"] == "true"
    assert [each["uid"] for each in namespace["metadata"]["ownerReferences"]] == [record["metadata"]["uid"]]
    wanted = await admin.call("GET", internal("m1"))
    assert wanted["spec"] == {"state": "Join", "heartbeatPeriodSeconds": 60}
    agent = await agent_of(prepared, "m1")
    assert await agent.status_of("GET", f"{MEMBERS}/m1") == 403
    assert await agent.status_of("GET", "/api/v1/namespaces/fleet-member-m1/secrets") == 403


@ahead(group="members")
async def test_f_122_a_new_identity_replaces_the_old_one(prepared: ControlPlane, admin: Caller) -> None:
    await admin.create(MEMBERS, member("m2"))
    agent = await agent_of(prepared, "m2")
    await admin.merge(f"{MEMBERS}/m2", {"spec": {"identity": {"kind": "User", "name": "another"}}})

    async def refused() -> bool:
        return await agent.status_of("GET", internal("m2")) == 403

    await eventually(refused, "the old identity is refused")
    (subject,) = (await admin.call("GET", f"{RBAC}/namespaces/fleet-member-m2/rolebindings/fleet-rolebinding-m2"))["subjects"]
    assert subject["name"] == "another"


@ahead(group="members")
async def test_f_122_a_namespace_of_another_owner_is_left_alone(admin: Caller) -> None:
    await admin.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet-member-m3"}})
    await admin.create(MEMBERS, member("m3"))
    await reaches(admin, f"{MEMBERS}/m3", "ReadyToJoin", ("False", "MemberClusterNotReadyToJoin"))
    assert await admin.items(f"{RBAC}/namespaces/fleet-member-m3/roles") == []
    await admin.delete(f"{MEMBERS}/m3")
    await gone(admin, f"{MEMBERS}/m3")
    assert "deletionTimestamp" not in (await admin.call("GET", "/api/v1/namespaces/fleet-member-m3"))["metadata"]


@ahead(group="members")
async def test_f_123_what_the_agent_reports_is_copied(prepared: ControlPlane, admin: Caller) -> None:
    await admin.create(MEMBERS, member("m4"))
    agent = await agent_of(prepared, "m4")
    await reaches(admin, f"{MEMBERS}/m4", "Joined", ("Unknown", "MemberClusterJoinStateUnknown"))
    now = rfc3339(datetime.now(UTC))[:19] + "Z"
    collected = {
        "type": "ClusterPropertyCollectionSucceeded",
        "status": "True",
        "reason": "PropertiesCollected",
        "message": "",
        "lastTransitionTime": now,
    }
    properties = {"kubernetes-fleet.io/node-count": {"value": "3", "observationTime": now}}
    usage = {"capacity": {"cpu": "8"}, "observationTime": now}
    await report(agent, "m4", properties=properties, resourceUsage=usage, conditions=[collected])
    await reaches(admin, f"{MEMBERS}/m4", "Joined", ("True", "MemberClusterJoined"))
    status = (await admin.call("GET", f"{MEMBERS}/m4"))["status"]
    assert status["properties"] == properties and status["resourceUsage"] == usage
    assert conditions({"status": status})["ClusterPropertyCollectionSucceeded"] == ("True", "PropertiesCollected")
    assert [each["type"] for each in status["agentStatus"]] == ["MemberAgent"]


@ahead(group="members")
async def test_f_124_events_say_what_was_created_and_reached(prepared: ControlPlane, admin: Caller) -> None:
    await admin.create(MEMBERS, member("m5"))
    await report(await agent_of(prepared, "m5"), "m5")
    created = {"NamespaceCreated", "RoleCreated", "RoleBindingCreated", "InternalMemberClusterCreated"}

    async def recorded() -> None:
        listed = await admin.items(
            "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=m5,involvedObject.kind=MemberCluster"
        )
        assert {each["reason"] for each in listed} == created | {"MemberClusterReadyToJoin", "MemberClusterJoined"}

    await holds(recorded)


@ahead(group="members")
async def test_f_127_a_member_leaves_when_its_agent_acknowledges(prepared: ControlPlane, admin: Caller) -> None:
    await admin.create(MEMBERS, member("m6"))
    agent = await agent_of(prepared, "m6")
    await report(agent, "m6")
    await reaches(admin, f"{MEMBERS}/m6", "Joined", ("True", "MemberClusterJoined"))
    await admin.delete(f"{MEMBERS}/m6")

    async def leaves() -> bool:
        return bool((await agent.call("GET", internal("m6")))["spec"]["state"] == "Leave")

    await eventually(leaves, "the agent is asked to leave")
    assert await admin.get(f"{MEMBERS}/m6") is not None
    await report(agent, "m6", joined="False")
    await gone(admin, f"{MEMBERS}/m6")
    await gone(admin, "/api/v1/namespaces/fleet-member-m6")
    await gone(admin, f"{CLUSTERS}/m6")


@ahead(group="members")
async def test_f_27_an_accepted_cluster_is_mirrored_as_a_member(admin: Caller) -> None:
    tainted = {"taints": [{"key": "a", "effect": "NoSelectIfNew"}, {"key": "b", "effect": "PreferNoSelect"}]}
    body = managed("c1", accepted=False, labels={"env": "prod"})
    await admin.create(CLUSTERS, {**body, "spec": {**body["spec"], **tainted}})
    await found(admin, f"{RBAC}/clusterroles/open-cluster-management:managedcluster:c1")
    assert await admin.get(f"{MEMBERS}/c1") is None
    await admin.merge(f"{CLUSTERS}/c1", {"spec": {"hubAcceptsClient": True}})
    made = await found(admin, f"{MEMBERS}/c1")
    assert made["metadata"]["annotations"] == {ORIGIN: "ManagedCluster"} and made["metadata"]["labels"]["env"] == "prod"
    assert made["spec"]["identity"]["kind"] == "Group" and made["spec"]["identity"]["name"] == "system:open-cluster-management:c1"

    async def mapped() -> bool:
        return ("a", "NoSchedule") in taints(await admin.call("GET", f"{MEMBERS}/c1"))

    await eventually(mapped, "the taint is mapped")
    await admin.merge(f"{CLUSTERS}/c1", {"metadata": {"labels": {"env": None, "tier": "1"}}})
    await admin.merge(f"{MEMBERS}/c1", {"metadata": {"labels": {"other": "stays"}}})

    async def follows() -> None:
        labels = (await admin.call("GET", f"{MEMBERS}/c1"))["metadata"]["labels"]
        assert labels.get("tier") == "1" and labels.get("other") == "stays" and "env" not in labels

    await holds(follows)
    await admin.delete(f"{CLUSTERS}/c1")
    await gone(admin, f"{MEMBERS}/c1")


@ahead(group="members")
async def test_f_27_a_member_is_mirrored_as_an_accepted_cluster(prepared: ControlPlane, admin: Caller) -> None:
    await admin.create(MEMBERS, member("c2", labels={"env": "prod"}, taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}]))
    await reaches(admin, f"{CLUSTERS}/c2", "HubAcceptedManagedCluster", ("True", "HubClusterAdminAccepted"))
    made = await admin.call("GET", f"{CLUSTERS}/c2")
    assert made["metadata"]["annotations"] == {ORIGIN: "MemberCluster"} and made["metadata"]["labels"]["env"] == "prod"
    assert ("a", "NoSelectIfNew") in taints(made)
    agent = Caller(prepared.client_config("agent-of-c2"))

    async def allowed() -> bool:
        return await agent.status_of("GET", f"{CLUSTERS}/c2") == 200

    await eventually(allowed, "the identity of the member reads the mirror")


@ahead(group="members")
async def test_f_28_a_mirror_that_is_deleted_comes_back(admin: Caller) -> None:
    await admin.create(MEMBERS, member("c3"))
    first = await found(admin, f"{CLUSTERS}/c3")
    await admin.delete(f"{CLUSTERS}/c3")

    async def back() -> bool:
        record = await admin.get(f"{CLUSTERS}/c3")
        return record is not None and record["metadata"]["uid"] != first["metadata"]["uid"]

    await eventually(back, "the mirror is back")
    assert "deletionTimestamp" not in (await admin.call("GET", f"{MEMBERS}/c3"))["metadata"]


@ahead(group="members")
async def test_f_29_the_denial_of_a_mirrored_cluster_revokes_the_rights_of_its_member(admin: Caller) -> None:
    await admin.create(CLUSTERS, managed("c4"))
    path = f"{RBAC}/namespaces/fleet-member-c4/rolebindings/fleet-rolebinding-c4"
    await found(admin, path)
    await found(admin, internal("c4"))
    await report(admin, "c4")
    await reaches(admin, f"{MEMBERS}/c4", "Joined", ("True", "MemberClusterJoined"))
    await admin.merge(f"{CLUSTERS}/c4", {"spec": {"hubAcceptsClient": False}})
    await gone(admin, path)
    record = await admin.call("GET", f"{MEMBERS}/c4")
    assert "deletionTimestamp" in record["metadata"]


async def test_f_27_two_records_of_other_clients_are_left_alone(lasting_program: Program, admin: Caller) -> None:
    # One that is killed holds the Lease of the leader for 15 s.
    lasting_program.terminate()
    await admin.create(CLUSTERS, managed("c5"))
    await admin.create(MEMBERS, member("c5"))
    lasting_program.start()

    async def recorded() -> bool:
        return any(each["reason"] == "TwoRecords" for each in await admin.items("/api/v1/namespaces/default/events"))

    await eventually(recorded, "an Event names both records")
    for path in (f"{CLUSTERS}/c5", f"{MEMBERS}/c5"):
        record = await admin.call("GET", path)
        assert ORIGIN not in (record["metadata"].get("annotations") or {}) and "deletionTimestamp" not in record["metadata"]


@ahead(group="members")
async def test_f_142_the_mirror_of_a_member_is_tainted_by_its_heartbeats(prepared: ControlPlane, admin: Caller) -> None:
    # F-25: agents of KubeFleet renew no Lease.
    await admin.create(MEMBERS, member("m20"))
    await reaches(admin, f"{CLUSTERS}/m20", "HubAcceptedManagedCluster", ("True", "HubClusterAdminAccepted"))
    unreachable, unavailable = (f"cluster.open-cluster-management.io/{each}" for each in ("unreachable", "unavailable"))

    async def tainted(*keys: str) -> None:
        async def check() -> bool:
            return [key for key, _ in taints(await admin.call("GET", f"{CLUSTERS}/m20"))] == [*keys]

        await eventually(check, f"the mirror has the taints {keys}")

    await tainted(unreachable)
    agent = await agent_of(prepared, "m20")
    await report(agent, "m20")
    await tainted()
    await report(agent, "m20", healthy="False")
    await tainted(unavailable)
    await report(agent, "m20")
    await tainted()
