"""A cluster joins, is denied and comes back: `fleet hub` with its own rights against an agent that the `kubernetes` package plays."""

from __future__ import annotations

import pytest

from tests.integration.fleet.player import (
    ACCEPTED,
    CLUSTERS,
    CSRS,
    RBAC,
    Caller,
    accept,
    answers,
    certified,
    gone,
    has_condition,
    issued,
    joined,
    lease,
    new_key,
    record,
    request_certificate,
    taints,
    work,
    works,
)
from tests.support.ahead import ahead
from tests.support.program import eventually, holds
from vkubelet.testing.cluster import ControlPlane

pytestmark = pytest.mark.usefixtures("lasting_program")
ROLE = "open-cluster-management:managedcluster"


@ahead(group="joining")
async def test_f_107_a_cluster_joins_when_both_have_consented(prepared: ControlPlane, bootstrap: Caller, admin: Caller) -> None:
    await record(bootstrap, "j1")
    agent = await certified(prepared, bootstrap, admin, "j1")
    await answers(agent, "GET", f"{CLUSTERS}/j1", 200)
    assert await agent.own.status_of("GET", lease("j1")) == 403
    await accept(admin, "j1")
    await has_condition(admin, "j1", "HubAcceptedManagedCluster", ACCEPTED)
    await agent.renew()
    await agent.report_joined()
    for group in (f"{ROLE}:j1:registration", f"{ROLE}:j1:work"):
        bound = await admin.call("GET", f"{RBAC}/namespaces/j1/rolebindings/{group}")
        assert bound["metadata"]["labels"] == {"open-cluster-management.io/cluster-name": "j1"}
    found = await admin.call("GET", f"{CLUSTERS}/j1")
    assert found["metadata"]["labels"] == {"cluster.open-cluster-management.io/clusterset": "default"}

    async def untainted() -> bool:
        return not taints(await admin.call("GET", f"{CLUSTERS}/j1"))

    await eventually(untainted, "an available cluster has no taint")


@ahead(group="joining")
async def test_f_109_the_renewal_of_an_accepted_cluster_is_approved(prepared: ControlPlane, bootstrap: Caller, admin: Caller) -> None:
    agent = await joined(prepared, bootstrap, admin, "j2")
    request = await request_certificate(agent.own, "j2", agent.key)
    await issued(admin, request)
    (approved,) = (await admin.call("GET", f"{CSRS}/{request}"))["status"]["conditions"]
    assert (approved["type"], approved["reason"]) == ("Approved", "AutoApprovedByHubCSRApprovingController")


@ahead(group="joining")
async def test_f_109_forged_requests_are_left_to_others(prepared: ControlPlane, bootstrap: Caller, admin: Caller) -> None:
    agent = await joined(prepared, bootstrap, admin, "j3")
    await joined(prepared, bootstrap, admin, "j4")
    group = "system:open-cluster-management:j3"
    forged = [
        {"label": "j4"},
        {"user": "system:open-cluster-management:j4:agent"},
        {"groups": (group, "system:bootstrappers:managedcluster")},
        {"groups": ("system:open-cluster-management:j4",)},
        {"signer": "example.com/other"},
        {"usages": ("digital signature", "server auth")},
        {"names": ("api.example",)},
        {"user": "system:open-cluster-management:j3:other"},
    ]
    requests = [await request_certificate(agent.own, "j3", agent.key, **changes) for changes in forged]
    requests.append(await request_certificate(bootstrap, "j3", new_key()))
    # The last one is approved, and those before it have been seen by then.
    await issued(admin, await request_certificate(agent.own, "j3", agent.key))
    for name in requests:
        found = await admin.call("GET", f"{CSRS}/{name}")
        assert not (found.get("status") or {}).get("conditions"), found["spec"]

    async def recorded() -> bool:
        events = [each for each in await admin.items("/api/v1/namespaces/default/events") if each["involvedObject"]["name"] in requests]
        reasons = {each["involvedObject"]["name"]: each["reason"] for each in events}
        expected = {**dict.fromkeys(requests[:-2], "NotApproved"), **dict.fromkeys(requests[-2:], "ApprovalRequired")}
        return reasons == expected

    await eventually(recorded, "an Event about each request")
    for name in requests:
        await admin.delete(f"{CSRS}/{name}")


@ahead(group="joining")
async def test_f_154_a_denied_cluster_keeps_its_own_record_alone(prepared: ControlPlane, bootstrap: Caller, admin: Caller) -> None:
    agent = await joined(prepared, bootstrap, admin, "j5")
    await accept(admin, "j5", accepts=False)
    await has_condition(admin, "j5", "HubAcceptedManagedCluster", ("False", "HubClusterAdminDenied"))
    for path in (lease("j5"), works("j5")):
        await answers(agent, "GET", path, 403)
    await answers(agent, "PATCH", f"{CLUSTERS}/j5/status", 403)
    assert await agent.own.status_of("GET", f"{CLUSTERS}/j5") == 200
    await accept(admin, "j5")
    for path in (lease("j5"), works("j5")):
        await answers(agent, "GET", path, 200)
    await has_condition(admin, "j5", "HubAcceptedManagedCluster", ACCEPTED)


@ahead(group="joining")
async def test_f_116_a_denied_cluster_may_end_its_works_first(prepared: ControlPlane, bootstrap: Caller, admin: Caller) -> None:
    agent = await joined(prepared, bootstrap, admin, "j6")
    await admin.create(works("j6"), work("j6", "w"))
    await accept(admin, "j6", accepts=False)
    await answers(agent, "GET", lease("j6"), 403)
    assert await agent.own.status_of("GET", works("j6")) == 200
    await admin.delete(works("j6", "w"))
    await answers(agent, "GET", works("j6"), 403)


@ahead(group="joining")
async def test_f_155_what_is_taken_from_an_accepted_cluster_is_restored(prepared: ControlPlane, bootstrap: Caller, admin: Caller) -> None:
    agent = await joined(prepared, bootstrap, admin, "j7")
    role, binding = f"{RBAC}/clusterroles/{ROLE}:j7", f"{RBAC}/namespaces/j7/rolebindings/{ROLE}:j7:registration"
    await admin.merge(role, {"rules": []})
    await admin.delete(binding)
    await admin.delete(lease("j7"))
    await admin.merge(f"{RBAC}/clusterrolebindings/{ROLE}:j7", {"metadata": {"labels": None}})

    async def restored() -> None:
        found = [await admin.get(path) for path in (role, binding, lease("j7"), f"{RBAC}/clusterrolebindings/{ROLE}:j7")]
        assert all(each and each["metadata"].get("labels") for each in found) and found[0] and len(found[0]["rules"] or ()) == 5
        events = [each for each in await admin.items("/api/v1/namespaces/default/events") if each["reason"] == "Restored"]
        assert len([each for each in events if each["involvedObject"]["name"] == "j7"]) >= 4

    await holds(restored)
    await agent.renew()


@ahead(group="joining")
async def test_f_51_a_namespace_of_another_purpose_is_not_used(prepared: ControlPlane, bootstrap: Caller, admin: Caller) -> None:
    await admin.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "j8"}})
    await record(bootstrap, "j8")
    await accept(admin, "j8")
    await has_condition(admin, "j8", "HubAcceptedManagedCluster", ("False", "Error"))
    assert await admin.items(f"{RBAC}/namespaces/j8/rolebindings") == []
    await admin.delete(f"{CLUSTERS}/j8")
    await gone(admin, f"{CLUSTERS}/j8")
    left = await admin.call("GET", "/api/v1/namespaces/j8")
    assert "deletionTimestamp" not in left["metadata"] and "open-cluster-management.io/cluster-name" not in left["metadata"]["labels"]
    await record(bootstrap, "j8")
    await accept(admin, "j8")
    await has_condition(admin, "j8", "HubAcceptedManagedCluster", ("False", "Error"))
    await admin.merge("/api/v1/namespaces/j8", {"metadata": {"labels": {"open-cluster-management.io/cluster-name": "j8"}}})
    await has_condition(admin, "j8", "HubAcceptedManagedCluster", ACCEPTED)


@ahead(group="joining")
async def test_f_51_a_cluster_of_a_reserved_name_is_refused(bootstrap: Caller, admin: Caller) -> None:
    await record(bootstrap, "kube-system")
    await accept(admin, "kube-system")
    await has_condition(admin, "kube-system", "HubAcceptedManagedCluster", ("False", "Error"))
    assert not await admin.items(f"{RBAC}/namespaces/kube-system/rolebindings?labelSelector=open-cluster-management.io/cluster-name")
    await admin.delete(f"{CLUSTERS}/kube-system")
    await gone(admin, f"{CLUSTERS}/kube-system")
