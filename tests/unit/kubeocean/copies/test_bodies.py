"""Tests of kubeocean.copies.bodies."""

from __future__ import annotations

import base64

import pytest

from kubeocean.copies.bodies import (
    bundle_for,
    copy_of,
    physical_configmap,
    physical_secret,
    same_content,
    token_secret,
)
from kubeocean.model.crds import ApiServerAccess
from kubeocean.model.keys import physical_name, token_secret_name
from tests.unit.kubeocean.builders import OWNER, at, pod, unknown
from vkubelet.api.objects import Key
from vkubelet.api.shapes import Json

META: Json = {
    "namespace": "default",
    "name": "settings",
    "labels": {"app": "web", "kubeocean.io/synced-by-demo": "true"},
    "annotations": {"note": "x", "kubeocean.io/physical-name": "y", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
    "finalizers": ["kubeocean.io/finalizer-demo"],
    "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}],
}
MARKED: Json = {
    "name": physical_name("default", "settings"),
    "namespace": "mnt",
    "labels": {"app": "web", "kubeocean.io/managed-by": "kubeocean", "kubeocean.io/owner": OWNER.mark},
    "annotations": {
        "note": "x",
        "kubeocean.io/hub-uid": "hub-uid-1",
        "kubeocean.io/cluster-id": "demo",
        "kubeocean.io/virtual-name": "settings",
        "kubeocean.io/virtual-namespace": "default",
    },
}


def test_configmap_copy_has_content_and_marks_and_nothing_else() -> None:
    original = unknown({"metadata": META, "data": {"a": "1"}, "binaryData": {"b": "Ag=="}, "immutable": True})
    assert physical_configmap(original, owner=OWNER, namespace="mnt") == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": MARKED,
        "data": {"a": "1"},
        "binaryData": {"b": "Ag=="},
    }


def test_ca_bundle_is_added_to_the_certificates() -> None:
    root = unknown({"metadata": {**META, "name": "kube-root-ca.crt"}, "data": {"ca.crt": "OWN\n"}})
    assert physical_configmap(root, owner=OWNER, namespace="mnt", ca_bundle="MORE\n")["data"] == {"ca.crt": "OWN\nMORE\n"}
    assert physical_configmap(root, owner=OWNER, namespace="mnt")["data"] == {"ca.crt": "OWN\n"}


def test_ca_bundle_is_for_the_root_certificates_only() -> None:
    access = ApiServerAccess("192.0.2.1", ca_bundle="MORE")
    assert [bundle_for(Key("default", name), access) for name in ("kube-root-ca.crt", "settings")] == ["MORE", ""]
    assert bundle_for(Key("default", "kube-root-ca.crt"), None) == ""


def test_secret_copy_keeps_its_type() -> None:
    original = unknown({"metadata": META, "type": "kubernetes.io/tls", "data": {"tls.key": "AQ=="}})
    copy = physical_secret(original, owner=OWNER, namespace="mnt")
    assert (copy["type"], copy["data"], copy["metadata"]) == ("kubernetes.io/tls", {"tls.key": "AQ=="}, MARKED)


@pytest.mark.parametrize("kind", ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"])
def test_secret_that_controllers_act_upon_becomes_opaque_without_annotations(kind: str) -> None:
    annotations = {**META["annotations"], "kubernetes.io/service-account.name": "builder"}
    original = unknown({"metadata": {**META, "annotations": annotations}, "type": kind, "data": {"token": "AQ=="}})
    copy = physical_secret(original, owner=OWNER, namespace="mnt")
    assert (copy["type"], copy["data"]) == ("Opaque", {"token": "AQ=="})
    assert all(key.startswith("kubeocean.io/") for key in copy["metadata"]["annotations"])


def test_token_secret_holds_all_tokens_of_one_incarnation() -> None:
    bearer, tokens = pod({"serviceAccountName": "builder"}), {"token-1": "b", "token": "a"}
    secret = token_secret(bearer, tokens, owner=OWNER, namespace="mnt", expiry=at("2026-01-05 10:00"), life=3607)
    assert secret["metadata"]["name"] == token_secret_name("default", "web", "uid-1")
    assert secret["data"] == {"token": base64.b64encode(b"a").decode(), "token-1": base64.b64encode(b"b").decode()}
    assert secret["metadata"]["labels"]["kubeocean.io/service-account-token"] == "true"
    assert secret["metadata"]["annotations"] == {
        "kubeocean.io/hub-uid": "hub-uid-1",
        "kubeocean.io/cluster-id": "demo",
        "kubeocean.io/virtual-pod-namespace": "default",
        "kubeocean.io/virtual-pod-name": "web",
        "kubeocean.io/virtual-pod-uid": "uid-1",
        "kubeocean.io/service-account": "builder",
        "kubeocean.io/token-expiry": "2026-01-05T10:00:00Z",
        "kubeocean.io/token-life": "3607",
    }


def test_how_claims_were_bound_at_home_is_not_told_to_the_worker() -> None:
    noted = {"note": "x", "pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/selected-node": "vnode-demo-node-1"}
    copy = physical_configmap(unknown({"metadata": {**META, "annotations": noted}}), owner=OWNER, namespace="mnt")
    assert copy["metadata"]["annotations"] == MARKED["annotations"]


def test_copy_names_its_original() -> None:
    assert copy_of(unknown({"metadata": MARKED}).metadata) == Key("default", "settings")
    assert copy_of(unknown({"metadata": {"name": "x"}}).metadata) is None


def test_equal_content_needs_no_write() -> None:
    wanted = physical_configmap(unknown({"metadata": META, "data": {"a": "1"}}), owner=OWNER, namespace="mnt")
    live = {**wanted, "metadata": {**wanted["metadata"], "uid": "u", "resourceVersion": "7"}}
    assert same_content(wanted, live)
    assert not same_content(wanted, {**live, "data": {"a": "2"}})
    assert not same_content(wanted, {**live, "binaryData": {"b": "AQ=="}})
    assert not same_content(wanted, {**live, "metadata": {**live["metadata"], "labels": {}}})
