"""Tests of kubeocean.model.rewriting, with the shipped rewriting of LogConfigs as their example (kubeocean-behaviour.md, line 171)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.model.identity import Workload, marks
from kubeocean.model.kinds import Rewrite
from kubeocean.model.rewriting import Rewritten, covers, rewritten
from kubeocean.settings import read_extra_kinds
from tests.unit.kubeocean.builders import TARGET, pod

ROOT = Path(__file__).parents[4]
(LOGS,) = read_extra_kinds(ROOT / "deploy/samples/logconfigs.yaml")
ORIGIN = {"kubeocean.io/virtual-logconfig": "web"}
Body = dict[str, Any]


def logconfig(kind: str, **detail: Any) -> Body:
    part = {"container_stdout": "containerStdout", "container_file": "containerFile", "host_file": "hostFile"}[kind]
    spec = {"clsDetail": {"topicId": "t", "indexs": [{"indexName": "ns"}]}, "inputDetail": {"type": kind, part: detail}}
    return {"apiVersion": "cls.cloud.tencent.com/v1", "kind": "LogConfig", "metadata": {"name": "web"}, "spec": spec}


def rewrite(body: Body, rules: Any = LOGS.rewrites, *, single: bool = True) -> Rewritten:
    base = {"metadata": {"labels": {"team": "a"}}, "spec": body["spec"]}
    return rewritten(rules, body, base, worker_namespace=lambda name: "mnt" if single or not name else f"mnt-{name}")


def details(body: Body, **more: Any) -> list[Body]:
    found = rewrite(body, **more)
    assert not found.refused
    for each in found.bodies.values():
        assert each["spec"]["clsDetail"] == body["spec"]["clsDetail"], "passed through unread"
        assert each["metadata"]["labels"] == {"team": "a", **ORIGIN}
    kinds = [each["spec"]["inputDetail"] for each in found.bodies.values()]
    return [detail[name] for detail in kinds for name in detail if name != "type"]


def workload(name: str, namespace: str = "shop", kind: str = "deployment", **more: str) -> Body:
    return {"namespace": namespace, "kind": kind, "name": name, **more}


def labels(namespace: str, kind: str, name: str) -> Body:
    return {"kubeocean.io/virtual-namespace": namespace, "kubeocean.io/workload-type": kind, "kubeocean.io/workload-name": name}


def test_each_workload_gets_a_logconfig_with_a_value_that_its_pods_have() -> None:
    body = logconfig(
        "container_stdout",
        allContainers=False,
        container="main",
        includeLabels={"old": "1"},
        workloads=[workload("web"), workload("api", container="app"), workload("agent", "ops", "daemonset"), {"namespace": "shop"}],
    )
    found = {each["includeLabels"]["kubeocean.io/workload-name"]: each for each in details(body)}
    common = {"allContainers": False, "namespace": "mnt"}
    assert found == {
        "web": {**common, "container": "main", "includeLabels": labels("shop", "deployment", "web")},
        "api": {**common, "container": "app", "includeLabels": labels("shop", "deployment", "api")},
        "agent": {**common, "container": "main", "includeLabels": labels("ops", "daemonset", "agent")},
    }


def test_a_leased_pod_of_the_workload_has_the_labels_that_its_mirror_selects() -> None:
    (found,) = details(logconfig("container_stdout", workloads=[workload("web")]))
    leased = marks(pod(namespace="shop"), evolve(TARGET, workload=Workload("deployment", "web")))
    assert found["includeLabels"].items() <= leased.labels.items()


def test_the_order_of_workloads_changes_no_mirror() -> None:
    first, second = [workload("web"), workload("api")], [workload("api"), workload("web")]
    made = [rewrite(logconfig("container_stdout", workloads=each)).bodies for each in (first, second)]
    assert dict(sorted(made[0].items())) == dict(sorted(made[1].items())) and len(made[0]) == 2


def test_a_logconfig_of_incomplete_workloads_alone_is_refused() -> None:
    found = rewrite(logconfig("container_stdout", workloads=[{"namespace": "shop"}]))
    assert found == Rewritten({}, "no item of spec.inputDetail.containerStdout.workloads has item.namespace and item.kind and item.name")


@pytest.mark.parametrize("kind", ["container_stdout", "container_file"])
def test_a_namespace_becomes_that_of_the_worker_and_a_label(kind: str) -> None:
    (found,) = details(logconfig(kind, namespace="shop", includeLabels={"app": "web"}))
    assert found == {"namespace": "mnt", "includeLabels": {"app": "web", "kubeocean.io/virtual-namespace": "shop"}}
    (found,) = details(logconfig(kind, namespace="shop"), single=False)
    assert found == {"namespace": "mnt-shop", "includeLabels": {"kubeocean.io/virtual-namespace": "shop"}}


@pytest.mark.parametrize("kind", ["container_stdout", "container_file"])
def test_an_excluded_namespace_becomes_an_excluded_label(kind: str) -> None:
    (found,) = details(logconfig(kind, excludeNamespace="shop", excludeLabels={"old": "1"}))
    assert found == {"namespace": "mnt", "excludeLabels": {"kubeocean.io/virtual-namespace": "shop"}}


@pytest.mark.parametrize("kind", ["container_stdout", "container_file"])
def test_without_a_namespace_pods_of_the_owner_of_the_worker_are_not_selected(kind: str) -> None:
    (found,) = details(logconfig(kind, allContainers=True))
    assert found == {"allContainers": True, "namespace": "mnt"}


def test_a_workload_of_files_is_selected_by_its_labels() -> None:
    paths = [{"path": "/var/log", "file": "*.log"}]
    body = logconfig("container_file", namespace="shop", workload={"kind": "statefulset", "name": "db"}, filePaths=paths)
    (found,) = details(body)
    assert found == {"namespace": "mnt", "includeLabels": labels("shop", "statefulset", "db"), "filePaths": paths}
    body = logconfig("container_file", workload={"kind": "statefulset", "name": "db"}, includeLabels={"old": "1"})
    (found,) = details(body)
    assert found == {"namespace": "mnt", "includeLabels": labels("default", "statefulset", "db")}


@pytest.mark.parametrize("kind", ["container_stdout", "container_file"])
def test_labels_of_namespaces_are_refused_and_not_widened(kind: str) -> None:
    found = rewrite(logconfig(kind, nsLabelSelector="env=prod"))
    assert found.bodies == {} and "labels of namespaces of the hub are not known in the worker" in found.refused


def test_files_of_nodes_are_unchanged() -> None:
    (found,) = details(logconfig("host_file", logPath="/var/log", filePattern="*.log", customLabels={"a": "b"}))
    assert found == {"logPath": "/var/log", "filePattern": "*.log", "customLabels": {"a": "b"}}


def test_an_object_that_meets_no_case_is_mirrored_as_it_is() -> None:
    body = logconfig("container_stdout", namespace="shop")
    assert rewrite(body, ()).bodies[""]["spec"] == body["spec"]


def test_names_that_no_label_can_have_are_encoded_as_on_pods() -> None:
    (found,) = details(logconfig("container_stdout", workloads=[workload("w" * 80)]))
    assert len(found["includeLabels"]["kubeocean.io/workload-name"]) == 63


def test_a_list_of_namespaces_is_rewritten_item_by_item() -> None:
    body = {"metadata": {"name": "m"}, "spec": {"selector": {"matchNames": ["a", "b", "a"]}}}
    rules = [Rewrite(namespaces={"spec.selector.matchNames": "${spec.selector.matchNames}"})]
    assert rewrite(body, rules, single=False).bodies[""]["spec"] == {"selector": {"matchNames": ["mnt-a", "mnt-b"]}}
    assert rewrite(body, rules).bodies[""]["spec"] == {"selector": {"matchNames": ["mnt"]}}


@pytest.mark.parametrize(
    ("spec", "rule", "text"),
    [
        ({"a": ["x"]}, Rewrite(values={"spec.b": "${spec.a}-x"}), "spec.a is not a text"),
        ({"a": "x"}, Rewrite(values={"spec.a.b": "y"}), "spec.a.b cannot be set, as a part of it is not a map"),
        ({"a": "x"}, Rewrite(labels={"spec.a": {"k": "v"}}), "spec.a cannot be set"),
    ],
)
def test_an_object_whose_fields_have_other_types_is_refused(spec: Body, rule: Rewrite, text: str) -> None:
    found = rewrite({"metadata": {"name": "m"}, "spec": spec}, [rule])
    assert text in found.refused and not found.bodies


PARTS = (Rewrite(each="spec.parts", remove=("spec.parts",), values={"spec.part": "${item}"}),)


def parts(*parts: str, text: str = "") -> Body:
    return {"metadata": {"name": "m"}, "spec": {"parts": list(parts), "text": text}}


def test_equal_items_have_one_mirror_and_more_than_a_hundred_different_ones_none() -> None:
    many = [f"{at}" for at in range(100)]
    assert len(rewrite(parts(*many, *many), PARTS).bodies) == 100
    found = rewrite(parts(*many, "100"), PARTS)
    assert found == Rewritten({}, "spec.parts has 101 different items, and an object has at most 100 mirrors; split the object")


def test_the_mirrors_of_one_object_have_at_most_four_mebibytes() -> None:
    text = "é" * (1 << 19)
    assert len(rewrite(parts("a", "b", "c", text=text), PARTS).bodies) == 3
    found = rewrite(parts("a", "b", "c", "d", text=text), PARTS)
    assert found == Rewritten({}, "its mirrors for the items of spec.parts have more than 4 MiB together; split the object")
    assert rewrite(parts(text="a" * (4 << 20)), ()).bodies, "an object without a rewriting is mirrored whatever its size"


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["namespace", "workloads", "type", "kind", "name"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(kind=st.sampled_from(["container_stdout", "container_file", "host_file"]), detail=_json)
def test_any_object_is_rewritten_or_refused_and_never_changed(kind: str, detail: Any) -> None:
    body = logconfig(kind)
    body["spec"]["inputDetail"] = {"type": kind, "containerStdout": detail, "containerFile": detail}
    before = repr(body)
    found = rewrite(body)
    assert repr(body) == before and bool(found.bodies) is not bool(found.refused)
    assert found == rewrite(body)


@pytest.mark.parametrize(
    ("live", "wanted", "covered"),
    [
        ({"a": 1, "added": 2}, {"a": 1}, True),
        ({"a": 2}, {"a": 1}, False),
        ({"a": [{"b": 1, "default": 2}]}, {"a": [{"b": 1}]}, True),
        ({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}]}, False),
        ({}, {"a": {}}, True),
        ({}, {"a": None}, True),
        ({}, {"a": "x"}, False),
        ({"a": "xy"}, {"a": ["x", "y"]}, False),
    ],
)
def test_what_a_server_added_is_no_difference(live: Mapping[str, Any], wanted: Mapping[str, Any], covered: bool) -> None:
    assert covers(live, wanted) is covered
