"""Marks on hub objects that are copied."""

from kubeocean.copies import marks
from kubeocean.model.keys import Owner
from kubeocean.worker.cluster import Mount
from tests.unit.kubeocean.builders import OWNER, unknown
from vkubelet.api.codec import encode_json
from vkubelet.api.objects import ObjectMeta, Unknown
from vkubelet.api.shapes import Json

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
    assert marks.added(applied(config(), marks.added(config(), MOUNT)), MOUNT) is None


def test_two_bindings_mark_one_object_and_leave_it_one_after_the_other() -> None:
    both = applied(config(), marks.added(config(), MOUNT))
    both = applied(both, marks.added(both, OTHER))
    assert {"kubeocean.io/synced-by-demo", "kubeocean.io/synced-by-other"} <= both.labels.keys()
    one = applied(both, marks.removed(both, MOUNT))
    assert one.labels == {"kubeocean.io/managed-by": "kubeocean", "kubeocean.io/synced-by-other": "true"}
    assert list(one.finalizers) == ["kubeocean.io/finalizer-other"]
    none = applied(one, marks.removed(one, OTHER))
    assert not none.labels and not none.annotations and not none.finalizers


def test_what_kubeocean_go_put_on_it_goes_too() -> None:
    labels = {"kubeocean.io/managed-by": "kubeocean", "kubeocean.io/synced-by-demo": "true", "kubeocean.io/used-by-pv": "true"}
    annotations = {"kubeocean.io/physical-name": "x", "kubeocean.io/physical-namespace": "mnt", "kubeocean.io/deleting-demo": "binding"}
    left = config(labels=labels, annotations=annotations, finalizers=["kubeocean.io/finalizer-demo"])
    none = applied(left, marks.removed(left, MOUNT))
    assert not none.labels and not none.annotations and not none.finalizers
    assert marks.removed(config(annotations={"kubeocean.io/deleting-demo": "binding"}), MOUNT) is not None


def test_an_object_without_our_marks_is_left_alone() -> None:
    assert marks.removed(config(labels={"app": "web"}, finalizers=["theirs"]), MOUNT) is None


def test_what_users_put_on_it_stays() -> None:
    marked = applied(config(labels={"app": "web"}), marks.added(config(labels={"app": "web"}), MOUNT))
    assert applied(marked, marks.removed(marked, MOUNT)).labels == {"app": "web"}


def test_finalizers_are_changed_only_on_the_version_that_was_read() -> None:
    change = marks.added(config(), MOUNT)
    assert change is not None and change["metadata"]["resourceVersion"] == "7"
