"""What `bind` is about to do."""

from __future__ import annotations

import pytest
import yaml

from kubeocean.commands.plan import HIDDEN, Plan, Wish
from kubeocean.model.crds import ResourceLeasingPolicy
from tests.unit.kubeocean.builders import unknown
from vkubelet.api.objects import Key
from vkubelet.errors import SettingsError

EXISTING = unknown(
    {
        "metadata": {"name": "demo"},
        "spec": {"clusterID": "d1", "mountNamespace": "mnt", "secretRef": {"name": "mine", "namespace": "elsewhere"}},
    }
)


def test_defaults_follow_from_the_name() -> None:
    plan = Plan.of(Wish(name="demo"))
    assert plan.cluster_id == "demo" and plan.mount_namespace == "kubeocean-worker"
    assert plan.secret == Key("kubeocean-system", "demo-kubeconfig")


def test_a_binding_that_exists_keeps_what_it_says() -> None:
    plan = Plan.of(Wish(name="demo", mount_namespace="mnt"), EXISTING)
    assert (plan.cluster_id, plan.mount_namespace, plan.secret) == ("d1", "mnt", Key("elsewhere", "mine"))
    assert plan.hub_namespace["metadata"]["name"] == "elsewhere"


@pytest.mark.parametrize(
    ("wish", "flag"),
    [(Wish(name="demo", cluster_id="d2"), "--cluster-id"), (Wish(name="demo", mount_namespace="other"), "--mount-namespace")],
)
def test_what_can_not_be_changed_is_refused_by_its_flag(wish: Wish, flag: str) -> None:
    with pytest.raises(SettingsError, match=f"{flag}: is .* can not be changed"):
        Plan.of(wish, EXISTING)


@pytest.mark.parametrize(
    ("wish", "flag"), [(Wish(name="a" * 25), "--cluster-id"), (Wish(name="x", mount_namespace="A"), "--mount-namespace")]
)
def test_what_a_binding_may_not_say_is_refused_before_anything_is_made(wish: Wish, flag: str) -> None:
    plan = Plan.of(wish)
    with pytest.raises(SettingsError, match=flag):
        plan.check()


def test_what_is_shown_is_what_is_applied_with_a_reason_at_every_right() -> None:
    plan = Plan.of(Wish(name="demo", metrics=True, policy_label=True))
    assert list(yaml.safe_load_all(plan.worker_yaml())) == [*plan.identity.objects, *plan.identity.guards]
    assert "PriorityClass kubeocean-default (-10000)" in plan.worker_yaml(), "what is made later, and not taken back"
    rules = plan.worker_yaml().splitlines()
    for number, line in enumerate(rules):
        if line.startswith("  - apiGroups"):
            assert rules[number - 1].strip().startswith("# "), line
    assert [body["kind"] for body in yaml.safe_load_all(plan.hub_yaml())] == ["Namespace", "Secret", "ClusterBinding"]
    assert HIDDEN in plan.hub_yaml()


def test_rights_at_home_are_told_one_by_one() -> None:
    told = Plan.of(Wish(name="demo")).syncer_rights()
    assert "get, list, watch, patch: configmaps, secrets. What pods refer to." in told
    assert "leases in kube-node-lease" in told


def test_the_proposed_policy_is_sound_and_for_this_binding() -> None:
    policy = ResourceLeasingPolicy.parse(unknown(yaml.safe_load(Plan.of(Wish(name="demo")).sample_policy())))
    assert policy.cluster == "demo" and policy.validate() == [] and [limit.percent for limit in policy.limits] == [50, 50]
