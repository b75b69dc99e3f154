"""Tests of kubeocean.copies.volumes."""

from __future__ import annotations

import pytest

from kubeocean.copies.volumes import (
    grown,
    names_volume,
    physical_affinity,
    physical_volume,
    source_of,
    volume_change,
    volume_secrets,
)
from kubeocean.model import keys
from kubeocean.model.keys import physical_name
from kubeocean.model.references import MACHINES, SECRETS_OF
from kubeocean.worker.cluster import Mount
from tests.unit.kubeocean.builders import OWNER, unknown
from vkubelet.api.objects import Json, Key, Unknown
from vkubelet.errors import Unavailable

CLAIM = Key("mnt", "copy-of-claim")
HOSTNAME = "kubernetes.io/hostname"


def volume(spec: Json, **metadata: object) -> Unknown:
    claimed = {"claimRef": {"namespace": "default", "name": "c", "uid": "hub-uid"}, "capacity": {"storage": "1Gi"}}
    return unknown({"metadata": {"name": "pv-1", **metadata}, "spec": {**claimed, "persistentVolumeReclaimPolicy": "Delete", **spec}})


def copy(spec: Json, **more: str) -> Json:
    return physical_volume(
        volume(spec),
        CLAIM,
        mount=Mount(OWNER, CLAIM.namespace),
        name="copy",
        hostname=lambda virtual: more.get(virtual.replace("-", "_"), ""),
    )


def test_volume_is_kept_for_one_claim_and_names_copied_secrets() -> None:
    csi = {
        "driver": "d",
        "volumeHandle": "h",
        "nodePublishSecretRef": {"name": "s", "namespace": "storage"},
        "nodeStageSecretRef": {"name": "t", "namespace": "storage"},
        "controllerExpandSecretRef": {"name": "s", "namespace": "storage"},
    }
    spec = {"storageClassName": "fast", "volumeAttributesClassName": "gold", "csi": csi, "accessModes": ["ReadWriteOnce"]}
    made, copied = copy(spec), {"name": physical_name("storage", "s"), "namespace": "mnt"}
    assert made["spec"] == {
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "mnt", "name": "copy-of-claim"},
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {
            "driver": "d",
            "volumeHandle": "h",
            "nodePublishSecretRef": copied,
            "nodeStageSecretRef": {"name": physical_name("storage", "t"), "namespace": "mnt"},
            "controllerExpandSecretRef": copied,
        },
    }
    assert made["metadata"]["name"] == "copy" and "namespace" not in made["metadata"]
    assert made["metadata"]["labels"] == OWNER.labels and made["metadata"]["annotations"][keys.VIRTUAL_NAME] == "pv-1"
    assert volume_secrets(volume(spec)) == [Key("storage", "s"), Key("storage", "t")]


def test_secret_without_a_namespace_is_that_of_the_claim() -> None:
    spec = {"rbd": {"monitors": ["m"], "image": "i", "secretRef": {"name": "s"}}}
    assert volume_secrets(volume(spec)) == [Key("default", "s")]
    assert copy(spec)["spec"]["rbd"]["secretRef"] == {"name": physical_name("default", "s"), "namespace": "mnt"}


@pytest.mark.parametrize("source", ["glusterfs", "flexVolume", "azureFile", "storageos", "scaleIO", "quobyte", "flocker", "tomorrows"])
def test_storage_that_is_not_known_is_no_storage_for_the_worker(source: str) -> None:
    found = source_of(volume({source: {"x": "y"}, "mountOptions": ["ro"]}).body["spec"])
    assert found == source and found not in SECRETS_OF and found not in MACHINES


def test_disks_of_machines_are_told_from_storage_that_lies_outside() -> None:
    assert {source_of({kind: {}}) for kind in ("hostPath", "local")} == MACHINES
    assert not MACHINES & SECRETS_OF.keys()


def test_nodes_are_named_as_the_worker_names_them() -> None:
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}
    terms = [{"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": ["vnode-a", "node-1"]}, zone]}]
    made = physical_affinity({"required": {"nodeSelectorTerms": terms}}, {"vnode-a": "machine-a"}.get)  # type: ignore[arg-type]
    assert made == {
        "required": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": ["machine-a", "not-here.node-1"]}, zone]}
            ]
        }
    }
    assert terms[0]["matchExpressions"][0]["values"] == ["vnode-a", "node-1"]
    assert "nodeAffinity" not in copy({"nfs": {}})["spec"]


def test_copy_that_is_as_wanted_needs_no_write() -> None:
    wanted = copy({"nfs": {"server": "s", "path": "/"}})
    assert volume_change(_live(wanted, uid="claim-uid"), wanted, claim_uid="claim-uid") is None
    assert volume_change(_live(wanted), wanted, claim_uid="") is None


def test_copy_follows_in_size_and_waits_for_the_next_claim_when_the_last_is_gone() -> None:
    wanted = copy({"nfs": {"server": "s", "path": "/"}})
    grown = {**wanted, "spec": {**wanted["spec"], "capacity": {"storage": "2Gi"}}}
    assert _spec(volume_change(_live(wanted, uid="claim-uid"), grown, claim_uid="claim-uid")) == {"capacity": {"storage": "2Gi"}}
    released = volume_change(_live(wanted, uid="claim-uid"), wanted, claim_uid="")
    assert _spec(released) == {"claimRef": {"uid": None, "resourceVersion": None}}
    unbound = {**wanted, "spec": {key: value for key, value in wanted["spec"].items() if key != "claimRef"}}
    assert _spec(volume_change(_live(unbound), wanted, claim_uid="")) == {"claimRef": wanted["spec"]["claimRef"]}


def test_copy_grows_with_its_volume_whatever_else_differs() -> None:
    original = volume({"nfs": {"server": "s", "path": "/"}})
    there = _live(copy({"nfs": {"server": "s", "path": "/"}}), uid="claim-uid")
    assert grown(there, original) is None
    larger = volume({"nfs": {"server": "s", "path": "/"}, "capacity": {"storage": "2Gi"}})
    assert grown(there, larger) == {"metadata": {"uid": "u", "resourceVersion": "8"}, "spec": {"capacity": {"storage": "2Gi"}}}


def test_copy_bound_to_the_claim_of_somebody_else_is_left_alone() -> None:
    wanted = copy({"nfs": {}})
    taken = {**wanted, "spec": {**wanted["spec"], "claimRef": {"namespace": "others", "name": "theirs", "uid": "u"}}}
    with pytest.raises(Unavailable, match="bound to claim others/theirs"):
        volume_change(_live(taken), wanted, claim_uid="")


def test_claim_tells_its_volume_also_when_kubeocean_go_made_it() -> None:
    assert names_volume(unknown({"metadata": {"annotations": {keys.VIRTUAL_VOLUME: "pv-1"}}}), "pv-1")
    assert not names_volume(unknown({"metadata": {"annotations": {keys.VIRTUAL_VOLUME: "pv-2"}}}), "pv-1")
    assert names_volume(unknown({"metadata": {}, "spec": {"volumeName": physical_name("", "pv-1")}}), "pv-1")


def _live(body: Json, *, uid: str = "") -> Unknown:
    """As the worker's API server has it, bound to a claim of this uid."""
    spec = dict(body["spec"])
    if uid:
        spec["claimRef"] = {**spec["claimRef"], "uid": uid, "resourceVersion": "7"}
    return unknown({**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": "8"}, "spec": spec})


def _spec(change: Json | None) -> object:
    assert change is not None and change["metadata"]["uid"] == "u"
    return change["spec"]
