"""Tests of fleet.ocm.acceptance."""

from typing import Any

import pytest

from fleet.ocm import acceptance
from fleet.ocm.acceptance import Step, decide
from tests.unit.fleet.builders import condition, managed
from vkubelet.api.objects import Json, ObjectMeta

NAME = "open-cluster-management.io/cluster-name"
ROLE = "open-cluster-management:managedcluster:w1"
GROUPS = ["system:open-cluster-management:w1", "open-cluster-management:w1"]


def named(bodies: list[Json]) -> list[tuple[str, str, str]]:
    return [(body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]) for body in bodies]


def rights(role: Json) -> set[tuple[str, str, str, str]]:
    """Group, resource, verb and name, one by one."""
    return {
        (group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def spelled(*lines: str) -> set[tuple[str, str, str, str]]:
    """Rights from lines `group resource verb,verb [name]`, where `-` is the core group."""
    found = set()
    for line in lines:
        group, resource, verbs, *name = line.split()
        found |= {("" if group == "-" else group, resource, verb, name[0] if name else "") for verb in verbs.split(",")}
    return found


def of(kind: str, name: str, bodies: list[Json]) -> Json:
    (found,) = (body for body in bodies if (body["kind"], body["metadata"]["name"]) == (kind, name))
    return found


ACCEPTED = acceptance.accepted_objects(managed(spec={"leaseDurationSeconds": 30}))
HUB = acceptance.hub_objects()


def test_f_113_objects_are_created_in_this_order_each_with_the_label_of_the_cluster() -> None:
    assert named(ACCEPTED) == [
        ("Namespace", "", "w1"),
        ("ClusterRole", "", ROLE),
        ("ClusterRoleBinding", "", ROLE),
        ("RoleBinding", "fleet-system", f"{ROLE}:gateway"),
        ("RoleBinding", "w1", f"{ROLE}:registration"),
        ("RoleBinding", "w1", f"{ROLE}:work"),
        ("Lease", "w1", "managed-cluster-lease"),
    ]
    assert all(body["metadata"]["labels"][NAME] == "w1" for body in ACCEPTED)


def test_f_114_an_accepted_cluster_has_exactly_these_rights_in_the_hub() -> None:
    own = "cluster.open-cluster-management.io"
    assert rights(of("ClusterRole", ROLE, ACCEPTED)) == spelled(
        "certificates.k8s.io certificatesigningrequests create,get,list,watch",
        "register.open-cluster-management.io managedclusters/clientcertificates renew",
        f"{own} managedclusters get,list,watch,update w1",
        f"{own} managedclusters/status patch,update w1",
        "register.open-cluster-management.io managedclusters/tunnel create w1",
    )
    for body in ACCEPTED:
        if body["kind"].endswith("Binding"):
            assert [subject["name"] for subject in body["subjects"]] == GROUPS, body["metadata"]["name"]
            assert all(subject["kind"] == "Group" for subject in body["subjects"])


def test_f_114_the_gateway_is_found_and_reached_by_name() -> None:
    gateway = of("Role", "fleet-gateway-clients", HUB)
    assert gateway["metadata"]["namespace"] == "fleet-system"
    assert rights(gateway) == spelled("- configmaps get fleet-gateway", "- services/proxy get,create fleet-gateway:tunnel")
    assert of("RoleBinding", f"{ROLE}:gateway", ACCEPTED)["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": "fleet-gateway-clients",
    }


def test_f_115_in_its_namespace_a_cluster_renews_its_lease_and_reports_addons() -> None:
    role = "open-cluster-management:managedcluster:registration"
    assert rights(of("ClusterRole", role, HUB)) == spelled(
        "coordination.k8s.io leases get,list,watch,update",
        "addon.open-cluster-management.io managedclusteraddons get,list,watch",
        "addon.open-cluster-management.io managedclusteraddons/status patch,update",
        "events.k8s.io events create",
    )
    assert of("RoleBinding", f"{ROLE}:registration", ACCEPTED)["roleRef"]["name"] == role


def test_f_116_works_are_read_and_their_state_reported_until_none_is_left() -> None:
    role = "open-cluster-management:managedcluster:work"
    work = "work.open-cluster-management.io"
    assert rights(of("ClusterRole", role, HUB)) == spelled(
        f"{work} manifestworks get,list,watch,update,patch",
        f"{work} manifestworks/status patch,update",
        "- events create,patch,update",
        "events.k8s.io events create,patch,update",
    )
    binding = of("RoleBinding", f"{ROLE}:work", ACCEPTED)
    assert binding["roleRef"]["name"] == role
    assert binding["metadata"]["finalizers"] == ["cluster.open-cluster-management.io/manifest-work-cleanup"]


def test_f_117_the_hub_creates_the_lease_with_the_duration_of_the_record() -> None:
    assert of("Lease", "managed-cluster-lease", ACCEPTED)["spec"] == {"leaseDurationSeconds": 30}


def test_f_118_bootstrap_identities_may_ask_to_join_and_nothing_else() -> None:
    role = "open-cluster-management:bootstrap"
    cluster = "cluster.open-cluster-management.io"
    assert rights(of("ClusterRole", role, HUB)) == spelled(
        "- configmaps get",
        "certificates.k8s.io certificatesigningrequests create,get,list,watch",
        f"{cluster} managedclusters create,get,list,watch",
        f"{cluster} managedclustersets/join create",
    )
    assert of("ClusterRoleBinding", role, HUB)["subjects"] == [
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:bootstrappers:managedcluster"},
        {"kind": "ServiceAccount", "name": "agent-registration-bootstrap", "namespace": "open-cluster-management"},
    ]
    assert ("ServiceAccount", "open-cluster-management", "agent-registration-bootstrap") in named(HUB)


def test_f_59_every_right_has_a_reason_and_none_is_a_wildcard() -> None:
    lists = (
        acceptance.cluster_rules("w1"),
        acceptance.denied_rules("w1"),
        acceptance.registration_rules(),
        acceptance.work_rules(),
        acceptance.bootstrap_rules(),
        acceptance.gateway_rules(),
    )
    rules = [rule for each in lists for rule in each]
    assert all(rule.why.endswith(".") for rule in rules)
    assert not any("*" in (*rule.verbs, *rule.resources, rule.group) for rule in rules)
    assert not any({"escalate", "bind", "impersonate"} & set(rule.verbs) for rule in rules)


def test_f_107_before_it_is_accepted_a_cluster_may_read_its_own_record_alone() -> None:
    denied = acceptance.denied_objects("w1")
    assert named(denied) == [("ClusterRole", "", ROLE), ("ClusterRoleBinding", "", ROLE)]
    assert rights(denied[0]) == spelled("cluster.open-cluster-management.io managedclusters get,list,watch w1")


def test_f_154_a_denial_revokes_every_binding_in_a_namespace() -> None:
    bindings = [(namespace, name) for kind, namespace, name in named(ACCEPTED) if kind == "RoleBinding"]
    assert acceptance.revoked_bindings("w1") == bindings
    kept = named(acceptance.denied_objects("w1"))
    assert {each for each in named(ACCEPTED) if each[0].startswith("Cluster")} == set(kept)


OURS = ObjectMeta(name="w1", labels={NAME: "w1"})
YES: dict[str, Any] = {"spec": {"hubAcceptsClient": True}}
WAS = {"status": {"conditions": [condition("HubAcceptedManagedCluster", "True", "HubClusterAdminAccepted")]}}


@pytest.mark.parametrize(
    ("cluster", "namespace", "step", "status", "reason"),
    [
        (managed(), None, Step.DENY, "", ""),
        (managed(**WAS), OURS, Step.DENY, "False", "HubClusterAdminDenied"),
        (managed(**YES), None, Step.ACCEPT, "True", "HubClusterAdminAccepted"),
        (managed(**YES), OURS, Step.ACCEPT, "True", "HubClusterAdminAccepted"),
        (managed(**YES, **WAS), OURS, Step.ACCEPT, "True", "HubClusterAdminAccepted"),
        (managed(**YES), ObjectMeta(name="w1"), Step.WAIT, "False", "Error"),
        (managed(**YES), ObjectMeta(name="w1", labels={NAME: "w2"}), Step.WAIT, "False", "Error"),
        (
            managed(**YES),
            ObjectMeta(name="w1", labels={NAME: "w1"}, deletion_timestamp="2026-01-01T00:00:00Z"),
            Step.WAIT,
            "False",
            "Error",
        ),
        (managed("kube-system", **YES), None, Step.REFUSE, "False", "Error"),
        (managed("kube-system", **YES), ObjectMeta(name="kube-system", labels={NAME: "kube-system"}), Step.REFUSE, "False", "Error"),
        (managed(**YES, deletionTimestamp="2026-01-01T00:00:00Z"), OURS, Step.NOTHING, "", ""),
    ],
)
def test_f_145_what_is_done_and_said_about_a_cluster(
    cluster: Any, namespace: ObjectMeta | None, step: Step, status: str, reason: str
) -> None:
    found = decide(cluster, namespace)
    assert (found.step, found.status, found.reason) == (step, status, reason)
    assert bool(found.message) is bool(status)


def test_f_51_an_unlabelled_namespace_is_not_taken_and_the_consent_is_named() -> None:
    message = decide(managed(**YES), ObjectMeta(name="w1")).message
    assert "kubectl label namespace w1 open-cluster-management.io/cluster-name=w1" in message


def test_f_155_a_namespace_that_is_being_deleted_is_waited_for() -> None:
    deleted = ObjectMeta(name="w1", labels={NAME: "w1"}, deletion_timestamp="2026-01-01T00:00:00Z")
    assert "being deleted" in acceptance.namespace_obstacle("w1", deleted)
