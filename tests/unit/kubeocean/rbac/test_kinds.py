"""Tests of kubeocean.rbac.kinds: what the setting `provider.extra_kinds` grants in both clusters."""

from __future__ import annotations

from kubeocean.manager.workloads import desired_objects
from kubeocean.model.kinds import ExtraKind
from kubeocean.rbac import kinds
from kubeocean.rbac.permissions import hub_objects, hub_rules, manager_rules
from kubeocean.rbac.tenants import wide_objects
from kubeocean.settings import ManagerSettings
from tests.unit.kubeocean.builders import binding
from vkubelet.api.objects import Json
from vkubelet.api.rbac import checks_of

LOGS = ExtraKind(api_version="cls.cloud.tencent.com/v1", resource="logconfigs", namespaced=False)
NOTES = ExtraKind(api_version="extra.example.com/v1", resource="notes")


def rules(objects: list[Json]) -> dict[tuple[str, str], list[Json]]:
    return {(body["kind"], body["metadata"].get("namespace", "")): body["rules"] for body in objects if "rules" in body}


def rule(kind: ExtraKind, *verbs: str) -> Json:
    return {"apiGroups": [kind.group], "resources": [kind.resource], "verbs": list(verbs)}


def test_mirrors_are_written_in_the_mount_namespace_or_cluster_wide() -> None:
    every = ("get", "list", "watch", "create", "update", "delete")
    made = rules(kinds.worker_objects("mnt", (LOGS, NOTES)))
    assert made == {("ClusterRole", ""): [rule(LOGS, *every)], ("Role", "mnt"): [rule(NOTES, *every)]}
    assert kinds.worker_objects("mnt", ()) == [] and kinds.worker_guards("mnt", (NOTES,)) == []
    assert all(not each.essential for each in kinds.worker_rules("mnt", (LOGS, NOTES))), "nothing else waits for them"


def test_the_guard_names_every_kind_without_namespaces() -> None:
    other = ExtraKind(api_version="b.example.com/v2", resource="bs", namespaced=False)
    policy, bound = kinds.worker_guards("mnt", (LOGS, NOTES, other))
    matched = policy["spec"]["matchConstraints"]["resourceRules"]
    assert [(each["apiGroups"], each["apiVersions"], each["resources"]) for each in matched] == [
        (["cls.cloud.tencent.com"], ["v1"], ["logconfigs"]),
        (["b.example.com"], ["v2"], ["bs"]),
    ]
    assert bound["spec"]["policyName"] == policy["metadata"]["name"] == "kubeocean-syncer-mnt-kinds"


def test_the_hub_grants_reading_and_nothing_else() -> None:
    roles = {body["metadata"]["name"]: body["rules"] for body in hub_objects("sa", kinds=(LOGS,)) if body["kind"] == "ClusterRole"}
    assert roles["sa-kinds"] == [rule(LOGS, "get", "list", "watch")] and rule(LOGS, "get", "list", "watch") not in roles["sa"]
    added = set(checks_of(hub_rules(kinds=(LOGS,)))) - set(checks_of(hub_rules()))
    assert {each.verb for each in added} == {"get", "list", "watch"} and added <= set(checks_of(manager_rules(kinds=(LOGS,))))


def test_the_role_of_tenants_has_the_namespaced_kinds_alone() -> None:
    role = next(body for body in wide_objects("mnt", kinds=(LOGS, NOTES)) if body["metadata"]["name"].endswith("-tenant"))
    assert [each["resources"] for each in role["rules"] if each["apiGroups"] == [NOTES.group]] == [["notes"]]
    assert [each for each in role["rules"] if each["apiGroups"] == [LOGS.group]] == []


def test_the_manager_grants_what_the_settings_of_its_processes_list() -> None:
    entry = {"api_version": LOGS.api_version, "resource": LOGS.resource, "namespaced": False}
    chosen = ManagerSettings(image="i", syncer_settings={"provider": {"extra_kinds": [entry]}})
    optional = {each.body["kind"]: each.body for each in desired_objects(binding(), chosen) if each.optional}
    assert optional.keys() == {"ClusterRole", "ClusterRoleBinding"}, "a manager without the right runs the process nevertheless"
    assert optional["ClusterRole"]["rules"] == [rule(LOGS, "get", "list", "watch")]
