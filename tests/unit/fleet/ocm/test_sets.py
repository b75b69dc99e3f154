"""Tests of fleet.ocm.sets: which clusters a set selects."""

from typing import Any

import pytest

from fleet.api.clusters import ManagedClusterSet
from fleet.clusters.registry import Registry
from fleet.ocm.sets import STANDARD, ClusterSets, binding_condition, managed_namespaces, selects, set_condition_of
from tests.support.memory_api import MergingApi
from tests.unit.fleet.builders import SINCE, hub_of, unknown

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


SETS = "/apis/cluster.open-cluster-management.io/v1beta2/managedclustersets"


@pytest.mark.parametrize(("annotations", "corrected"), [({}, True), ({"cluster.open-cluster-management.io/autoupdate": "false"}, False)])
async def test_f_151_a_standard_set_is_corrected_unless_its_annotation_forbids_it(annotations: Any, corrected: bool) -> None:
    api = MergingApi()
    hub = hub_of(api.client())
    sets = ClusterSets(hub, Registry(hub, with_members=False))
    changed = {"selectorType": "LabelSelector", "labelSelector": {"matchLabels": {"a": "b"}}}
    metadata = {"name": "global", "uid": "u1", "annotations": annotations}
    api.put(f"{SETS}/global", {"metadata": metadata, "spec": {"clusterSelector": changed}})
    sets.informers[0].adopt(unknown(api.objects[f"{SETS}/global"]))
    await sets.reconcile("global")
    found = api.objects[f"{SETS}/global"]["spec"]["clusterSelector"]["labelSelector"]
    assert found == ({} if corrected else {"matchLabels": {"a": "b"}})


def test_f_151_a_cluster_that_is_being_deleted_belongs_to_no_set() -> None:
    hub = hub_of(MergingApi().client())
    registry = Registry(hub, with_members=False)
    sets = ClusterSets(hub, registry)
    sets.informers[0].adopt(unknown({"metadata": {"name": "blue", "uid": "s1", "resourceVersion": "1"}, "spec": {}}))
    for name, deleted in (("stays", {}), ("leaves", {"deletionTimestamp": SINCE})):
        metadata = {"name": name, "uid": name, "resourceVersion": "1", "labels": {LABEL: "blue"}, **deleted}
        registry.managed.informer.adopt(unknown({"metadata": metadata, "spec": {}}))
    assert sets.members("blue") == ["stays"]
