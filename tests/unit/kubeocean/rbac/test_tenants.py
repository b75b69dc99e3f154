"""Rights for tenants: what the worker's owner prepares, and that every right to write is bounded."""

from __future__ import annotations

import re

import pytest

from kubeocean.model import keys
from kubeocean.rbac.guards import guards
from kubeocean.rbac.tenants import (
    guards_of_tenants,
    tenant_guards,
    tenant_objects,
    tenant_rules,
    trials_of_tenants,
    wide_objects,
    wide_rules,
)

MOUNT = "kubeocean-worker"


def test_worker_s_owner_prepares_namespace_binding_quota_and_isolation() -> None:
    space, binding, quota, network = tenant_objects(MOUNT, "team-a")
    assert space["metadata"]["name"] == "kubeocean-worker-team-a"
    assert space["metadata"]["labels"] == {keys.TENANT_OF: MOUNT, "pod-security.kubernetes.io/enforce": "baseline"}
    assert {each["metadata"]["namespace"] for each in (binding, quota, network)} == {"kubeocean-worker-team-a"}
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kubeocean-syncer-tenant"}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "kubeocean-syncer", "namespace": MOUNT}]
    assert network["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}, "it lets nothing in, and has no rule that adds to others"


@pytest.mark.parametrize("creates", [True, False])
def test_rights_over_tenants_are_bound_in_their_namespaces_alone(creates: bool) -> None:
    role, *others = wide_objects(MOUNT, creates=creates)
    assert role["kind"] == "ClusterRole" and role["metadata"]["name"] == "kubeocean-syncer-tenant"
    assert not [body for body in others if body.get("roleRef", {}).get("name") == role["metadata"]["name"]], "bound nowhere in the cluster"
    secrets = [rule for body in others for rule in body.get("rules", ()) if "secrets" in rule["resources"]]
    assert not secrets, "no Secret outside of the namespaces of tenants"


def test_every_right_to_write_states_what_bounds_it() -> None:
    known = {guard.name for guard in (*guards_of_tenants(MOUNT), *guards(MOUNT))}
    rules = [rule for rule in (*tenant_rules(MOUNT), *wide_rules(MOUNT, creates=True)) if rule.writes]
    assert all(rule.bound for rule in rules)
    for rule in rules:
        for name in re.findall(r"^guard ([\w-]+)", rule.bound):
            assert name in known
    assert not any(rule.writes for rule in wide_rules(MOUNT))


def test_guards_are_for_this_identity_alone_and_each_has_a_trial() -> None:
    policies = [body for body in tenant_guards(MOUNT) if body["kind"] == "ValidatingAdmissionPolicy"]
    always = "kubeocean-syncer-networkpolicies"
    assert {body["metadata"]["name"] for body in policies} == {always, "kubeocean-syncer-tenants", "kubeocean-syncer-tenant-roles"}
    assert {body["metadata"]["name"] for body in tenant_guards(MOUNT, creates=False)} == {always}
    who = "request.userInfo.username == 'system:serviceaccount:kubeocean-worker:kubeocean-syncer'"
    assert all(body["spec"]["matchConditions"][0]["expression"] == who for body in policies)
    assert [trial.resource.plural for trial in trials_of_tenants(MOUNT)] == ["namespaces", "rolebindings"]
