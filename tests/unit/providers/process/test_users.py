"""Tests of as whom a container's process runs."""

from __future__ import annotations

from typing import Any

import pytest

from vkubelet import Unavailable
from vkubelet_providers.process.users import NOBODY, Identity, Own, Users, identity, not_kept

ROOT, USER = Own(0, 0), Own(1000, 1000, [1000, 27])


def who(pod: dict[str, Any], container: dict[str, Any], *, own: Own, default: int | None = None, allow_root: bool = False) -> Identity:
    return identity({"securityContext": pod}, {"securityContext": container}, own=own, default=default, allow_root=allow_root)


@pytest.mark.parametrize(
    ("pod", "container", "expected"),
    [
        ({}, {}, Identity(NOBODY, NOBODY, [NOBODY])),
        ({"runAsUser": 5}, {}, Identity(5, 5, [5])),
        ({"runAsUser": 5, "runAsGroup": 6}, {"runAsUser": 7}, Identity(7, 6, [6])),
        ({"runAsUser": 5, "fsGroup": 9, "supplementalGroups": [8]}, {}, Identity(5, 5, [5, 8, 9])),
        ({"runAsNonRoot": True}, {}, Identity(NOBODY, NOBODY, [NOBODY])),
    ],
)
def test_root_becomes_whom_the_pod_names(pod: dict[str, Any], container: dict[str, Any], expected: Identity) -> None:
    assert who(pod, container, own=ROOT) == expected


def test_without_a_name_it_is_the_settings_user_or_root_where_that_is_allowed() -> None:
    assert who({}, {}, own=ROOT, default=33).uid == 33
    assert who({}, {}, own=ROOT, allow_root=True).uid == 0


@pytest.mark.parametrize(
    ("own", "pod", "field"),
    [
        (ROOT, {"runAsUser": 0}, "runAsUser"),
        (USER, {"runAsUser": 1001}, "runAsUser"),
        (USER, {"runAsGroup": 0}, "runAsGroup"),
        (USER, {"fsGroup": 5}, "fsGroup"),
    ],
)
def test_what_can_not_be_is_refused_by_its_field(own: Own, pod: dict[str, Any], field: str) -> None:
    with pytest.raises(Unavailable, match=field) as refused:
        who(pod, {}, own=own)
    assert refused.value.waiting == "CreateContainerConfigError"


def test_root_that_must_not_be_is_refused() -> None:
    with pytest.raises(Unavailable, match="runAsNonRoot"):
        who({"runAsNonRoot": True}, {}, own=ROOT, allow_root=True)


def test_others_stay_whom_they_are() -> None:
    assert who({"runAsUser": 1000, "fsGroup": 27}, {}, own=USER) == Identity()


def test_isolation_that_is_not_there_is_named() -> None:
    container = {"securityContext": {"readOnlyRootFilesystem": True, "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}}}
    pod = {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}, "shareProcessNamespace": True}
    assert list(not_kept(pod, container)) == [
        "securityContext.readOnlyRootFilesystem",
        "securityContext.capabilities",
        "securityContext.seccompProfile",
        "shareProcessNamespace",
    ]
    assert not list(not_kept({}, {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}))


def test_a_user_of_the_host_has_its_group() -> None:
    groups = {5: 60, 6: 0}.get
    specs = [{"runAsUser": uid} for uid in (5, 6, 7)]
    made = [identity({"securityContext": spec}, {}, own=ROOT, default=None, allow_root=False, users=Users(groups)) for spec in specs]
    assert [each.gid for each in made] == [60, 6, 7]
    assert identity({"securityContext": specs[1]}, {}, own=ROOT, default=None, allow_root=True, users=Users(groups)).gid == 0


@pytest.mark.parametrize("spec", [{"runAsGroup": 0}, {"fsGroup": 0}, {"supplementalGroups": [0]}])
def test_the_group_of_root_is_for_root_alone(spec: dict[str, Any]) -> None:
    with pytest.raises(Unavailable, match="fsGroup"):
        who(spec, {}, own=ROOT)
    assert 0 in (who({"runAsUser": 5, **spec}, {}, own=ROOT, allow_root=True).groups or ())


def test_what_root_alone_could_have_or_lose_is_named() -> None:
    drop = {"securityContext": {"capabilities": {"drop": ["ALL"]}}}
    assert list(not_kept({}, drop, uid=0)) == ["securityContext.capabilities"] and not list(not_kept({}, drop, uid=5))
    privileged = {"securityContext": {"privileged": True}}
    assert list(not_kept({}, privileged, uid=5)) == ["securityContext.privileged"] and not list(not_kept({}, privileged, uid=0))
    mounts = {
        "volumeMounts": [{"name": "a", "mountPropagation": "Bidirectional"}, {"name": "b", "recursiveReadOnly": "Enabled"}, {"name": "c"}]
    }
    pod = {"hostUsers": False, "securityContext": {"sysctls": [{"name": "a", "value": "b"}]}}
    assert list(not_kept(pod, mounts)) == [
        "securityContext.sysctls",
        "hostUsers",
        "volumeMounts[a].mountPropagation",
        "volumeMounts[b].recursiveReadOnly",
    ]


def test_a_right_to_gain_privileges_that_the_node_does_not_give_is_named() -> None:
    asks = {"securityContext": {"allowPrivilegeEscalation": True}}
    assert list(not_kept({}, asks, uid=5)) == ["securityContext.allowPrivilegeEscalation"]
    assert not list(not_kept({}, asks, uid=5, privilege_escalation=True)) and not list(not_kept({}, {}, uid=5))


@pytest.mark.parametrize("spec", [{"runAsGroup": 42}, {"fsGroup": 42}, {"supplementalGroups": [42]}, {"runAsUser": 42}])
def test_a_group_of_the_host_is_for_its_members(spec: dict[str, Any]) -> None:
    """Such as the group of disks, or that which reads the file of passwords; the last case takes it by the number of its user."""
    asked = {"securityContext": {"runAsUser": 5, **spec}}
    others = Users(foreign=lambda uid, groups: {42} & set(groups))
    with pytest.raises(Unavailable, match=r"the groups \[42\] of this host"):
        identity(asked, {}, own=ROOT, default=None, allow_root=False, users=others)
    assert 42 in (identity(asked, {}, own=ROOT, default=None, allow_root=True, users=others).groups or ())
    assert 42 in (identity(asked, {}, own=ROOT, default=None, allow_root=False).groups or ())
