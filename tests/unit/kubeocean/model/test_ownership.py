"""Whose an object is: every kind that the product marks, as each owner marks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from attrs import evolve

from kubeocean.copies.bodies import physical_configmap, physical_secret, token_secret
from kubeocean.copies.pvcs import physical_claim
from kubeocean.copies.volumes import physical_volume
from kubeocean.leasing.policy import Decision
from kubeocean.mirrors.kind_mirror import desired
from kubeocean.model import keys
from kubeocean.model.keys import Owner
from kubeocean.model.kinds import ExtraKind
from kubeocean.model.ownership import UNOWNED, Mark, Ownership, classify, classify_finalizer
from kubeocean.nodes.csinodes import virtual_csinode
from kubeocean.nodes.describe import describe
from kubeocean.pods.translate import physical_pod
from kubeocean.worker.cluster import Mount
from tests.unit.kubeocean.builders import OWNER, TARGET, at, binding, node, pod, policy, unknown
from vkubelet.api.objects import Json, Key, Node, ObjectMeta

OURS, ANOTHERS, LEGACY, UNMARKED = Ownership.OURS, Ownership.ANOTHERS, Ownership.LEGACY, Ownership.UNMARKED
OTHER_BINDING, OTHER_HUB = Owner(OWNER.hub_uid, "other"), Owner("hub-uid-2", OWNER.cluster_id)
ORIGINAL = unknown({"metadata": {"namespace": "default", "name": "data"}, "spec": {"csi": {"driver": "d"}}})


def _node(owner: Owner) -> Json:
    found = binding({"clusterID": owner.cluster_id})
    described = describe(node(), Decision(exists=True, amounts={}, deciding=policy(), open=True), binding=found)
    return {"metadata": {"labels": dict(described.labels), "annotations": dict(described.annotations)}}


def _csinode(owner: Owner) -> Json:
    virtual: Node = node(labels={keys.PHYSICAL_CLUSTER_ID: owner.cluster_id})
    return virtual_csinode(unknown({"metadata": {"name": "node-1", "uid": "u"}}), virtual, binding="demo")


def _extra(owner: Owner) -> Json:
    kind = ExtraKind(api_version="extra.example.com/v1", resource="notes")
    return desired(ORIGINAL, Mount(owner, "mnt"), kind=kind, resource=kind.of_kind("Note")).bodies[0]


MADE: Mapping[str, Callable[[Owner], Json]] = {
    "Pod": lambda owner: physical_pod(pod(), evolve(TARGET, owner=owner)),
    "Secret": lambda owner: physical_secret(ORIGINAL, owner=owner, namespace="mnt"),
    "ConfigMap": lambda owner: physical_configmap(ORIGINAL, owner=owner, namespace="mnt"),
    "PersistentVolumeClaim": lambda owner: physical_claim(ORIGINAL, "pv", owner=owner, namespace="mnt"),
    "PersistentVolume": lambda owner: physical_volume(ORIGINAL, Key("mnt", "c"), mount=Mount(owner, "mnt"), name="pv"),
    "mirror of an extra kind": _extra,
    "token Secret": lambda owner: token_secret(pod(), {}, owner=owner, namespace="mnt", expiry=at("2026-01-01"), lifetime=1),
    "mount namespace": lambda owner: {"metadata": {"annotations": {keys.MOUNT_OWNER: owner.mark}}},
    "Node": _node,
    "CSINode": _csinode,
}
"""By kind, the object that the product writes for an owner."""
MARKS = {"mount namespace": Mark.MOUNT, "Node": Mark.NODE, "CSINode": Mark.NODE}
IN_WORKER = [kind for kind in MADE if kind not in MARKS]


def whose(kind: str, body: Json) -> Ownership:
    return classify(unknown(body).metadata, OWNER, mark=MARKS.get(kind, Mark.OBJECT))


def left(body: Json, *, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> Json:
    """The object with these labels and annotations of Kubeocean only."""
    return {**body, "metadata": {**body["metadata"], "labels": dict(labels), "annotations": dict(annotations or {})}}


@pytest.mark.parametrize("kind", MADE)
def test_every_kind_is_ours_or_anothers_by_what_the_product_writes(kind: str) -> None:
    assert whose(kind, MADE[kind](OWNER)) is OURS
    assert whose(kind, MADE[kind](OTHER_BINDING)) is ANOTHERS
    # Nodes of another hub are in that hub.
    assert whose(kind, MADE[kind](OTHER_HUB)) is (OURS if MARKS.get(kind) is Mark.NODE else ANOTHERS)


@pytest.mark.parametrize("kind", MADE)
def test_no_kind_is_ours_without_a_mark_of_an_owner(kind: str) -> None:
    body = MADE[kind](OWNER)
    legacy = whose(kind, left(body, labels={keys.MANAGED_BY: keys.MANAGED}))
    assert legacy is (UNMARKED if kind in MARKS else LEGACY)
    assert whose(kind, left(body, labels={keys.MANAGED_BY: "helm", "app": "x"}, annotations={"note": "x"})) is UNMARKED
    assert whose(kind, left(body, labels={})) is UNMARKED


@pytest.mark.parametrize("kind", ["Node", "CSINode"])
def test_what_kubeocean_go_created_in_the_hub_for_this_binding_is_ours(kind: str) -> None:
    body = MADE[kind](OWNER)
    body["metadata"]["finalizers"] = [keys.FINALIZER_VNODE]
    assert whose(kind, body) is OURS
    labels = {key: value for key, value in body["metadata"]["labels"].items() if key != keys.MANAGED_BY}
    assert whose(kind, left(body, labels=labels)) is UNMARKED


@pytest.mark.parametrize("kind", IN_WORKER)
def test_label_counts_only_where_the_annotations_were_removed(kind: str) -> None:
    body = MADE[kind](OWNER)
    for other in (OTHER_BINDING, OTHER_HUB):
        assert whose(kind, left(body, labels=other.labels, annotations=OWNER.annotations)) is OURS
        assert whose(kind, left(body, labels=OWNER.labels, annotations=other.annotations)) is ANOTHERS
        assert whose(kind, left(body, labels=other.labels)) is ANOTHERS
    assert whose(kind, left(body, labels=OWNER.labels)) is OURS
    assert whose(kind, left(body, labels={}, annotations=OWNER.annotations)) is OURS
    half = {keys.HUB_UID: OTHER_HUB.hub_uid}
    assert whose(kind, left(body, labels={keys.MANAGED_BY: keys.MANAGED}, annotations=half)) is LEGACY


FINALIZERS = {
    "policy": (keys.policy_finalizer(OWNER), keys.policy_finalizer(OTHER_BINDING), keys.policy_finalizer(OTHER_HUB), keys.FINALIZER_POLICY),
    # Both versions, and the hub is where the object is.
    "copied object": (keys.object_finalizer("demo"), keys.object_finalizer("other"), keys.object_finalizer("demo-2"), ""),
}


@pytest.mark.parametrize("kind", FINALIZERS)
def test_finalizers_of_shared_objects_name_their_binding(kind: str) -> None:
    ours, another_binding, another_hub, legacy = FINALIZERS[kind]
    assert classify_finalizer(ours, OWNER) is OURS
    assert {classify_finalizer(each, OWNER) for each in (another_binding, another_hub)} == {ANOTHERS}
    assert classify_finalizer(legacy, OWNER) is (LEGACY if legacy else UNMARKED)
    for foreign in ("kubernetes.io/pvc-protection", keys.FINALIZER_SYNCER, keys.FINALIZER_MANAGER, keys.FINALIZER_VNODE):
        assert classify_finalizer(foreign, OWNER) is UNMARKED


def test_what_names_no_owner_is_legacy_or_unmarked() -> None:
    assert classify(ObjectMeta(), OWNER) in UNOWNED
    assert {LEGACY, UNMARKED} == UNOWNED
