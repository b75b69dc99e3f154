"""Tests of kubeocean.model.kinds."""

from __future__ import annotations

from typing import Any

import pytest

from kubeocean.model.kinds import ExtraKind, problems_of
from kubeocean.settings import KubeoceanSettings, ManagerSettings
from vkubelet.errors import SettingsError
from vkubelet.settings import convert

LOGS = {"api_version": "cls.cloud.tencent.com/v1", "resource": "logconfigs", "namespaced": False}
RULE = {"when": {"spec.a": "*"}, "remove": ["spec.b"]}


def read(*kinds: dict[str, Any]) -> KubeoceanSettings:
    return convert({"extra_kinds": list(kinds)}, KubeoceanSettings, path="provider")


def refused(*kinds: dict[str, Any]) -> str:
    with pytest.raises(SettingsError) as error:
        read(*kinds)
    return str(error.value)


def test_a_kind_is_named_by_its_group_version_and_plural() -> None:
    (kind,) = read({**LOGS, "rewrites": [RULE]}).extra_kinds
    assert (kind.group, kind.version, kind.title, kind.path) == (
        "cls.cloud.tencent.com",
        "v1",
        "logconfigs.cls.cloud.tencent.com",
        "/apis/cls.cloud.tencent.com/v1",
    )
    resource = kind.of_kind("LogConfig")
    assert (resource.path("", "x"), resource.kind, resource.namespaced) == (
        "/apis/cls.cloud.tencent.com/v1/logconfigs/x",
        "LogConfig",
        False,
    )


@pytest.mark.parametrize("namespaced", [True, False])
def test_a_recorded_kind_is_found_again(namespaced: bool) -> None:
    kind = ExtraKind(api_version="a.example.com/v1beta1", resource="things", namespaced=namespaced)
    assert ExtraKind.noted(kind.note) == kind


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"api_version": ""}, "provider.extra_kinds[0].api_version: must be a group and a version such as cls.cloud.tencent.com/v1"),
        ({"api_version": "cls.cloud.tencent.com"}, "provider.extra_kinds[0].api_version: must be a group and a version"),
        ({"resource": "LogConfig"}, "provider.extra_kinds[0].resource: must be the plural name of the kind in lower case"),
        ({"resource": "logconfigs/status"}, "provider.extra_kinds[0].resource: must be the plural name"),
        ({"api_version": "v1", "resource": "pods"}, "pods of the core group cannot be mirrored: Kubeocean mirrors or copies"),
        ({"api_version": "apps/v1", "resource": "deployments"}, "its controllers would run pods in the worker"),
        ({"api_version": "rbac.authorization.k8s.io/v1", "resource": "clusterroles"}, "change what others may do"),
        ({"api_version": "networking.k8s.io/v1", "resource": "networkpolicies"}, "could isolate pods of others"),
        ({"rewrite": []}, "provider.extra_kinds[0].rewrite: is not a setting; remove it or use one of: api_version"),
        ({"rewrites": [{"set": {}}]}, "provider.extra_kinds[0].rewrites[0].set: is not a setting"),
        ({"rewrites": [{}]}, "provider.extra_kinds[0].rewrites[0]: changes nothing"),
        ({"rewrites": [RULE, {"remove": ["spec..b"]}]}, "provider.extra_kinds[0].rewrites[1].remove: spec..b is not a path"),
        ({"rewrites": [{"remove": ["metadata.name"]}]}, "metadata.name cannot be changed; name a field of the content"),
        ({"rewrites": [{"values": {"kind": "Other"}}]}, "rewrites[0].values: kind cannot be changed"),
        ({"rewrites": [{"values": {"spec.a": "${item.b}"}}]}, "rewrites[0].values.spec.a: item.b is a value of an item; name the list"),
        ({"rewrites": [{"labels": {"spec.a": {"k": "${}"}}}]}, "rewrites[0].labels.spec.a.k: an empty text is not a path"),
        ({"rewrites": [{"namespaces": {"spec.a": "${spec.b"}}]}, "has an incomplete reference; write ${PATH} or ${PATH:-TEXT}"),
        ({"rewrites": [{"when": {"item.a": "*"}, "remove": ["spec.a"]}]}, "rewrites[0].when: item.a is a value of an item"),
        ({"rewrites": [{"refuse": "no", "remove": ["spec.a"]}]}, "rewrites[0].refuse: refuses the objects that the same case changes"),
    ],
)
def test_a_problem_names_the_field_and_the_remedy(change: dict[str, Any], text: str) -> None:
    assert text in refused({**LOGS, **change})


def test_a_kind_is_listed_once_whatever_its_version() -> None:
    other = {**LOGS, "api_version": "cls.cloud.tencent.com/v2"}
    assert refused(LOGS, other) == (
        "provider.extra_kinds[1].resource: logconfigs.cls.cloud.tencent.com is the kind of [0] too; add its rewrites there"
    )
    assert not list(problems_of(read(LOGS, {**LOGS, "resource": "others"}).extra_kinds))


def test_the_manager_refuses_what_its_processes_would() -> None:
    with pytest.raises(SettingsError) as error:
        ManagerSettings(image="i", syncer_settings={"provider": {"extra_kinds": [{**LOGS, "resource": ""}]}})
    assert str(error.value).startswith("manager.syncer_settings.provider.extra_kinds[0].resource: must be the plural name")
    assert [kind.resource for kind in ManagerSettings(image="i", syncer_settings={"provider": {"extra_kinds": [LOGS]}}).extra_kinds] == [
        "logconfigs"
    ]
