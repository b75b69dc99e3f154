"""Tests of kubeocean.copies.bodies."""

from __future__ import annotations

import base64

import pytest

from kubeocean.copies.bodies import (
    bundle_for,
    copy_of,
    is_copy,
    mark_patch,
    physical_configmap,
    physical_secret,
    same_content,
    token_secret,
    unmark_patch,
)
from kubeocean.model import keys
from kubeocean.model.crds import ApiServerAccess
from kubeocean.model.keys import Owner, physical_name, token_secret_name
from kubeocean.worker.cluster import Mount
from tests.unit.kubeocean.builders import OWNER, at, pod, unknown
from vkubelet.api.codec import encode_json
from vkubelet.api.objects import Json, Key, ObjectMeta, Unknown

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
    secret = token_secret(bearer, tokens, owner=OWNER, namespace="mnt", expiry=at("2026-01-05 10:00"), lifetime=3607)
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


STRANGER = Owner("hub-uid-2", "demo")


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        (OWNER.labels, OWNER.annotations, True),
        ({keys.MANAGED_BY: keys.MANAGED}, {}, True),
        ({keys.MANAGED_BY: keys.MANAGED}, STRANGER.annotations, False),
        (STRANGER.labels, {}, False),
        ({}, {}, False),
    ],
)
def test_copy_that_names_another_owner_in_any_mark_is_not_adopted(labels: Json, annotations: Json, expected: bool) -> None:
    original = {keys.VIRTUAL_NAMESPACE: "default", keys.VIRTUAL_NAME: "settings"}
    meta = unknown({"metadata": {"name": "x", "labels": labels, "annotations": {**annotations, **original}}}).metadata
    assert is_copy(meta, Key("default", "settings"), OWNER) is expected
    assert not is_copy(meta, Key("default", "other"), OWNER)


MOUNT = Mount(OWNER, "mnt")
OTHER = Mount(Owner("hub-uid-1", "other"), "elsewhere")


def config(**metadata: object) -> ObjectMeta:
    return unknown({"metadata": {"name": "settings", "namespace": "default", "resourceVersion": "7", **metadata}}).metadata


def applied(meta: ObjectMeta, change: Json | None) -> ObjectMeta:
    """As a merge patch does it."""
    assert change is not None
    new = change["metadata"]
    body: Json = {"name": meta.name, "namespace": meta.namespace, "resourceVersion": meta.resource_version}
    for kind, old in (("labels", meta.labels), ("annotations", meta.annotations)):
        body[kind] = {key: value for key, value in {**old, **new.get(kind, {})}.items() if value is not None}
    body["finalizers"] = new.get("finalizers", list(meta.finalizers))
    return Unknown.decode(encode_json({"metadata": body})).metadata


def test_a_marked_object_is_not_marked_again() -> None:
    assert mark_patch(applied(config(), mark_patch(config(), MOUNT)), MOUNT) is None


def test_two_bindings_mark_one_object_and_leave_it_one_after_the_other() -> None:
    both = applied(config(), mark_patch(config(), MOUNT))
    both = applied(both, mark_patch(both, OTHER))
    assert {"kubeocean.io/synced-by-demo", "kubeocean.io/synced-by-other"} <= both.labels.keys()
    one = applied(both, unmark_patch(both, MOUNT))
    assert one.labels == {"kubeocean.io/managed-by": "kubeocean", "kubeocean.io/synced-by-other": "true"}
    assert list(one.finalizers) == ["kubeocean.io/finalizer-other"]
    none = applied(one, unmark_patch(one, OTHER))
    assert not none.labels and not none.annotations and not none.finalizers


def test_what_kubeocean_go_put_on_it_goes_too() -> None:
    labels = {"kubeocean.io/managed-by": "kubeocean", "kubeocean.io/synced-by-demo": "true", "kubeocean.io/used-by-pv": "true"}
    annotations = {"kubeocean.io/physical-name": "x", "kubeocean.io/physical-namespace": "mnt", "kubeocean.io/deleting-demo": "binding"}
    left = config(labels=labels, annotations=annotations, finalizers=["kubeocean.io/finalizer-demo"])
    none = applied(left, unmark_patch(left, MOUNT))
    assert not none.labels and not none.annotations and not none.finalizers
    assert unmark_patch(config(annotations={"kubeocean.io/deleting-demo": "binding"}), MOUNT) is not None


def test_an_object_without_our_marks_is_left_alone() -> None:
    assert unmark_patch(config(labels={"app": "web"}, finalizers=["theirs"]), MOUNT) is None


def test_what_users_put_on_it_stays() -> None:
    marked = applied(config(labels={"app": "web"}), mark_patch(config(labels={"app": "web"}), MOUNT))
    assert applied(marked, unmark_patch(marked, MOUNT)).labels == {"app": "web"}


def test_finalizers_are_changed_only_on_the_version_that_was_read() -> None:
    change = mark_patch(config(), MOUNT)
    assert change is not None and change["metadata"]["resourceVersion"] == "7"
