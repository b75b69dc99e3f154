"""Tests of kubeocean.model.identity."""

from __future__ import annotations

import pytest

from kubeocean.model.crds import ApiServerAccess, DnsAccess
from kubeocean.model.identity import (
    Target,
    Workload,
    daemonset_allowed,
    identity,
    leaves_home,
    replicaset_name,
    where,
    why_pending,
    workload,
)
from kubeocean.pods.translate import physical_pod
from kubeocean.pods.virtual_status import virtual_annotations
from tests.unit.kubeocean.builders import OWNER, TARGET, binding, physical, pod
from vkubelet.api.objects import Key, ObjectMeta, OwnerReference, PodRef

NOWHERE = Key("", "")


def owned_by(kind: str, name: str = "owner") -> ObjectMeta:
    return ObjectMeta(owner_references=[OwnerReference("v1", kind, name, "u")])


@pytest.mark.parametrize(
    ("meta", "replicaset", "expected"),
    [
        (ObjectMeta(), None, Workload("pod")),
        (owned_by("StatefulSet", "db"), None, Workload("statefulset", "db")),
        (owned_by("RayCluster", "ray"), None, Workload("raycluster", "ray")),
        (owned_by("ReplicaSet", "web-1"), owned_by("Deployment", "web"), Workload("deployment", "web")),
        (owned_by("ReplicaSet", "web-1"), ObjectMeta(), Workload("replicaset", "web-1")),
        (owned_by("ReplicaSet", "web-1"), None, Workload("replicaset", "web-1")),
    ],
)
def test_workload_is_told_by_the_first_owner(meta: ObjectMeta, replicaset: ObjectMeta | None, expected: Workload) -> None:
    assert workload(meta, replicaset=replicaset) == expected


def test_replicaset_is_asked_for_only_when_it_is_the_first_owner() -> None:
    assert replicaset_name(owned_by("ReplicaSet", "web-1")) == "web-1"
    assert replicaset_name(owned_by("Job")) == ""
    assert replicaset_name(ObjectMeta()) == ""


@pytest.mark.parametrize(
    ("by_default", "annotations", "expected"),
    [(False, {}, False), (True, {}, True), (False, {"kubeocean.io/running-daemonset": "true"}, True)],
)
def test_daemonset_pods_run_when_asked_for(by_default: bool, annotations: dict[str, str], expected: bool) -> None:
    meta = ObjectMeta(annotations=annotations, owner_references=[OwnerReference("apps/v1", "DaemonSet", "d", "u")])
    found = binding({"runningDaemonsetByDefault": by_default})
    assert daemonset_allowed(meta, found) is expected
    assert daemonset_allowed(ObjectMeta(), found)


def test_pending_pod_of_a_daemonset_names_the_cause_and_the_switch() -> None:
    owner = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}]
    stays, system = pod(ownerReferences=owner), pod(ownerReferences=owner, namespace="kube-system")
    assert "set spec.runningDaemonsetByDefault of ClusterBinding demo" in why_pending(stays.metadata, binding())
    assert "annotate the pod template kubeocean.io/running-daemonset=true" in why_pending(stays.metadata, binding())
    assert why_pending(system.metadata, binding()).startswith("pods of namespace kube-system are not started on virtual nodes")
    assert why_pending(pod(namespace="kube-system").metadata, binding()) == ""


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", "kube-node-lease", "kubeocean-system", "kubeocean-fake"])
def test_pods_of_system_namespaces_stay(namespace: str) -> None:
    assert not leaves_home(pod(namespace=namespace).metadata)
    assert leaves_home(pod().metadata)
    assert not leaves_home(pod(labels={"kubeocean.io/hostport-fake-pod": "true"}).metadata)


def test_identity_needs_namespace_name_and_uid() -> None:
    names = {"namespace": "default", "name": "web", "uid": "u"}
    annotations = {f"kubeocean.io/virtual-pod-{part}": value for part, value in names.items()}
    assert identity(ObjectMeta(annotations=annotations)) == PodRef("default", "web", "u", "")
    full = {**annotations, "kubeocean.io/virtual-node-name": "v"}
    assert identity(ObjectMeta(annotations=full)) == PodRef("default", "web", "u", "v")
    for part in names:
        assert identity(ObjectMeta(annotations={key: value for key, value in full.items() if not key.endswith(f"pod-{part}")})) is None


def test_what_the_binding_says_of_access_counts_before_what_was_found() -> None:
    found_api, found_dns = ApiServerAccess("10.0.0.1"), DnsAccess(("10.0.0.2",))
    bare = Target.of(binding(), owner=OWNER, node="n", workload=Workload("pod"), api_server=found_api, dns=found_dns)
    assert (bare.api_server, bare.dns, bare.domain, bare.namespace) == (found_api, found_dns, "cluster.local", "mnt")
    assert (bare.priority_class, bare.direct) == ("kubeocean-default", False)
    spec = {
        "apiServerAccess": {"host": "api.hub"},
        "dns": {"servers": ["10.9.9.9"], "domain": "hub.example"},
        "podPriorityClassName": "low",
    }
    told = Target.of(binding(spec), owner=OWNER, node="n", workload=Workload("pod"), api_server=found_api, dns=found_dns)
    assert (told.api_server, told.domain, told.priority_class) == (ApiServerAccess("api.hub"), "hub.example", "low")


def test_a_published_pod_knows_where_its_physical_pod_is() -> None:
    body = physical_pod(pod(), TARGET)
    notes = virtual_annotations(pod(), physical(body))
    assert where(pod(annotations=notes)) == Key("mnt", body["metadata"]["name"])
    assert where(pod()) == NOWHERE


def test_a_pod_made_of_the_yaml_of_another_has_no_physical_pod_yet() -> None:
    notes = virtual_annotations(pod(), physical(physical_pod(pod(), TARGET)))
    # `kubectl debug web --copy-to=web-debug`; `kubectl get pod web -o yaml`, delete, apply.
    assert where(pod(annotations=notes, name="web-debug", uid="uid-2")) == NOWHERE
    assert where(pod(annotations=notes, uid="uid-2")) == NOWHERE


def test_the_record_of_an_earlier_kubeocean_counts() -> None:
    notes = virtual_annotations(pod(), physical(physical_pod(pod(), TARGET)))
    del notes["kubeocean.io/physical-pod-of"]
    assert where(pod(annotations=notes)).namespace == "mnt"
