"""Tests of fleet.ocm.sets: which clusters a set selects."""

from typing import Any

import pytest

from fleet.api.clusters import ManagedClusterSet
from fleet.ocm.sets import STANDARD, binding_condition, managed_namespaces, selects, set_condition_of
from tests.unit.fleet.builders import unknown

LABEL = "cluster.open-cluster-management.io/clusterset"


def chosen(name: str, **selector: Any) -> ManagedClusterSet:
    spec = {"clusterSelector": selector} if selector else {}
    return ManagedClusterSet.parse(unknown({"metadata": {"name": name}, "spec": spec}))


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        ({}, {LABEL: "blue"}, True),
        ({}, {LABEL: "red"}, False),
        ({}, {}, False),
        ({"selectorType": "LabelSelector", "labelSelector": {}}, {}, True),
        ({"selectorType": "LabelSelector", "labelSelector": {"matchLabels": {"env": "prod"}}}, {"env": "prod"}, True),
        ({"selectorType": "LabelSelector", "labelSelector": {"matchLabels": {"env": "prod"}}}, {LABEL: "blue"}, False),
        ({"selectorType": "Other"}, {LABEL: "blue"}, False),
    ],
)
def test_f_151_clusters_belong_to_a_set_by_its_label_or_its_selector(selector: Any, labels: Any, expected: bool) -> None:
    assert selects(chosen("blue", **selector), labels) is expected


def test_f_151_the_global_set_selects_every_cluster() -> None:
    assert selects(chosen("global", **STANDARD["global"]["clusterSelector"]), {"any": "thing"})


def test_f_153_a_cluster_gets_the_namespaces_of_its_sets_and_keeps_their_conditions() -> None:
    body = {"metadata": {"name": "blue"}, "spec": {"managedNamespaces": [{"name": "a"}, {"name": "b"}]}}
    known = {"clusterSet": "blue", "name": "b", "conditions": [{"type": "NamespaceAvailable"}]}
    listed = managed_namespaces([ManagedClusterSet.parse(unknown(body))], [known, {"clusterSet": "red", "name": "a"}])
    assert listed == [{"clusterSet": "blue", "name": "a"}, known]


def test_f_151_f_152_conditions_have_the_reasons_of_the_api() -> None:
    assert [set_condition_of("a", count)["reason"] for count in (0, 2)] == ["NoClusterMatched", "ClustersSelected"]
    assert [set_condition_of("a", count)["status"] for count in (0, 2)] == ["True", "False"]
    assert [binding_condition("a", exists=each)["reason"] for each in (True, False)] == ["ClusterSetBound", "ClusterSetNotFound"]
