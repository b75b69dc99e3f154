"""Sets, bindings and ClusterProfiles: `fleet hub` with its own rights against an agent that the `kubernetes` package plays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.fleet.player import (
    CLUSTERS,
    MEMBERS,
    SETS,
    Body,
    Caller,
    agent_of,
    found,
    gone,
    managed,
    member,
    profile,
    reaches,
    report,
)
from tests.support.ahead import ahead
from tests.support.program import eventually, holds
from vkubelet.testing.cluster import ControlPlane

pytestmark = pytest.mark.usefixtures("lasting_program")
LABEL = "cluster.open-cluster-management.io/clusterset"
SELECTED, EMPTY = ("False", "ClustersSelected"), ("True", "NoClusterMatched")
HEALTHY = "ControlPlaneHealthy"
HEARTBEAT = 0.5


@pytest.fixture(scope="module")
def hub_settings() -> Body:
    return {"profile_namespace": "default", "heartbeat_threshold": 3.0}


def bindings(namespace: str, name: str = "") -> str:
    base = f"/apis/cluster.open-cluster-management.io/v1beta2/namespaces/{namespace}/managedclustersetbindings"
    return base + (f"/{name}" if name else "")


def cluster_set(name: str, **spec: Any) -> Body:
    return {
        "apiVersion": "cluster.open-cluster-management.io/v1beta2",
        "kind": "ManagedClusterSet",
        "metadata": {"name": name},
        "spec": spec,
    }


def binding(namespace: str, name: str) -> Body:
    return {
        "apiVersion": "cluster.open-cluster-management.io/v1beta2",
        "kind": "ManagedClusterSetBinding",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterSet": name},
    }


async def prescribed(admin: Caller, cluster: str, *namespaces: Body) -> bool:
    return ((await admin.call("GET", f"{CLUSTERS}/{cluster}")).get("status") or {}).get("managedNamespaces", []) == [*namespaces]


@ahead(group="inventory")
async def test_f_151_two_sets_always_exist_and_are_corrected(admin: Caller) -> None:
    first = await found(admin, f"{SETS}/global")
    await found(admin, f"{SETS}/default")
    await admin.delete(f"{SETS}/global")

    async def back() -> None:
        record = await admin.get(f"{SETS}/global")
        assert record and record["metadata"]["uid"] != first["metadata"]["uid"]
        assert record["spec"]["clusterSelector"] == {"selectorType": "LabelSelector", "labelSelector": {}}

    await holds(back)
    narrowed = {"spec": {"clusterSelector": {"labelSelector": {"matchLabels": {"a": "b"}}}}}
    await admin.merge(f"{SETS}/global", narrowed)

    async def corrected() -> bool:
        return bool((await admin.call("GET", f"{SETS}/global"))["spec"]["clusterSelector"]["labelSelector"] == {})

    await eventually(corrected, "the set selects all clusters again")


@ahead(group="inventory")
async def test_f_151_f_152_sets_and_bindings_report_what_they_have(admin: Caller) -> None:
    namespace = "team-1"
    await admin.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    await admin.create(bindings(namespace), binding(namespace, "blue"))
    await reaches(admin, bindings(namespace, "blue"), "Bound", ("False", "ClusterSetNotFound"))
    await admin.create(SETS, cluster_set("blue"))
    await reaches(admin, bindings(namespace, "blue"), "Bound", ("True", "ClusterSetBound"))
    await reaches(admin, f"{SETS}/blue", "ClusterSetEmpty", EMPTY)
    await admin.create(CLUSTERS, managed("s1", labels={LABEL: "blue"}))
    await reaches(admin, f"{SETS}/blue", "ClusterSetEmpty", SELECTED)
    await admin.merge(f"{SETS}/blue", {"spec": {"managedNamespaces": [{"name": "shared"}]}})
    await eventually(lambda: prescribed(admin, "s1", {"clusterSet": "blue", "name": "shared"}), "the namespace (F-153)")
    await admin.merge(f"{CLUSTERS}/s1", {"metadata": {"labels": {LABEL: "default"}}})
    await reaches(admin, f"{SETS}/blue", "ClusterSetEmpty", EMPTY)
    await eventually(lambda: prescribed(admin, "s1"), "no namespace")
    await admin.delete(f"{SETS}/blue")
    await reaches(admin, bindings(namespace, "blue"), "Bound", ("False", "ClusterSetNotFound"))


@ahead(group="inventory")
async def test_f_172_a_bound_namespace_has_a_profile_of_each_cluster_of_the_set(admin: Caller) -> None:
    namespace = "team-2"
    await admin.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    await admin.create(SETS, cluster_set("green"))
    await admin.create(CLUSTERS, managed("s2", labels={LABEL: "green"}))
    await admin.create(bindings(namespace), binding(namespace, "green"))
    made = await found(admin, profile(namespace, "s2"))
    labels = {"x-k8s.io/cluster-manager": "open-cluster-management", "multicluster.x-k8s.io/clusterset": "green"}
    assert made["metadata"]["labels"] == labels and made["spec"]["clusterManager"]["name"] == "open-cluster-management"
    condition = {"type": "ManagedClusterConditionAvailable", "status": "True", "reason": "ManagedClusterAvailable"}
    condition |= {"message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    record = await admin.call("GET", f"{CLUSTERS}/s2")
    listed = [*record.get("status", {}).get("conditions", ()), condition]
    claims = [{"name": "id.k8s.io", "value": "abc"}]
    await admin.merge(f"{CLUSTERS}/s2/status", {"status": {"clusterClaims": claims, "conditions": listed}})
    await reaches(admin, profile(namespace, "s2"), HEALTHY, ("True", "ManagedClusterAvailable"))
    assert (await admin.call("GET", profile(namespace, "s2")))["status"]["properties"] == claims
    await admin.merge(f"{CLUSTERS}/s2", {"metadata": {"labels": {LABEL: "default"}}})
    await gone(admin, profile(namespace, "s2"))
    await admin.merge(f"{CLUSTERS}/s2", {"metadata": {"labels": {LABEL: "green"}}})
    await found(admin, profile(namespace, "s2"))
    await admin.delete(bindings(namespace, "green"))
    await gone(admin, profile(namespace, "s2"))


@ahead(group="inventory")
async def test_f_171_f_177_a_member_has_a_profile_that_follows_its_heartbeat(prepared: ControlPlane, admin: Caller) -> None:
    body = member("s3")
    # The threshold is at least the member's own period.
    body["spec"]["heartbeatPeriodSeconds"] = 1
    await admin.create(MEMBERS, body)
    agent = await agent_of(prepared, "s3")
    assert await admin.get(profile("default", "s3")) is None
    properties = {"k8s.io/k8s-version": {"value": "v1.34.4", "observationTime": "2026-01-01T00:00:00Z"}}
    await report(agent, "s3", properties=properties)
    await reaches(admin, profile("default", "s3"), HEALTHY, ("True", "MemberClusterAPIServerHealthy"))
    made = await admin.call("GET", profile("default", "s3"))
    assert made["spec"] == {"clusterManager": {"name": "KubeFleet"}, "displayName": "s3"}
    assert made["status"]["version"] == {"kubernetes": "v1.34.4"}
    await reaches(admin, profile("default", "s3"), HEALTHY, ("False", "MemberAgentHeartbeatLost"))
    await report(agent, "s3")
    await reaches(admin, profile("default", "s3"), HEALTHY, ("True", "MemberClusterAPIServerHealthy"))


@ahead(group="inventory")
async def test_f_176_f_178_f_179_a_profile_has_the_reason_that_the_agent_reports(prepared: ControlPlane, admin: Caller) -> None:
    # F-180. Without a status of its agent (F-175) a member has not joined, and has no profile.
    await admin.create(MEMBERS, member("s6"))
    agent = await agent_of(prepared, "s6")
    async with asyncio.TaskGroup() as group:
        states: list[str | None] = ["True"]

        async def send_heartbeats() -> None:
            while True:
                await report(agent, "s6", healthy=states[-1])
                await asyncio.sleep(HEARTBEAT)

        task = group.create_task(send_heartbeats())
        for healthy, wanted in (
            ("True", ("True", "MemberClusterAPIServerHealthy")),
            ("False", ("False", "MemberClusterAPIServerUnhealthy")),
            ("Unknown", ("Unknown", "MemberAgentReportedNoHealthInfo")),
            ("True", ("True", "MemberClusterAPIServerHealthy")),
            (None, ("Unknown", "MemberAgentReportedNoHealthInfo")),
        ):
            states.append(healthy)
            await reaches(admin, profile("default", "s6"), HEALTHY, wanted)
        task.cancel()


@ahead(group="inventory")
async def test_f_174_the_profile_is_deleted_before_the_member(prepared: ControlPlane, admin: Caller) -> None:
    await admin.create(MEMBERS, member("s4"))
    agent = await agent_of(prepared, "s4")
    await report(agent, "s4")
    await found(admin, profile("default", "s4"))
    held = (await admin.call("GET", f"{MEMBERS}/s4"))["metadata"]["finalizers"]
    assert "kubernetes-fleet.io/cluster-profile-cleanup" in held
    await admin.delete(f"{MEMBERS}/s4")
    await gone(admin, profile("default", "s4"))
    await report(agent, "s4", joined="False")
    await gone(admin, f"{MEMBERS}/s4")


@ahead(group="inventory")
async def test_f_171_a_profile_of_another_manager_is_left_alone(prepared: ControlPlane, admin: Caller) -> None:
    body = {
        "apiVersion": "multicluster.x-k8s.io/v1alpha1",
        "kind": "ClusterProfile",
        "metadata": {"name": "s5", "namespace": "default"},
        "spec": {"clusterManager": {"name": "another"}},
    }
    foreign = await admin.create(profile("default"), body)
    await admin.create(MEMBERS, member("s5"))
    await report(await agent_of(prepared, "s5"), "s5")
    await reaches(admin, f"{MEMBERS}/s5", "ClusterProfilePublished", ("False", "ForeignProfile"))
    assert (await admin.call("GET", profile("default", "s5")))["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]
    await admin.delete(profile("default", "s5"))
    await reaches(admin, profile("default", "s5"), HEALTHY, ("True", "MemberClusterAPIServerHealthy"))
    await reaches(admin, f"{MEMBERS}/s5", "ClusterProfilePublished", ("True", "Published"))
