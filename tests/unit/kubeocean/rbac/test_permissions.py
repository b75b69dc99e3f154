"""The rights of our identities, as data."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from kubeocean.model import keys
from kubeocean.rbac import permissions
from kubeocean.rbac.guards import guards
from kubeocean.rbac.permissions import (
    hub_objects,
    hub_rules,
    manager_rules,
    worker_checks,
    worker_guards,
    worker_objects,
    worker_rules,
)
from vkubelet.api.objects import Json
from vkubelet.api.rbac import Check, Rule, checks_of

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "deploy" / "dev" / "samples.py"


def made_samples() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("samples", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out: dict[str, str] = module.samples()
    return out


@pytest.mark.parametrize("name", ["hub-rbac.yaml", "worker-rbac.yaml", "worker-guards.yaml", "worker-metrics-rbac.yaml"])
def test_samples_are_made_of_these_rights(name: str) -> None:
    shipped = (ROOT / "deploy" / "samples" / name).read_text()
    assert shipped == made_samples()[name], "run: .venv/bin/python deploy/dev/samples.py"


def granted(objects: list[Json]) -> set[tuple[str, str, str, str]]:
    """(namespace, resource.group, verb, name) of all roles."""
    return {
        (body["metadata"].get("namespace", ""), f"{resource}.{group}", verb, name)
        for body in objects
        if body["kind"] in ("Role", "ClusterRole")
        for rule in body["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", ("",))
    }


def asked(checks: tuple[Check, ...]) -> set[tuple[str, str, str, str]]:
    def what(check: Check) -> str:
        return f"{check.resource}/{check.subresource}" if check.subresource else check.resource

    return {(check.namespace, f"{what(check)}.{check.group}", check.verb, check.name) for check in checks}


@pytest.mark.parametrize("metrics", [False, True])
@pytest.mark.parametrize("label", [False, True])
def test_what_is_asked_of_a_worker_is_what_its_roles_grant(metrics: bool, label: bool) -> None:
    objects = worker_objects("mount", metrics=metrics, policy_label=label)
    assert asked(worker_checks("mount", metrics=metrics, policy_label=label)) == granted(objects)


def test_the_hubs_roles_grant_its_rules() -> None:
    assert asked(checks_of(hub_rules(binding="b"))) == granted(hub_objects("kubeocean-syncer-b", binding="b"))


def test_every_right_has_a_reason_that_is_a_sentence() -> None:
    for rule in (*hub_rules(), *worker_rules("mount", metrics=True, policy_label=True)):
        assert len(rule.why) > 10 and rule.why[0].isalpha() and rule.why[-1] in ".?", rule


def test_nothing_is_granted_by_a_wildcard_or_twice() -> None:
    for rules in (hub_rules(), worker_rules("mount", metrics=True, policy_label=True)):
        checks = checks_of(rules)
        assert len(asked(checks)) == len(checks)
        assert not any("*" in (*rule.resources, *rule.verbs, rule.group) for rule in rules)


def test_worker_identity_writes_outside_its_namespace_only_policies_and_volumes() -> None:
    written = {f"{check.resource}/{check.subresource}" for check in worker_checks("mount") if not check.namespace and writes(check)}
    assert written == {"resourceleasingpolicies/", "resourceleasingpolicies/status", "priorityclasses/", "persistentvolumes/"}
    assert not any(check.resource in ("secrets", "configmaps") and check.namespace != "mount" for check in worker_checks("mount"))


def test_a_hub_identity_writes_no_other_binding_and_makes_no_pod_but_placeholders() -> None:
    checks = checks_of(hub_rules(binding="mine"))
    assert {check.name for check in checks if check.resource == "clusterbindings" and writes(check)} == {"mine"}
    assert {check.namespace for check in checks if str(check).startswith("create pods in")} == {keys.FAKE_NAMESPACE}


def writes(check: Check) -> bool:
    return check.verb not in ("get", "list", "watch")


def test_identities_of_two_mount_namespaces_share_no_object() -> None:
    def identities(objects: list[Json]) -> set[tuple[str, str, str]]:
        return {(body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]) for body in objects}

    assert not identities(worker_objects("one", metrics=True)) & identities(worker_objects("two", metrics=True))
    assert not identities(worker_objects("one")) & identities(worker_objects())
    one, two = (hub_objects(permissions.syncer_name(name), namespaces=False) for name in ("one", "two"))
    assert not identities(one) & identities(two)


def test_every_role_is_bound_to_the_service_account_that_is_made() -> None:
    for objects in (hub_objects("sa", namespace="ns"), worker_objects("ns", name="sa", metrics=True)):
        assert any(body["kind"] == "ServiceAccount" and body["metadata"] == {"name": "sa", "namespace": "ns"} for body in objects)
        bound = {(b["roleRef"]["kind"], b["metadata"].get("namespace", ""), b["roleRef"]["name"]) for b in objects if "roleRef" in b}
        roles = {(b["kind"], b["metadata"].get("namespace", ""), b["metadata"]["name"]) for b in objects if "rules" in b}
        assert roles <= bound
        assert all(b["subjects"] == [{"kind": "ServiceAccount", "name": "sa", "namespace": "ns"}] for b in objects if "subjects" in b)


def test_labels_are_put_on_all_beside_those_that_are_there() -> None:
    objects = worker_objects("mount", labels={"a": "b"})
    assert all(body["metadata"]["labels"]["a"] == "b" for body in objects)
    assert objects[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "baseline"


def test_a_right_is_said_as_people_say_it_and_asked_as_the_api_wants_it() -> None:
    (check,) = checks_of([Rule("pods/exec", "create", namespace="mount", why="To run commands.")])
    assert str(check) == "create pods/exec in namespace mount"
    assert check.attributes == {"resource": "pods", "subresource": "exec", "verb": "create", "namespace": "mount"}
    (check,) = checks_of([Rule("csinodes", "list", group="storage.k8s.io", names=("n",), why="To list.")])
    assert str(check) == "list csinodes.storage.k8s.io"
    assert check.attributes == {"resource": "csinodes", "group": "storage.k8s.io", "verb": "list", "name": "n"}


def test_without_the_essential_rights_no_pod_runs_and_the_go_version_s_role_has_them() -> None:
    """A cluster that is taken over has the older role; what only newer features need must not stop it."""
    essential = {str(check) for check in worker_checks("m", essential_only=True)}
    assert {"create pods in namespace m", "list nodes", "update secrets in namespace m"} <= essential
    assert not {each for each in essential if "portforward" in each or "resize" in each or "events" in each or "namespaces" in each}


def every_rule() -> list[Rule]:
    return [*manager_rules(), *worker_rules("mount", metrics=True, policy_label=True)]


@pytest.mark.parametrize("rule", [rule for rule in every_rule() if rule.writes and rule.resources != ("nodes/proxy",)], ids=str)
def test_every_right_to_write_states_what_bounds_it(rule: Rule) -> None:
    assert rule.bound, "RBAC alone is too coarse: name a guard, or state what else limits it"
    named = {guard.name: guard for guard in guards("mount")}
    for name in re.findall(r"^guard (\w+)", rule.bound):
        guard = named[name]
        assert guard.group == rule.group and set(guard.resources) & set(rule.resources)
        operations = {"create": "CREATE", "patch": "UPDATE", "update": "UPDATE", "delete": "DELETE"}
        wanted = {operations[verb] for verb in rule.verbs if verb in operations}
        # Of pods and Secrets of the mount namespace, what is created is limited; there is nothing but copies to change or delete.
        assert wanted <= set(guard.operations) or rule.namespace == "mount"


def test_every_cluster_wide_right_to_write_in_a_worker_has_a_guard() -> None:
    rules = [rule for rule in worker_rules("mount", policy_label=True) if rule.writes and not rule.namespace]
    assert rules and all(rule.bound.startswith("guard ") for rule in rules)


def test_every_guard_is_about_one_user_and_refuses() -> None:
    bodies = worker_guards("mount", policy_label=True)
    policies = [body["spec"] for body in bodies if body["kind"] == "ValidatingAdmissionPolicy"]
    assert len(policies) == len(guards("mount"))
    for spec in policies:
        (condition,) = spec["matchConditions"]
        assert condition["expression"] == "request.userInfo.username == 'system:serviceaccount:mount:kubeocean-syncer'"
        assert spec["failurePolicy"] == "Fail"
    bindings = [body["spec"] for body in bodies if body["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert all(spec["validationActions"] == ["Deny"] for spec in bindings)


def test_policies_of_the_hub_chart_that_bound_a_right_exist() -> None:
    chart = (ROOT / "deploy" / "charts" / "kubeocean" / "templates" / "admissionpolicies.yaml").read_text()
    for rule in every_rule():
        for name in re.findall(r"^policy (\w+)", rule.bound):
            assert f"  name: kubeocean-{name}\n" in chart
            assert all(resource.partition("/")[0] in chart for resource in rule.resources)
