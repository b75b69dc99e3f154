"""Tests of kubeocean.networkpolicies.report."""

from __future__ import annotations

from typing import Any

from kubeocean.binding.conditions import Lists
from kubeocean.model.keys import PER_NAMESPACE
from kubeocean.networkpolicies.report import mirroring
from kubeocean.worker.cluster import Mount
from tests.unit.kubeocean.builders import OWNER


def state(**given: Any) -> tuple[bool, str, str] | None:
    parts: dict[str, Any] = {"namespaces": ["shop"], "lists": Lists(), "lacking": [], "is_lacking_everywhere": False, "problems": []}
    found = mirroring(**{**parts, **given}, mount=Mount(OWNER, "mnt", PER_NAMESPACE))
    return (found.holds, found.reason, found.message) if found is not None else None


def test_without_policies_there_is_nothing_to_report() -> None:
    assert state(namespaces=[]) is None


def test_message_names_the_namespaces_and_what_peers_are() -> None:
    text = "NetworkPolicies of ml, shop have mirrors in the namespaces mnt-* of the worker"
    found = state(namespaces=["shop", "ml"])
    assert found is not None and found[:2] == (True, "Mirrored") and found[2].startswith(text) and "spec.ipBlock" in found[2]


def test_each_problem_is_named_once_up_to_a_limit() -> None:
    found = state(problems=[f"problem {number}" for number in range(7)] * 2)
    assert found is not None and found[:2] == (False, "Incomplete")
    assert found[2].startswith("problem 0; ") and " and 2 more; NetworkPolicies of shop" in found[2] and found[2].count("problem 0") == 1


def test_missing_rights_of_a_cluster_are_named_with_the_remedy() -> None:
    for given in (
        {"lists": Lists("list networkpolicies: forbidden")},
        {"lacking": ["list networkpolicies: forbidden"], "is_lacking_everywhere": True},
    ):
        found = state(**given)
        assert found is not None and found[:2] == (False, "RightsMissing")
        assert "list networkpolicies: forbidden" in found[2] and "kubeocean bind" in found[2]


def test_rights_that_one_namespace_lacks_are_a_problem_beside_mirrors() -> None:
    """Unbinding then waits for them, since mirrors exist."""
    found = state(lacking=["list networkpolicies in mnt-ml: forbidden"])
    assert found is not None and found[:2] == (False, "Incomplete") and "mnt-ml" in found[2]


def test_mirrors_of_an_earlier_time_stay_while_their_lists_are_not_answered() -> None:
    stays = "changes of NetworkPolicies of the hub do not apply in the worker, and existing mirrors stay as they are: "
    for lists, reason in ((Lists("forbidden", has_mirrors=True), "RightsMissing"), (Lists("", "500", has_mirrors=True), "NotListed")):
        found = state(lists=lists)
        assert found is not None and found[:2] == (False, reason) and found[2].startswith(stays)
