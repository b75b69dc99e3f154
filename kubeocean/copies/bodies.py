"""Bodies of the objects that are created in the worker for pods, and the marks on both sides: copies and their originals. Pure.

Invariant: every body has the owner's marks and names the hub object that it is the copy of; a copy never grants more than its content. On
an original only our own binding's label and finalizer are added or removed; marks shared by bindings are removed with the last of them.
"""

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from kubeocean.model import keys
from kubeocean.model.crds import ApiServerAccess
from kubeocean.model.ownership import Ownership, classify, classify_finalizer
from kubeocean.worker.cluster import Mount
from vkubelet.api.names import LAST_APPLIED
from vkubelet.api.objects import Json, JsonView, Key, ObjectMeta, Pod, Unknown
from vkubelet.clock import rfc3339

OPAQUE: Final = "Opaque"

# The worker's controllers act on Secrets of these types: they fill in tokens, or delete Secrets that name no account of the worker.
_ACTED_UPON: Final = frozenset({"kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"})
# Prefixes of annotations by which the controllers of a cluster record how they bound claims to volumes.
_BINDERS: Final = ("pv.kubernetes.io/", "volume.kubernetes.io/", "volume.beta.kubernetes.io/")
_ROOT_CA: Final = "kube-root-ca.crt"
_CONTENT: Final = ("data", "binaryData", "type")


def physical_configmap(obj: Unknown, *, owner: keys.Owner, namespace: str, ca_bundle: str = "") -> Json:
    """Returns the copy of a ConfigMap; `ca_bundle` (see `bundle_for`) is added to its certificates."""
    body = obj.body
    copy = marked_copy("ConfigMap", obj.metadata, owner, namespace=namespace)
    copy |= {name: body[name] for name in ("data", "binaryData") if body.get(name)}
    if ca_bundle:
        own = (body.get("data") or {}).get("ca.crt", "")
        copy["data"] = {**(body.get("data") or {}), "ca.crt": f"{own.rstrip()}\n{ca_bundle}".lstrip()}
    return copy


def bundle_for(original: Key, access: ApiServerAccess | None) -> str:
    """Returns the certificates of `spec.apiServerAccess` for kube-root-ca.crt, by which pods verify the API server; "" for any other."""
    return access.ca_bundle if access is not None and original.name == _ROOT_CA else ""


def physical_secret(obj: Unknown, *, owner: keys.Owner, namespace: str) -> Json:
    """Returns the copy of a Secret; one that controllers would act upon is copied as Opaque, without its annotations."""
    body = obj.body
    kind = body.get("type") or OPAQUE
    copy = marked_copy("Secret", obj.metadata, owner, namespace=namespace, annotated=kind not in _ACTED_UPON)
    copy["type"] = OPAQUE if kind in _ACTED_UPON else kind
    if body.get("data"):
        copy["data"] = body["data"]
    return copy


def token_secret(pod: Pod, tokens: Mapping[str, str], *, owner: keys.Owner, namespace: str, expiry: datetime, lifetime: int) -> Json:
    """Returns the Secret with all tokens of a pod, by the keys of `References.tokens`.

    `expiry` and `lifetime` (seconds) are those of the token that expires first.
    """
    meta = pod.metadata
    annotations = {
        **owner.annotations,
        keys.VIRTUAL_POD_NAMESPACE: meta.namespace,
        keys.VIRTUAL_POD_NAME: meta.name,
        keys.VIRTUAL_POD_UID: meta.uid,
        keys.SERVICE_ACCOUNT: pod.service_account,
        keys.TOKEN_EXPIRY: rfc3339(expiry),
        keys.TOKEN_LIFE: str(lifetime),
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": keys.token_secret_name(meta.namespace, meta.name, meta.uid),
            "namespace": namespace,
            "labels": {**owner.labels, keys.TOKEN_SECRET: "true"},
            "annotations": annotations,
        },
        "type": OPAQUE,
        "data": {key: base64.b64encode(token.encode()).decode() for key, token in sorted(tokens.items())},
    }


def copy_of(meta: ObjectMeta) -> Key | None:
    """Returns the key of the hub object that an object of the worker is the copy of, None when it names none."""
    name = meta.annotations.get(keys.VIRTUAL_NAME, "")
    return Key(meta.annotations.get(keys.VIRTUAL_NAMESPACE, ""), name) if name else None


def is_copy(meta: ObjectMeta, original: Key, owner: keys.Owner) -> bool:
    """Checks that an object of the worker is the copy of this original: ours, or of Kubeocean (Go), which is adopted."""
    return copy_of(meta) == original and classify(meta, owner) in (Ownership.OURS, Ownership.LEGACY)


def mark_patch(meta: ObjectMeta, mount: Mount) -> Json | None:
    """Returns the merge patch that marks an object as copied by this binding, or None when it is marked already."""
    wanted = {keys.MANAGED_BY: keys.MANAGED, keys.synced_by(mount.owner.cluster_id): "true"}
    labels = {key: value for key, value in wanted.items() if meta.labels.get(key) != value}
    places = {
        keys.PHYSICAL_NAME: keys.physical_name(meta.namespace, meta.name),
        keys.PHYSICAL_NAMESPACE: mount.namespace_of(meta.namespace),
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


def unmark_patch(meta: ObjectMeta, mount: Mount) -> Json | None:
    """Returns the merge patch that removes our marks, also those of Kubeocean (Go), or None when there are none."""
    owner = mount.owner.cluster_id
    finalizer, label, order = keys.object_finalizer(owner), keys.synced_by(owner), keys.deleting(owner)
    if finalizer not in meta.finalizers and label not in meta.labels and order not in meta.annotations:
        return None
    finalizers = [each for each in meta.finalizers if each != finalizer]
    labels: Json = {label: None}
    annotations: Json = {order: None}
    if not any(classify_finalizer(each, mount.owner) is Ownership.ANOTHERS for each in finalizers):
        labels |= {keys.MANAGED_BY: None, keys.USED_BY_PV: None}
        annotations |= {keys.PHYSICAL_NAME: None, keys.PHYSICAL_NAMESPACE: None}
    metadata = {"labels": labels, "annotations": annotations, "finalizers": finalizers, "resourceVersion": meta.resource_version}
    return {"metadata": metadata}


def missing_marks(meta: ObjectMeta, wanted: Json, *, prefix: str = keys.DOMAIN) -> Json:
    """Returns those of our desired labels and annotations, the ones with this prefix, that are missing on an object (pure)."""
    out: Json = {}
    for field, live in (("labels", meta.labels), ("annotations", meta.annotations)):
        missing = {key: value for key, value in wanted["metadata"][field].items() if key.startswith(prefix) and live.get(key) != value}
        if missing:
            out[field] = missing
    return out


def same_content(wanted: JsonView, live: JsonView) -> bool:
    """Checks that a PUT of `wanted` would change nothing but server-set fields; for ConfigMaps and Secrets."""
    ours, theirs = wanted["metadata"], live.get("metadata") or {}
    return all((wanted.get(name) or None) == (live.get(name) or None) for name in _CONTENT) and all(
        (ours.get(name) or {}) == (theirs.get(name) or {}) for name in ("labels", "annotations")
    )


def marked_copy(kind: str, meta: ObjectMeta, owner: keys.Owner, *, namespace: str, annotated: bool = True) -> Json:
    """Returns the part common to all copies: name, the user's labels and annotations, the owner's marks, and the key of the original."""
    metadata: Json = {
        "name": keys.physical_name(meta.namespace, meta.name),
        "labels": {**_users(meta.labels), **owner.labels},
        "annotations": {
            **(_users(meta.annotations) if annotated else {}),
            **owner.annotations,
            keys.VIRTUAL_NAME: meta.name,
            keys.VIRTUAL_NAMESPACE: meta.namespace,
        },
    }
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


def _users(entries: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in entries.items() if not key.startswith((keys.DOMAIN, *_BINDERS)) and key != LAST_APPLIED}


def mirror_metadata(original: Key, mirror: Key, mount: Mount) -> Json:
    """Returns our marks alone: controllers of the worker act on labels and annotations of users, such as those of load balancers.

    The name of the original is empty for an object that stands for its namespace.
    """
    origin = {keys.VIRTUAL_NAMESPACE: original.namespace, **({keys.VIRTUAL_NAME: original.name} if original.name else {})}
    return {
        "name": mirror.name,
        "namespace": mirror.namespace,
        "labels": dict(mount.owner.labels),
        "annotations": {**mount.owner.annotations, **origin},
    }
