"""Marks (labels, annotations, finalizer) on hub objects that are copied to a worker cluster (pure).

Invariant: only our own binding's label and finalizer are ever added or removed; marks shared by bindings are removed with the last of them.
"""

from __future__ import annotations

from kubeocean.model import keys
from kubeocean.worker.cluster import Mount
from vkubelet.api.objects import ObjectMeta
from vkubelet.api.shapes import Json

_ANY_FINALIZER = keys.object_finalizer("")


def added(meta: ObjectMeta, mount: Mount) -> Json | None:
    """Returns the merge patch that marks an object as copied by this binding, or None when it is marked already."""
    wanted = {keys.MANAGED_BY: keys.MANAGED, keys.synced_by(mount.owner.cluster_id): "true"}
    labels = {key: value for key, value in wanted.items() if meta.labels.get(key) != value}
    places = {
        keys.PHYSICAL_NAME: keys.physical_name(meta.namespace, meta.name),
        keys.PHYSICAL_NAMESPACE: mount.namespace,
    }
    annotations = {key: value for key, value in places.items() if key not in meta.annotations}
    finalizer = keys.object_finalizer(mount.owner.cluster_id)
    missing = finalizer not in meta.finalizers
    if not (labels or annotations or missing):
        return None
    metadata: Json = {"labels": labels, "annotations": annotations, "resourceVersion": meta.resource_version}
    if missing:
        metadata["finalizers"] = [*meta.finalizers, finalizer]
    return {"metadata": metadata}


def removed(meta: ObjectMeta, mount: Mount) -> Json | None:
    """Returns the merge patch that removes our marks, also those of Kubeocean (Go), or None when there are none."""
    owner = mount.owner.cluster_id
    finalizer, label, order = keys.object_finalizer(owner), keys.synced_by(owner), keys.deleting(owner)
    if finalizer not in meta.finalizers and label not in meta.labels and order not in meta.annotations:
        return None
    finalizers = [each for each in meta.finalizers if each != finalizer]
    labels: Json = {label: None}
    annotations: Json = {order: None}
    if not any(each.startswith(_ANY_FINALIZER) for each in finalizers):
        labels |= {keys.MANAGED_BY: None, keys.USED_BY_PV: None}
        annotations |= {keys.PHYSICAL_NAME: None, keys.PHYSICAL_NAMESPACE: None}
    metadata = {"labels": labels, "annotations": annotations, "finalizers": finalizers, "resourceVersion": meta.resource_version}
    return {"metadata": metadata}
