"""The admission policies on a real API server, asked by identities with and without the rights that they check."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client as k8s

from fleet.api import keys
from fleet.api.resources import admission_policies, guard_rails
from tests.integration.fleet.player import (
    CLUSTERS,
    MEMBERS,
    SETS,
    Agent,
    Body,
    Caller,
    answers,
    found,
    gone,
    internal,
    joined,
    lease,
    managed,
    member,
    work,
    works,
)
from tests.support.program import Program, eventually, holds
from vkubelet.testing.cluster import CommandFailed, ControlPlane

DRY = "?dryRun=All"
LABEL = "cluster.open-cluster-management.io/clusterset"


@pytest.fixture(scope="module")
def guarded(prepared: ControlPlane) -> Iterator[ControlPlane]:
    """A hub with the policies; user "clerk" writes all records, and has none of the rights that the policies check."""
    kinds = [
        {
            "apiGroups": ["cluster.open-cluster-management.io"],
            "resources": ["managedclusters", "managedclustersetbindings"],
            "verbs": ["*"],
        },
        {"apiGroups": ["cluster.kubernetes-fleet.io"], "resources": ["memberclusters"], "verbs": ["*"]},
    ]
    metadata = {"name": "clerk"}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata, "rules": kinds}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "clerk"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "clerk"}
    bound = {**role, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]}
    del bound["rules"]
    bodies = json.dumps({"apiVersion": "v1", "kind": "List", "items": [role, bound]})
    clerk = Caller(prepared.client_config("clerk"))

    async def enforced() -> bool:
        return await clerk.status_of("GET", CLUSTERS) == 200 and await clerk.status_of("POST", MEMBERS + DRY, member("probe")) == 403

    async def install() -> None:
        await prepared.kubectl("apply", "-f", "-", stdin=bodies)
        await prepared.kubectl("apply", "-f", "-", stdin=admission_policies())
        await eventually(enforced, "the policies are enforced")

    asyncio.run(install())
    yield prepared
    asyncio.run(prepared.kubectl("delete", "-f", "-", stdin=admission_policies()))


@pytest.fixture
def clerk(guarded: ControlPlane) -> Caller:
    return Caller(guarded.client_config("clerk"))


async def refused(caller: Caller, method: str, path: str, body: Body | None = None, *, words: str) -> None:
    """Wait until an API server, which learns of each policy at a time of its own, refuses the request, that is a dry run."""
    content = "application/merge-patch+json" if method == "PATCH" else "application/json"

    async def check() -> None:
        said, status = "accepted", 200
        try:
            await caller.call(method, path + DRY, body, content=content)
        except k8s.ApiException as error:
            said, status = str(error.reason), error.status
        assert status in (403, 422) and words in said, said

    await holds(check)


async def grant(hub: ControlPlane, user: str, group: str, resource: str, verb: str, *names: str) -> Caller:
    """A user with the rights of the clerk and one virtual right."""
    name = f"{user}-{verb}"
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": [verb], "resourceNames": list(names)}]
    made = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    await hub.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    for role_name in (name, "clerk"):
        await hub.kubectl("create", "clusterrolebinding", f"{user}-{role_name}", f"--clusterrole={role_name}", f"--user={user}")
    return Caller(hub.client_config(user))


async def test_f_60_accepting_a_cluster_takes_a_right_of_its_own(guarded: ControlPlane, clerk: Caller, admin: Caller) -> None:
    await admin.create(CLUSTERS, managed("a1", accepted=False))
    change = {"spec": {"hubAcceptsClient": True}}
    await refused(clerk, "PATCH", f"{CLUSTERS}/a1", change, words="managedclusters/accept")
    await refused(clerk, "POST", CLUSTERS, managed("a2"), words="managedclusters/accept")
    await refused(clerk, "POST", MEMBERS, member("a2"), words="managedclusters/accept")
    assert await clerk.status_of("PATCH", f"{CLUSTERS}/a1{DRY}", {"spec": {"leaseDurationSeconds": 30}}) == 200
    owner = await grant(guarded, "owner", "register.open-cluster-management.io", "managedclusters/accept", "update", "a1")

    async def allowed() -> bool:
        return await owner.status_of("PATCH", f"{CLUSTERS}/a1{DRY}", change) == 200

    await eventually(allowed, "the right is enough")
    await refused(owner, "POST", CLUSTERS, managed("a2"), words="managedclusters/accept")
    await admin.merge(f"{CLUSTERS}/a1", change)
    assert await clerk.status_of("PATCH", f"{CLUSTERS}/a1{DRY}", {"metadata": {"labels": {"a": "b"}}}) == 200


async def test_f_61_joining_and_binding_a_set_take_rights_on_that_set(guarded: ControlPlane, clerk: Caller, admin: Caller) -> None:
    await admin.create(CLUSTERS, managed("a3", accepted=False))
    change = {"metadata": {"labels": {LABEL: "blue"}}}
    await refused(clerk, "PATCH", f"{CLUSTERS}/a3", change, words="managedclustersets/join")
    sets = "cluster.open-cluster-management.io"
    joiner = await grant(guarded, "joiner", sets, "managedclustersets/join", "create", "blue")

    async def joins() -> bool:
        return await joiner.status_of("PATCH", f"{CLUSTERS}/a3{DRY}", change) == 200

    await eventually(joins, "the right to join is enough")
    await refused(joiner, "PATCH", f"{CLUSTERS}/a3", {"metadata": {"labels": {LABEL: "red"}}}, words="managedclustersets/join")
    path = SETS.replace("managedclustersets", "namespaces/default/managedclustersetbindings")
    body: dict[str, Any] = {
        "apiVersion": "cluster.open-cluster-management.io/v1beta2",
        "kind": "ManagedClusterSetBinding",
        "metadata": {"name": "blue", "namespace": "default"},
        "spec": {"clusterSet": "blue"},
    }
    await refused(clerk, "POST", path, body, words="managedclustersets/bind")
    await refused(admin, "POST", path, {**body, "spec": {"clusterSet": "red"}}, words="must be blue")
    assert await admin.status_of("POST", path + DRY, body) == 200


async def test_f_62_a_work_with_an_executor_takes_the_right_to_act_as_it(guarded: ControlPlane, admin: Caller) -> None:
    kind = {"apiGroups": ["work.open-cluster-management.io"], "resources": ["manifestworks"]}
    rules = [{**kind, "verbs": ["create", "get", "patch"]}]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "author", "namespace": "default"}}
    await guarded.kubectl("apply", "-f", "-", stdin=json.dumps({**role, "rules": rules}))
    await guarded.kubectl("create", "rolebinding", "author", "-n", "default", "--role=author", "--user=author")
    author, path = Caller(guarded.client_config("author")), works("default")

    def executed(name: str) -> Body:
        account = {"namespace": "apps", "name": name}
        return {**work("default", "web"), "spec": {"executor": {"subject": {"type": "ServiceAccount", "serviceAccount": account}}}}

    async def writes() -> bool:
        return await author.status_of("POST", path + DRY, work("default", "web")) == 200

    await eventually(writes, "a work without an executor needs no further right")
    await refused(author, "POST", path, executed("robot"), words="system:serviceaccount:apps:robot")
    rules.append({**kind, "verbs": ["execute-as"], "resourceNames": ["system:serviceaccount:apps:robot"]})
    await guarded.kubectl("apply", "-f", "-", stdin=json.dumps({**role, "rules": rules}))

    async def executes() -> bool:
        return await author.status_of("POST", path + DRY, executed("robot")) == 200

    await eventually(executes, "the right is enough")
    await refused(author, "POST", path, executed("other"), words="system:serviceaccount:apps:other")
    # A change that is none of the spec needs no further right.
    await admin.create(path, executed("other"))
    assert await author.status_of("PATCH", f"{path}/web{DRY}", {"metadata": {"labels": {"a": "b"}}}) == 200
    assert await author.status_of("PATCH", f"{path}/web{DRY}", {"spec": {"deleteOption": {"propagationPolicy": "Orphan"}}}) == 403
    await admin.delete(f"{path}/web")


async def test_f_63_names_and_addresses_of_clusters_are_checked(guarded: ControlPlane, admin: Caller) -> None:
    for name in ("default", "kube-system", "fleet-system", "fleet-member-a", "open-cluster-management-hub", "kubeocean-system"):
        await refused(admin, "POST", CLUSTERS, managed(name), words="is reserved")
    await refused(admin, "POST", CLUSTERS, managed("a.b"), words="DNS label")
    body = managed("a4")
    body["spec"]["managedClusterClientConfigs"] = [{"url": "http://a"}]
    await refused(admin, "POST", CLUSTERS, body, words="https://")


async def test_f_63_no_cluster_is_accepted_while_its_namespace_is_deleted(guarded: ControlPlane, admin: Caller) -> None:
    namespaces = "/api/v1/namespaces"
    metadata = {"name": "a7", "labels": {keys.CLUSTER_NAME: "a7"}, "finalizers": ["test.example/held"]}
    await admin.create(namespaces, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    await admin.create(CLUSTERS, managed("a7", accepted=False))
    await admin.delete(f"{namespaces}/a7")
    change = {"spec": {"hubAcceptsClient": True}}

    await refused(admin, "PATCH", f"{CLUSTERS}/a7", change, words="spec.hubAcceptsClient: Namespace a7 is being deleted")
    assert await admin.status_of("PATCH", f"{CLUSTERS}/a7{DRY}", {"metadata": {"labels": {"a": "b"}}}) == 200
    assert await admin.status_of("POST", CLUSTERS + DRY, managed("a8")) == 200
    await admin.merge(f"{namespaces}/a7", {"metadata": {"finalizers": None}})
    await gone(admin, f"{namespaces}/a7")

    async def accepted() -> bool:
        return await admin.status_of("PATCH", f"{CLUSTERS}/a7{DRY}", change) == 200

    await eventually(accepted, "the cluster is accepted without the namespace")


EXPORTS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "internalserviceexports.networking.fleet.azure.com"},
    "spec": {
        "group": "networking.fleet.azure.com",
        "scope": "Namespaced",
        "names": {"kind": "InternalServiceExport", "plural": "internalserviceexports", "singular": "internalserviceexport"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.fixture
def exporting(guarded: ControlPlane) -> Iterator[ControlPlane]:
    """The hub with the kind of KubeFleet's networking, from before its process starts."""
    name = EXPORTS["metadata"]["name"]  # type: ignore[index]
    asyncio.run(guarded.kubectl("apply", "-f", "-", stdin=json.dumps(EXPORTS)))
    yield guarded
    asyncio.run(guarded.kubectl("delete", "crd", str(name), "--wait=false"))


async def test_f_129_a_member_that_exports_services_is_not_deleted(exporting: ControlPlane, program: Program, admin: Caller) -> None:
    path = f"{MEMBERS}/e1"
    await admin.create(MEMBERS, member("e1"))
    await found(admin, internal("e1"))
    assert await admin.status_of("DELETE", path + DRY) == 200
    exports = "/apis/networking.fleet.azure.com/v1alpha1/namespaces/fleet-member-e1/internalserviceexports"
    body = {"apiVersion": "networking.fleet.azure.com/v1alpha1", "kind": "InternalServiceExport", "metadata": {"name": "web"}}

    async def exported() -> bool:
        return await admin.status_of("POST", exports, body) in (200, 409)

    await eventually(exported, "the export is created")

    await refused(admin, "DELETE", path, words="delete the InternalServiceExports in namespace fleet-member-e1")
    await admin.merge(path, {"spec": {"deleteOptions": {"validationMode": "Skip"}}})
    assert await admin.status_of("DELETE", path + DRY) == 200
    await admin.merge(path, {"spec": {"deleteOptions": {"validationMode": "Strict"}}})
    await admin.delete(f"{exports}/web")

    async def allowed() -> bool:
        return await admin.status_of("DELETE", path + DRY) == 200

    await eventually(allowed, "the last export is deleted")
    assert "fleet.vkubelet.io/exports-services" not in ((await admin.call("GET", path))["metadata"].get("annotations") or {})


async def test_f_63_f_64_a_worker_changes_its_own_part_of_its_own_objects(
    guarded: ControlPlane, bootstrap: Caller, admin: Caller, program: Program
) -> None:
    agent = await joined(guarded, bootstrap, admin, "a5")
    other = await joined(guarded, bootstrap, admin, "a6")
    await found(admin, f"{MEMBERS}/a5")
    own = f"{CLUSTERS}/a5"
    changes: list[tuple[dict[str, Any], str]] = [
        ({"labels": {"env": "prod"}}, "metadata.labels"),
        ({"labels": {LABEL: "default", "more": "x"}}, "metadata.labels"),
        ({"annotations": {"fleet.vkubelet.io/origin": "MemberCluster"}}, "metadata.annotations"),
        ({"finalizers": []}, "finalizers"),
    ]
    for metadata, text in changes:
        assert text in await put(agent, own, metadata=metadata)
    for spec in ({"hubAcceptsClient": False}, {"leaseDurationSeconds": 3600}, {"taints": [{"key": "a", "effect": "NoSelect"}]}):
        assert "managedClusterClientConfigs" in await put(agent, own, spec=spec)
    allowed = {"labels": {"agent.open-cluster-management.io/a": "b"}, "annotations": {"agent.open-cluster-management.io/a": "b"}}
    assert await put(agent, own, metadata=allowed, spec={"managedClusterClientConfigs": [{"url": "https://a5:6443"}]}) == ""
    # A mistake in RBAC does not let a worker write elsewhere.
    group = "--group=system:open-cluster-management:a5"
    await guarded.kubectl("create", "clusterrolebinding", "mistake", "--clusterrole=cluster-admin", group)
    await answers(agent, "GET", lease("a6"), 200)
    foreign = await agent.own.call("GET", lease("a6"))
    await refused(agent.own, "PUT", lease("a6"), foreign, words="not those of a6")
    await refused(agent.own, "PATCH", f"{CLUSTERS}/a6/status", {"status": {}}, words="not those of a6")
    await guarded.kubectl("delete", "clusterrolebinding", "mistake")
    await other.renew()
    await admin.delete(f"{CLUSTERS}/a5")
    await gone(admin, f"{CLUSTERS}/a5")


async def test_f_64_guard_rails_leave_the_fleet_to_its_administrators(guarded: ControlPlane, admin: Caller) -> None:
    await guarded.kubectl("create", "clusterrolebinding", "deputy", "--clusterrole=cluster-admin", "--user=deputy")
    await guarded.kubectl("apply", "-f", "-", stdin=guard_rails(["bare-admin", keys.HUB]))
    deputy = Caller(guarded.client_config("deputy"))
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet-member-g1"}}
    namespaces = "/api/v1/namespaces"

    try:
        await refused(deputy, "POST", namespaces, body, words="bare-admin, fleet-hub")
        definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/memberclusters.cluster.kubernetes-fleet.io"
        assert await deputy.status_of("PATCH", definition + DRY, {"metadata": {"labels": {"a": "b"}}}) == 403
        assert await deputy.status_of("POST", namespaces + DRY, {**body, "metadata": {"name": "other"}}) == 200
        assert await admin.status_of("POST", namespaces + DRY, body) == 200
    finally:
        await guarded.kubectl("delete", "-f", "-", stdin=guard_rails(["any"]))
        await guarded.kubectl("delete", "clusterrolebinding", "deputy")


async def put(agent: Agent, path: str, *, metadata: Body | None = None, spec: Body | None = None) -> str:
    """Updates the own record as far as dry-run goes; "" or the refusal."""
    body = await agent.own.call("GET", path)
    for name, value in (metadata or {}).items():
        body["metadata"][name] = {**body["metadata"].get(name, {}), **value} if isinstance(value, dict) else value
    body["spec"] |= spec or {}
    try:
        await agent.own.replace(path + DRY, body)
    except k8s.ApiException as error:
        return str(error.reason)
    return ""


async def test_f_11_the_policies_have_no_warnings_of_types(guarded: ControlPlane) -> None:
    """The API server checks the expressions against the schemas."""
    listed = json.loads(await guarded.kubectl("get", "validatingadmissionpolicies", "-o", "json"))["items"]
    ours = [each for each in listed if each["metadata"]["name"].endswith("fleet.vkubelet.io")]
    assert len(ours) == 8

    async def checked() -> bool:
        for each in ours:
            try:
                found = json.loads(await guarded.kubectl("get", "validatingadmissionpolicy", each["metadata"]["name"], "-o", "json"))
            except CommandFailed:
                return False
            if "observedGeneration" not in found.get("status", {}):
                return False
            assert not found["status"].get("typeChecking", {}).get("expressionWarnings"), found["status"]
        return True

    await eventually(checked, "the expressions are checked")
