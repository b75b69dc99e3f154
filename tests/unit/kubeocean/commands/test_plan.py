"""What `bind` is about to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kubeocean.commands.plan import HIDDEN, BindFlags, Plan
from kubeocean.model.crds import ResourceLeasingPolicy
from kubeocean.settings import read_extra_kinds
from tests.support.bound import SAMPLES
from tests.unit.kubeocean.builders import unknown
from vkubelet.api.codec import decode_yaml, decode_yaml_documents
from vkubelet.api.objects import Json, Key
from vkubelet.errors import SettingsError

EXISTING = unknown(
    {
        "metadata": {"name": "demo"},
        "spec": {"clusterID": "d1", "mountNamespace": "mnt", "secretRef": {"name": "mine", "namespace": "elsewhere"}},
    }
)


def test_defaults_follow_from_the_name() -> None:
    plan = Plan.of(BindFlags(name="demo"))
    assert plan.cluster_id == "demo" and plan.mount_namespace == "kubeocean-worker"
    assert plan.secret == Key("kubeocean-system", "demo-kubeconfig")


def test_a_binding_that_exists_keeps_what_it_says() -> None:
    plan = Plan.of(BindFlags(name="demo", mount_namespace="mnt"), EXISTING)
    assert (plan.cluster_id, plan.mount_namespace, plan.secret) == ("d1", "mnt", Key("elsewhere", "mine"))
    assert plan.hub_namespace["metadata"]["name"] == "elsewhere"


@pytest.mark.parametrize(
    ("flags", "flag"),
    [(BindFlags(name="demo", cluster_id="d2"), "--cluster-id"), (BindFlags(name="demo", mount_namespace="other"), "--mount-namespace")],
)
def test_what_can_not_be_changed_is_refused_by_its_flag(flags: BindFlags, flag: str) -> None:
    with pytest.raises(SettingsError, match=f"{flag}: is .* cannot be changed"):
        Plan.of(flags, EXISTING)


@pytest.mark.parametrize(
    ("flags", "flag"),
    [(BindFlags(name="a" * 25), "--cluster-id"), (BindFlags(name="x", mount_namespace="A"), "--mount-namespace")]
    + [(BindFlags(name=name, cluster_id="fine"), "NAME") for name in ("Frankfurt", "a_b", "-a", "a" * 243)],
)
def test_what_a_binding_may_not_say_is_refused_before_anything_is_made(flags: BindFlags, flag: str) -> None:
    plan = Plan.of(flags)
    with pytest.raises(SettingsError, match=flag):
        plan.check()


def test_what_is_shown_is_what_is_applied_with_a_reason_at_every_right() -> None:
    plan = Plan.of(BindFlags(name="demo", metrics=True, policy_label=True))
    assert list(decode_yaml_documents(plan.worker_yaml())) == [*plan.identity.objects, *plan.identity.guards]
    assert "PriorityClass kubeocean-default (-10000)" in plan.worker_yaml(), "what is made later, and not taken back"
    rules = plan.worker_yaml().splitlines()
    for number, line in enumerate(rules):
        if line.startswith("  - apiGroups"):
            assert rules[number - 1].strip().startswith("# "), line
    assert [body["kind"] for body in decode_yaml_documents(plan.hub_yaml())] == ["Namespace", "Secret", "ClusterBinding"]
    assert HIDDEN in plan.hub_yaml()


def test_admission_policies_are_shown_by_what_they_require_and_all_else_in_full() -> None:
    plan = Plan.of(BindFlags(name="demo", create_namespaces=True, kinds=read_extra_kinds(SAMPLES / "logconfigs.yaml")))
    yaml_text, _, limits = plan.worker_shown().partition("\nAdmission policies ")
    policies = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    everything = [*plan.identity.objects, *plan.identity.guards]
    assert list(decode_yaml_documents(yaml_text)) == [body for body in everything if body["kind"] not in policies]
    for body in everything:
        if body["kind"] == "ValidatingAdmissionPolicy":
            assert f"  {body['metadata']['name']}: " in limits and all(each["message"] in limits for each in body["spec"]["validations"])
    assert "expression" not in limits and len(plan.worker_shown().splitlines()) < len(plan.worker_yaml().splitlines()) / 2
    assert "`kubeocean bind demo --print worker`" in limits


def test_rights_at_home_are_told_one_by_one() -> None:
    told = Plan.of(BindFlags(name="demo")).syncer_rights()
    assert "get, list, watch, patch: configmaps, secrets. Reads the objects that pods refer to" in told
    assert "leases in kube-node-lease" in told


def test_the_proposed_policy_is_sound_and_for_this_binding() -> None:
    policy = ResourceLeasingPolicy.parse(unknown(decode_yaml(Plan.of(BindFlags(name="demo")).sample_policy())))
    assert policy.cluster == "demo" and policy.validate() == [] and [limit.percent for limit in policy.limits] == [50, 50]


def test_tenants_are_prepared_and_select_the_mapping() -> None:
    plan = Plan.of(BindFlags(name="demo", tenants=("red", "blue")))
    assert plan.binding["spec"]["namespaceMapping"] == "PerNamespace"
    made = [body for body in decode_yaml_documents(plan.worker_yaml()) if body["kind"] == "Namespace"]
    assert [body["metadata"]["name"] for body in made] == ["kubeocean-worker", "kubeocean-worker-red", "kubeocean-worker-blue"]
    assert [body["metadata"]["labels"].get("kubeocean.io/tenant-of") for body in made] == [None, "kubeocean-worker", "kubeocean-worker"]
    assert "kubeocean-syncer-networkpolicies" in plan.worker_yaml(), "limits the right to mirror NetworkPolicies"
    assert "tenant-roles" not in plan.worker_yaml() and "namespaceMapping" not in Plan.of(BindFlags(name="demo")).hub_yaml()


def test_namespaces_are_created_only_together_with_what_limits_that() -> None:
    text = Plan.of(BindFlags(name="demo", create_namespaces=True)).worker_yaml()
    names = {body["metadata"]["name"] for body in decode_yaml_documents(text) if body["kind"] == "ValidatingAdmissionPolicyBinding"}
    assert {f"kubeocean-syncer-{each}" for each in ("tenants", "tenant-roles", "networkpolicies")} <= names


def test_a_mount_namespace_that_is_too_long_to_be_a_prefix_is_refused() -> None:
    with pytest.raises(SettingsError, match="--mount-namespace.*29"):
        Plan.of(BindFlags(name="demo", mount_namespace="m" * 30, tenants=("red",))).check()
    Plan.of(BindFlags(name="demo", mount_namespace="m" * 30)).check()


def test_rights_on_extra_kinds_are_those_of_the_settings_file() -> None:
    plan = Plan.of(BindFlags(name="demo", kinds=read_extra_kinds(SAMPLES / "logconfigs.yaml")))
    bodies = list(decode_yaml_documents(plan.worker_yaml()))
    names = {(body["kind"], body["metadata"]["name"]) for body in bodies}
    assert {(kind, "kubeocean-syncer-kinds") for kind in ("ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy")} <= names
    assert "get, list, watch: logconfigs. Mirrors logconfigs.cls.cloud.tencent.com to the worker" in plan.syncer_rights()
    assert "logconfigs" not in Plan.of(BindFlags(name="demo")).worker_yaml()


@pytest.mark.parametrize(
    "place", [("provider", "extra_kinds"), ("manager", "syncer_settings", "provider", "extra_kinds"), ("extraKinds",)], ids=".".join
)
def test_extra_kinds_are_read_from_settings_and_from_values_of_charts(place: tuple[str, ...], tmp_path: Path) -> None:
    content: Json = {place[-1]: [{"api_version": "a.example.com/v1", "resource": "things"}]}
    for part in reversed(place[:-1]):
        content = {part: content}
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(content))
    (kind,) = read_extra_kinds(tmp_path / "file.yaml")
    assert kind.title == "things.a.example.com"
    (tmp_path / "file.yaml").write_text("provider: {}")
    with pytest.raises(SettingsError, match="has no provider.extra_kinds; name a file"):
        read_extra_kinds(tmp_path / "file.yaml")
