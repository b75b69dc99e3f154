"""The rights of `fleet hub`: each is used, and none is missing, as the audit log of the hub shows; one that is taken away is missed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from fleet.api import keys
from fleet.core.rights import hub_rules
from fleet.kubefleet.membership import member_rules
from fleet.ocm.acceptance import cluster_rules, denied_rules
from tests.faults.cut.choice import Choice
from tests.integration.fleet.conftest import serving
from tests.integration.fleet.player import (
    ACCEPTED,
    CLUSTERS,
    MEMBERS,
    RBAC,
    SETS,
    Agent,
    Caller,
    accept,
    addon,
    addons,
    agent_of,
    found,
    gone,
    has_condition,
    issued,
    joined,
    lease,
    managed,
    member,
    profile,
    reaches,
    report,
    request_certificate,
    work,
    works,
)
from tests.support.audit import Audit
from tests.support.program import Program, eventually
from tests.support.reviews import allows
from tests.support.roles import narrowed
from vkubelet.api.rbac import Check, checks_of
from vkubelet.testing.cluster import ControlPlane

HELD = {"finalizers": ["test.example/held"]}
APPLIED = ("managedclusters",)
"""Created by server-side apply: the API server checks `create` too, and the log has `patch`."""
VIRTUAL = {"managedclusters/accept", "managedclustersets/join", "signers"}
"""Asked for by admission: tests of F-60, F-61 and F-109."""
ELSEWHERE = {"validatingadmissionpolicies", "validatingadmissionpolicybindings", "deployments", "internalserviceexports"}
"""Used by the tests of F-64, F-3 and F-129."""
RENEWED_EVENTS = {("patch", "events"), ("update", "events")}
REMOVED = 2
"""Rights that one run takes away; with FAULTS_WHOLE=1 all that are used."""


def what(check: Check) -> str:
    return check.resource + (f"/{check.subresource}" if check.subresource else "")


def passed_on() -> set[tuple[str, str, str]]:
    """Rights that the process grants, and so has to have: group, resource, verb."""
    granted = [*cluster_rules("w"), *denied_rules("w"), *member_rules("fleet-member-w")]
    return {(check.group, what(check), check.verb) for check in checks_of(granted)}


def to_be_used() -> list[Check]:
    """Rights that show in the log when they are used."""
    seen = []
    for check in checks_of(hub_rules()):
        virtual = what(check) in VIRTUAL | ELSEWHERE or check.verb == "bind"
        listed = check.verb == "list" and check.resource not in ("manifestworks",)
        applied = check.verb == "create" and check.resource in APPLIED
        if not (virtual or listed or applied or (check.group, what(check), check.verb) in passed_on()):
            seen.append(check)
    return seen


async def use_everything(prepared: ControlPlane, bootstrap: Caller, admin: Caller) -> None:
    """Does what makes the process use each of its rights."""
    for name in ("default", "global"):
        await admin.delete(f"{SETS}/{name}")
        await found(admin, f"{SETS}/{name}")
    await admin.merge(f"{SETS}/global", {"spec": {"clusterSelector": {"labelSelector": {"matchLabels": {"a": "b"}}}}})
    binding = {"apiVersion": "cluster.open-cluster-management.io/v1beta2", "kind": "ManagedClusterSetBinding"}
    path = SETS.replace("managedclustersets", "namespaces/default/managedclustersetbindings")
    await admin.create(path, {**binding, "metadata": {"name": "default"}, "spec": {"clusterSet": "default"}})
    await reaches(admin, f"{path}/default", "Bound", ("True", "ClusterSetBound"))
    await admin.delete(f"{path}/default")
    agent = await joined(prepared, bootstrap, admin, "g1", seconds=1)
    await issued(admin, await request_certificate(agent.own, "g1", agent.key))
    await admin.create(addons("g1"), addon("g1", "tunnel", **HELD))
    await admin.create(works("g1"), work("g1", "web", **HELD))
    await has_condition(admin, "g1", "ManagedClusterConditionAvailable", ("Unknown", "ManagedClusterLeaseUpdateStopped"))
    await admin.create(MEMBERS, member("g2"))
    await report(await agent_of(prepared, "g2"), "g2")
    await found(admin, profile("default", "g2"))
    for path, label in (
        ("/api/v1/namespaces/fleet-member-g2", keys.MEMBER_NAME),
        (f"{RBAC}/namespaces/fleet-member-g2/roles/fleet-role-g2", keys.MEMBER_NAME),
        (f"{RBAC}/clusterrolebindings/open-cluster-management:managedcluster:g1", keys.CLUSTER_NAME),
        (lease("g1"), keys.CLUSTER_NAME),
        (profile("default", "g2"), keys.CLUSTER_MANAGER),
    ):
        await admin.merge(path, {"metadata": {"labels": {label: None}}})
        await eventually(partial(labelled, admin, path, label), f"{path} has its label {label} again")
    await leave(admin, agent)


async def labelled(admin: Caller, path: str, label: str) -> bool:
    return label in ((await admin.call("GET", path))["metadata"].get("labels") or {})


async def leave(admin: Caller, agent: Agent) -> None:
    await accept(admin, "g1", accepts=False)
    await has_condition(admin, "g1", "HubAcceptedManagedCluster", ("False", "HubClusterAdminDenied"))
    await admin.merge(f"{CLUSTERS}/g1", {"metadata": {"annotations": {keys.FORCE_CLEANUP: "1"}}})
    await admin.delete(f"{CLUSTERS}/g1")
    await gone(admin, f"{CLUSTERS}/g1")
    await report(admin, "g2", joined="False")
    await admin.delete(f"{MEMBERS}/g2")
    await gone(admin, f"{MEMBERS}/g2")
    await gone(admin, f"{CLUSTERS}/g2")


async def test_f_59_each_right_of_the_hub_is_used_and_none_is_missing(
    prepared: ControlPlane, bootstrap: Caller, admin: Caller, tmp_path: Path
) -> None:
    audit = Audit(prepared, keys.HUB)
    with serving(prepared, tmp_path, {"profile_namespace": "default"}):
        await use_everything(prepared, bootstrap, admin)

    def unused() -> list[str]:
        used = {(call.verb, call.what) for call in audit.calls()} | RENEWED_EVENTS
        whole = {call.what.partition("/")[0] for call in audit.calls()}
        return [str(check) for check in to_be_used() if (check.verb, what(check)) not in used and not (check.resource == "*" and whole)]

    # Watches are in the log when they have ended.
    try:
        await eventually(lambda: not unused(), "each right is used")
    except AssertionError as error:
        raise AssertionError(f"not used: {unused()}") from error
    assert not [str(call) for call in audit.calls() if call.code == 403]


async def test_f_64_an_issued_certificate_reaches_nothing_of_other_clusters(
    prepared: ControlPlane, program: Program, bootstrap: Caller, admin: Caller
) -> None:
    agent = await joined(prepared, bootstrap, admin, "g3")
    await joined(prepared, bootstrap, admin, "g4")
    forbidden = [
        ("GET", lease("g4")),
        ("GET", works("g4")),
        ("GET", addons("g4")),
        ("GET", "/api/v1/namespaces/g4"),
        ("GET", "/api/v1/namespaces/g4/secrets"),
        ("GET", "/api/v1/namespaces/g3/secrets"),
        ("GET", "/api/v1/nodes"),
        ("GET", CLUSTERS),
        ("GET", f"{CLUSTERS}/g4"),
        ("PATCH", f"{CLUSTERS}/g4/status"),
        ("DELETE", f"{CLUSTERS}/g3"),
    ]
    for method, path in forbidden:
        assert await agent.own.status_of(method, path, {} if method != "GET" else None) == 403, f"{method} {path}"
    assert await agent.own.status_of("POST", CLUSTERS, managed("g5", accepted=False)) == 403
    assert await agent.own.status_of("PATCH", f"{CLUSTERS}/g3/status", {"status": {"version": {"kubernetes": "v1.34.0"}}}) == 200
    await agent.renew()


async def test_f_59_a_right_that_the_hub_lacks_is_named_and_missed_until_it_is_back(
    prepared: ControlPlane, program: Program, admin: Caller
) -> None:
    choice = Choice.of("rights of the hub")
    # What the acceptance of one cluster needs.
    needed = [each for each in to_be_used() if (each.verb, what(each)) in ACCEPTANCE and not each.namespace]
    for number, check in enumerate(choice.part(needed, REMOVED)):
        name, audit = f"lacks-{number}", Audit(prepared, keys.HUB)
        role = json.loads(await prepared.kubectl("get", "clusterrole", keys.HUB, "-o", "json"))["rules"]
        try:
            await set_rules(prepared, narrowed(role, check))
            await eventually(partial(may, prepared, check, False), f"{check} is forbidden")
            await admin.create(CLUSTERS, managed(name))
            await eventually(partial(refused, audit, check), f"{check} is used", by=[program])
            assert await admin.get(f"{MEMBERS}/{name}") is None or check.verb == "patch"
            await eventually(lambda check=check: what(check) in program.text(), "the log names it")
        finally:
            await set_rules(prepared, role)
        await reaches(admin, f"{CLUSTERS}/{name}", "HubAcceptedManagedCluster", ACCEPTED)
        print(f"{check}: missed, and the cluster accepted with it")


ACCEPTANCE = {
    ("patch", "managedclusters"),
    ("patch", "managedclusters/status"),
    ("create", "namespaces"),
    ("create", "clusterroles"),
    ("create", "clusterrolebindings"),
    ("create", "rolebindings"),
    ("create", "leases"),
}


async def set_rules(hub: ControlPlane, rules: Iterable[dict[str, Any]]) -> None:
    await hub.kubectl("patch", "clusterrole", keys.HUB, "--type=merge", "-p", json.dumps({"rules": list(rules)}))


async def may(hub: ControlPlane, check: Check, answer: bool) -> bool:
    return await allows(hub, keys.HUB, **check.attributes) is answer


def refused(audit: Audit, check: Check) -> bool:
    return any((call.verb, call.what, call.code) == (check.verb, what(check), 403) for call in audit.calls())
