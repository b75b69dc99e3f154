"""Tests of fleet.core.rights."""

from collections.abc import Iterable

from fleet.api.clusters import ManagedCluster
from fleet.core.rights import hub_objects, hub_rules
from fleet.kubefleet.membership import member_rules
from fleet.ocm.acceptance import REGISTRATION_ROLE, WORK_ROLE, accepted_objects, cluster_rules, denied_rules
from vkubelet.api.objects import ObjectMeta
from vkubelet.api.rbac import Check, Rule, checks_of


def covers(rules: Iterable[Rule], check: Check) -> bool:
    """Whether one of the cluster-wide rules contains a right."""
    resource = check.resource + (f"/{check.subresource}" if check.subresource else "")
    return any(
        rule.group == check.group
        and not rule.namespace
        and bool({resource, "*"} & set(rule.resources))
        and bool({check.verb, "*"} & set(rule.verbs))
        and (not rule.names or check.name in rule.names)
        for rule in rules
    )


def test_f_59_the_hub_grants_nothing_that_it_does_not_have() -> None:
    granted = [*cluster_rules("w1"), *denied_rules("w1"), *member_rules("fleet-member-w1")]
    missing = [str(check) for check in checks_of(granted) if not covers(hub_rules(), check)]
    assert not missing


def test_f_59_shared_roles_are_bound_by_their_names_alone() -> None:
    bound = {name for rule in hub_rules() if "bind" in rule.verbs for name in rule.names}
    assert all(rule.names for rule in hub_rules() if {"bind", "escalate"} & set(rule.verbs))
    cluster = ManagedCluster(meta=ObjectMeta(name="w1"))
    roles = {each["roleRef"]["name"] for each in accepted_objects(cluster) if "roleRef" in each}
    assert bound == roles - {"open-cluster-management:managedcluster:w1"} and {REGISTRATION_ROLE, WORK_ROLE} < bound


def test_f_3_a_module_that_is_off_has_no_rights() -> None:
    groups = {rule.group for rule in hub_rules(())}
    assert "multicluster.x-k8s.io" not in groups and "cluster.kubernetes-fleet.io" not in groups
    assert not any("secrets" in rule.resources for rule in hub_rules())


def test_f_59_every_right_has_a_reason_and_the_roles_are_bound_to_the_account() -> None:
    assert all(rule.why for rule in hub_rules())
    made = {(each["kind"], each["metadata"]["name"]) for each in hub_objects()}
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    assert made == {(kind, "fleet-hub") for kind in kinds}
    assert all(each["subjects"][0]["namespace"] == "fleet-system" for each in hub_objects() if "subjects" in each)
