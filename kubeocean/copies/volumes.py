"""Translates PersistentVolumes of the hub into their copies in the worker (pure).

Invariant: a source, a Secret or a node is translated, or it is not copied to the worker: volumes have no namespace, and Pod Security does
not check the volume behind a claim.
"""

from collections.abc import Callable
from typing import Final

from kubeocean.copies.bodies import marked_copy, missing_marks
from kubeocean.model import keys
from kubeocean.model.references import SECRETS_OF
from kubeocean.worker.cluster import Mount
from vkubelet.api.names import HOSTNAME
from vkubelet.api.objects import PVS, Json, JsonView, Key, Unknown
from vkubelet.errors import Unavailable

_COPIED: Final = ("accessModes", "capacity", "mountOptions", "volumeMode")
_CHANGES: Final = ("capacity", "mountOptions")
_NOT_COPIED: Final = frozenset(
    {"claimRef", "persistentVolumeReclaimPolicy", "storageClassName", "volumeAttributesClassName", "nodeAffinity"}
)


def source_of(spec: JsonView) -> str:
    """Returns the kind of storage; an unknown field counts as one too."""
    return next((name for name in spec if name not in _COPIED and name not in _NOT_COPIED), "")


def volume_secrets(obj: Unknown) -> list[Key]:
    """Returns the Secrets of the hub that are needed to mount this volume."""
    spec: JsonView = obj.body.get("spec") or {}
    source = source_of(spec)
    named = [spec[source].get(field) for field in SECRETS_OF.get(source, ())]
    return list(dict.fromkeys(Key(each.get("namespace") or _claim_namespace(spec), each["name"]) for each in named if each))


def physical_volume(obj: Unknown, claim: Key, *, mount: Mount, name: str, hostname: Callable[[str], str] = lambda virtual: "") -> Json:
    """Returns the copy, reserved for the one `claim` of the worker (pure).

    `hostname` returns the hostname label of the physical node behind a virtual node.
    """
    spec: JsonView = obj.body.get("spec") or {}
    source = source_of(spec)
    copy: Json = {field: spec[field] for field in (*_COPIED, source) if field in spec}
    for field in SECRETS_OF.get(source, ()):
        if secret := spec[source].get(field):
            namespace = secret.get("namespace") or _claim_namespace(spec)
            copied = mount.copy_key(Key(namespace, secret["name"]))
            copy[source] = {**copy[source], field: {"name": copied.name, "namespace": copied.namespace}}
    copy["persistentVolumeReclaimPolicy"] = "Retain"
    # Without it, the worker might bind this volume to any claim that requests one without a class.
    copy["claimRef"] = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace, "name": claim.name}
    if affinity := physical_affinity(spec.get("nodeAffinity") or {}, hostname):
        copy["nodeAffinity"] = affinity
    body = marked_copy(PVS.kind, obj.metadata, mount.owner, namespace="")
    body["metadata"]["name"] = name
    return {**body, "spec": copy}


def physical_affinity(affinity: JsonView, hostname: Callable[[str], str]) -> Json:
    """Translates the hostnames of virtual nodes to those of physical ones. All other labels are those of the physical nodes already."""
    terms = (affinity.get("required") or {}).get("nodeSelectorTerms") or ()
    return {"required": {"nodeSelectorTerms": [_physical_term(term, hostname) for term in terms]}} if terms else {}


def _physical_term(term: JsonView, hostname: Callable[[str], str]) -> Json:
    expressions = [dict(each) for each in term.get("matchExpressions") or ()]
    for each in expressions:
        if each.get("key") == HOSTNAME and each.get("values"):
            # The name of a node of the hub must not select a node of the worker; the name of a virtual node is never one in the worker.
            each["values"] = [hostname(virtual) or f"not-here.{virtual}"[:63].rstrip("-.") for virtual in each["values"]]
    return {**term, "matchExpressions": expressions} if expressions else dict(term)


def _claim_namespace(spec: JsonView) -> str:
    return str((spec.get("claimRef") or {}).get("namespace") or "")


def names_volume(claim: Unknown, volume: str) -> bool:
    """Checks whether the copy of a claim is for the copy of this volume."""
    named = claim.metadata.annotations.get(keys.VIRTUAL_VOLUME, "")
    return named == volume if named else _volume_name(claim) == keys.physical_name("", volume)


def _volume_name(claim: Unknown) -> str:
    return str((claim.body.get("spec") or {}).get("volumeName") or "")


def volume_change(copy: Unknown, wanted: Json, *, claim_uid: str) -> Json | None:
    """Returns the merge patch that brings a copy up to date, None when it is. Raises Unavailable when another claim has it (pure)."""
    live, spec, meta = copy.body.get("spec") or {}, wanted["spec"], copy.metadata
    bound, ours = live.get("claimRef") or {}, spec["claimRef"]
    if bound and (bound.get("namespace"), bound.get("name")) != (ours["namespace"], ours["name"]):
        other = f"{bound.get('namespace')}/{bound.get('name')}"
        raise Unavailable(f"PersistentVolume {meta.name} of the worker cluster is bound to claim {other}; delete that claim there")
    change = _changed(live, spec)
    if not bound:
        change["claimRef"] = ours
    elif bound.get("uid") and bound["uid"] != claim_uid:
        change["claimRef"] = {"uid": None, "resourceVersion": None}
    metadata = missing_marks(meta, wanted)
    if not change and not metadata:
        return None
    return {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, **metadata}, "spec": change}


def grown(copy: Unknown, original: Unknown) -> Json | None:
    """Returns the merge patch that gives a copy the size that its volume has in the hub now, None when it has that (pure)."""
    change = _changed(copy.body.get("spec") or {}, original.body.get("spec") or {})
    meta = copy.metadata
    return {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "spec": change} if change else None


def _changed(live: JsonView, wanted: JsonView) -> Json:
    return {name: wanted[name] for name in _CHANGES if name in wanted and wanted[name] != live.get(name)}
