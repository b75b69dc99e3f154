"""Computes the mirrors of an object of an extra kind, and what differs from those that exist. Pure.

Invariant: a mirror has the marks of its owner whatever the rewriting sets, and what controllers of the worker added to it is kept.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from kubeocean.copies.bodies import marked_copy
from kubeocean.model import keys
from kubeocean.model.kinds import ExtraKind
from kubeocean.model.rewriting import covers, digest_of, rewritten
from kubeocean.worker.cluster import Mount
from vkubelet.api.objects import Json, JsonView, Resource, Unknown

_NOT_CONTENT: Final = ("apiVersion", "kind", "metadata", "status")
_OF_OTHERS: Final = ("finalizers", "ownerReferences")


@frozen
class Desired:
    """Desired mirrors of one object; `refused`: why it has none."""

    bodies: Sequence[Json]
    refused: str = ""


def desired(kind: ExtraKind, resource: Resource[Unknown], original: Unknown, mount: Mount) -> Desired:
    """Returns the mirrors of an object of the hub; none of one that is being deleted."""
    if original.metadata.deletion_timestamp:
        return Desired(())
    body = original.body
    base: Json = {name: value for name, value in body.items() if name not in _NOT_CONTENT}
    base["metadata"] = dict(marked_copy(resource.kind, original.metadata, mount.owner, namespace="")["metadata"])
    made = rewritten(kind.rewrites, body, base, worker_namespace=mount.namespace_of)
    bodies = [_completed(each, resource, original, mount, item) for item, each in sorted(made.bodies.items())]
    return Desired(bodies, made.refused)


def _completed(body: Json, resource: Resource[Unknown], original: Unknown, mount: Mount, item: str) -> Json:
    key = mount.mirror_key(original.key, item)
    origin = {keys.VIRTUAL_NAME: original.metadata.name, keys.VIRTUAL_NAMESPACE: original.metadata.namespace}
    labels = _texts(body["metadata"].get("labels"))
    annotations = _texts(body["metadata"].get("annotations"))
    expected = keys.ExpectedMetadata(labels, annotations).encode()
    annotations |= {keys.EXPECTED_METADATA: expected}
    metadata: Json = {
        "name": key.name,
        "labels": {**labels, **mount.owner.labels},
        "annotations": {**annotations, **mount.owner.annotations, **origin},
    }
    if resource.namespaced:
        metadata["namespace"] = key.namespace
    content = {name: value for name, value in body.items() if name not in _NOT_CONTENT}
    made: Json = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}
    metadata["annotations"][keys.APPLIED] = digest_of(made)
    return made


def _texts(found: JsonView | None) -> dict[str, str]:
    return {key: value for key, value in (found or {}).items() if isinstance(value, str)}


def change(live: Unknown, wanted: Json) -> Json | None:
    """Returns the object with which a mirror is replaced; None when it is as desired.

    What the server or a controller of the worker added is kept: fields of the content until the original changes, all else always.
    """
    body, meta = live.body, live.metadata
    applied = keys.APPLIED
    if meta.annotations.get(applied) == wanted["metadata"]["annotations"][applied] and covers(body, wanted):
        return None
    before = keys.ExpectedMetadata.decode(meta.annotations.get(keys.EXPECTED_METADATA, "")) or keys.ExpectedMetadata()
    ours = wanted["metadata"]
    metadata = {
        **ours,
        "labels": _merged(meta.labels, ours["labels"], before=before.labels),
        "annotations": _merged(meta.annotations, ours["annotations"], before=before.annotations),
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        **{name: body["metadata"][name] for name in _OF_OTHERS if body["metadata"].get(name)},
    }
    status = {"status": body["status"]} if body.get("status") else {}
    return {**wanted, "metadata": metadata, **status}


def _merged(live: Mapping[str, str], ours: Mapping[str, str], *, before: Mapping[str, str]) -> dict[str, str]:
    """Returns the entries of others, and ours; those that were ours and are not desired any more are dropped."""
    return {**{key: value for key, value in live.items() if key not in before}, **ours}
