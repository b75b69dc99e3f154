"""Tests of fleet.api.keys."""

import pytest

from fleet.api import keys


@pytest.mark.parametrize(
    "name", ["default", "kube-system", "kube-x", "fleet-system", "fleet-member-w1", "open-cluster-management-hub", "kubeocean-system"]
)
def test_f_51_names_of_namespaces_with_another_purpose_are_no_clusters(name: str) -> None:
    assert "reserved" in keys.name_problem(name) and "choose another name" in keys.name_problem(name)


@pytest.mark.parametrize("name", ["w1", "defaults", "my-kube-system", "fleet", "a" * 63])
def test_f_51_other_names_are_free(name: str) -> None:
    assert keys.name_problem(name) == ""


@pytest.mark.parametrize("name", ["", "W1", "a.b", "-a", "a" * 64])
def test_f_63_a_name_that_no_namespace_can_have_is_no_cluster(name: str) -> None:
    assert "DNS label" in keys.name_problem(name)


def test_f_103_user_name_and_group_of_a_certificate_name_the_cluster() -> None:
    assert keys.user_name("w1", "a7") == "system:open-cluster-management:w1:a7"
    assert keys.cluster_group("w1") == "system:open-cluster-management:w1"


def test_f_104_identities_without_a_certificate_have_a_group_too() -> None:
    assert keys.cluster_groups("w1") == ("system:open-cluster-management:w1", "open-cluster-management:w1")


@pytest.mark.parametrize(
    ("user", "agent"),
    [
        ("system:open-cluster-management:w1:a7", "a7"),
        ("system:open-cluster-management:w2:a7", ""),
        ("system:open-cluster-management:w1", ""),
        ("system:open-cluster-management:w1:a7:b", ""),
        ("system:serviceaccount:w1:a7", ""),
        ("", ""),
    ],
)
def test_f_109_an_agent_is_named_only_by_the_user_names_of_its_cluster(user: str, agent: str) -> None:
    assert keys.agent_of(user, "w1") == agent


def test_f_122_names_of_a_members_objects_follow_from_its_own() -> None:
    assert (keys.member_namespace("w1"), keys.member_role("w1"), keys.member_binding("w1")) == (
        "fleet-member-w1",
        "fleet-role-w1",
        "fleet-rolebinding-w1",
    )
