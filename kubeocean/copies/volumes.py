"""Which storage is brought to the worker, and what the copy of a volume looks like there (pure).

Invariant: a source, a Secret or a node is translated, or it does not get there: volumes have no namespace, and Pod Security does not look
behind a claim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kubeocean.copies.bodies import marked_copy, missing_marks
from kubeocean.model import keys
from kubeocean.model.volume_sources import SECRETS_OF
from vkubelet.api.names import HOSTNAME
from vkubelet.api.objects import Key, Unknown
from vkubelet.api.shapes import Json, JsonView
from vkubelet.client.resources import PVS
from vkubelet.errors import Unavailable

_COPIED: Final = ("accessModes", "capacity", "mountOptions", "volumeMode")
_CHANGES: Final = ("capacity", "mountOptions")
_LEFT_AT_HOME: Final = frozenset(
    {"claimRef", "persistentVolumeReclaimPolicy", "storageClassName", "volumeAttributesClassName", "nodeAffinity"}
)


def source_of(spec: JsonView) -> str:
    """The kind of storage; what is not known here counts as one too."""
    return next((name for name in spec if name not in _COPIED and name not in _LEFT_AT_HOME), "")


def volume_secrets(obj: Unknown) -> list[Key]:
    """The Secrets of the hub that whoever mounts this volume needs."""
    spec: JsonView = obj.body.get("spec") or {}
    source = source_of(spec)
    named = [spec[source].get(field) for field in SECRETS_OF.get(source, ())]
    return list(dict.fromkeys(Key(each.get("namespace") or _claim_namespace(spec), each["name"]) for each in named if each))


def physical_volume(obj: Unknown, claim: Key, *, owner: keys.Owner, name: str, hostname: Callable[[str], str] = lambda virtual: "") -> Json:
    """The copy, kept for the one `claim` of the worker; `hostname` tells the label of the machine behind a virtual node (pure)."""
    spec: JsonView = obj.body.get("spec") or {}
    source = source_of(spec)
    copy: Json = {field: spec[field] for field in (*_COPIED, source) if field in spec}
    for field in SECRETS_OF.get(source, ()):
        if secret := spec[source].get(field):
            namespace = secret.get("namespace") or _claim_namespace(spec)
            copy[source] = {**copy[source], field: {"name": keys.physical_name(namespace, secret["name"]), "namespace": claim.namespace}}
    copy["persistentVolumeReclaimPolicy"] = "Retain"
    # Without it, whoever asks for a volume without a class might be given this one.
    copy["claimRef"] = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace, "name": claim.name}
    if affinity := physical_affinity(spec.get("nodeAffinity") or {}, hostname):
        copy["nodeAffinity"] = affinity
    body = marked_copy(PVS.kind, obj.metadata, owner, namespace="")
    body["metadata"]["name"] = name
    return {**body, "spec": copy}


def physical_affinity(affinity: JsonView, hostname: Callable[[str], str]) -> Json:
    """The same nodes by their names in the worker. All other labels are those of the physical nodes already."""
    terms = (affinity.get("required") or {}).get("nodeSelectorTerms") or ()
    return {"required": {"nodeSelectorTerms": [_physical_term(term, hostname) for term in terms]}} if terms else {}


def _physical_term(term: JsonView, hostname: Callable[[str], str]) -> Json:
    expressions = [dict(each) for each in term.get("matchExpressions") or ()]
    for each in expressions:
        if each.get("key") == HOSTNAME and each.get("values"):
            # A name of the hub's own must not be taken for a node of the worker; the name of a virtual node is never one there.
            each["values"] = [hostname(virtual) or f"not-here.{virtual}"[:63].rstrip("-.") for virtual in each["values"]]
    return {**term, "matchExpressions": expressions} if expressions else dict(term)


def _claim_namespace(spec: JsonView) -> str:
    return str((spec.get("claimRef") or {}).get("namespace") or "")


def names_volume(claim: Unknown, volume: str) -> bool:
    """The copy of a claim is for the copy of this volume."""
    said = claim.metadata.annotations.get(keys.VIRTUAL_VOLUME, "")
    return said == volume if said else _volume_name(claim) == keys.physical_name("", volume)


def _volume_name(claim: Unknown) -> str:
    return str((claim.body.get("spec") or {}).get("volumeName") or "")


def volume_change(there: Unknown, wanted: Json, *, claim_uid: str) -> Json | None:
    """The merge patch that brings a copy up to date, None when it is; raises Unavailable when another claim has it (pure)."""
    live, spec, meta = there.body.get("spec") or {}, wanted["spec"], there.metadata
    bound, ours = live.get("claimRef") or {}, spec["claimRef"]
    if bound and (bound.get("namespace"), bound.get("name")) != (ours["namespace"], ours["name"]):
        raise Unavailable(
            f"PersistentVolume {meta.name} of the worker cluster is bound to claim {bound.get('namespace')}/{bound.get('name')}"
        )
    change = _changed(live, spec)
    if not bound:
        change["claimRef"] = ours
    elif bound.get("uid") and bound["uid"] != claim_uid:
        change["claimRef"] = {"uid": None, "resourceVersion": None}
    metadata = missing_marks(meta, wanted)
    if not change and not metadata:
        return None
    return {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, **metadata}, "spec": change}


def grown(there: Unknown, original: Unknown) -> Json | None:
    """The merge patch that gives a copy the size that its volume has at home by now, None when it has it (pure)."""
    change = _changed(there.body.get("spec") or {}, original.body.get("spec") or {})
    meta = there.metadata
    return {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "spec": change} if change else None


def _changed(live: JsonView, wanted: JsonView) -> Json:
    return {name: wanted[name] for name in _CHANGES if name in wanted and wanted[name] != live.get(name)}
