"""One pass of those controllers of a cluster that act on deletions: garbage collection, namespaces, protection of volumes.

Invariant: a pass is synchronous and ends when nothing is left to do; a schedule decides when it runs, as late as it likes.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from tests.faults.model.kinds import Kind
from tests.faults.model.refusals import Refusal
from tests.faults.model.server import CONTROLLERS, ApiModel

Body = dict[str, Any]

_MERGE: Final = "application/merge-patch+json"
_ORPHAN, _FOREGROUND = "orphan", "foregroundDeletion"
_PROTECTION: Final = {"PersistentVolumeClaim": "kubernetes.io/pvc-protection", "PersistentVolume": "kubernetes.io/pv-protection"}


def path_of(kind: Kind, body: Body) -> str:
    """Returns the path of an object."""
    metadata = body["metadata"]
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    space = f"/namespaces/{quote(metadata['namespace'], safe='')}" if kind.namespaced else ""
    return f"{root}{space}/{kind.plural}/{quote(metadata['name'], safe=':')}"


def settle(model: ApiModel) -> int:
    """Runs all of them until they have nothing to do; returns the number of requests."""
    total = 0
    while done := collect_garbage(model) + empty_namespaces(model) + release_volumes(model):
        total += done
    return total


def collect_garbage(model: ApiModel) -> int:
    """Deletes objects whose owners are all deleted, and completes foreground and orphaning deletions; returns the number of requests."""
    objects = list(model.everything())
    living = {body["metadata"]["uid"] for _, _, body in objects}
    done = 0
    for kind, _, body in objects:
        metadata = body["metadata"]
        owners = metadata.get("ownerReferences") or ()
        if owners and not any(each["uid"] in living for each in owners) and "deletionTimestamp" not in metadata:
            done += _delete(model, kind, body)
        for finalizer in (_ORPHAN, _FOREGROUND):
            if "deletionTimestamp" in metadata and finalizer in (metadata.get("finalizers") or ()):
                done += _finish(model, kind, body, finalizer)
    return done


def _dependents(model: ApiModel, uid: str) -> list[tuple[Kind, Body]]:
    return [
        (kind, body)
        for kind, _, body in model.everything()
        if any(each["uid"] == uid for each in body["metadata"].get("ownerReferences") or ())
    ]


def _finish(model: ApiModel, kind: Kind, body: Body, finalizer: str) -> int:
    """Orphans or deletes the dependents, then removes the finalizer of the owner once nothing blocks it."""
    uid, done, blocked = body["metadata"]["uid"], 0, False
    for dependent, other in _dependents(model, uid):
        references = other["metadata"]["ownerReferences"]
        if finalizer == _ORPHAN:
            left = [each for each in references if each["uid"] != uid]
            done += _patch(model, dependent, other, {"ownerReferences": left})
        elif "deletionTimestamp" not in other["metadata"]:
            done += _delete(model, dependent, other)
        blocks = finalizer == _FOREGROUND and any(each["uid"] == uid and each.get("blockOwnerDeletion") for each in references)
        blocked = blocked or (
            blocks and model.get(dependent.group, dependent.version, dependent.plural, *_key(dependent, other)) is not None
        )
    if not blocked:
        left = [each for each in body["metadata"]["finalizers"] if each != finalizer]
        done += _patch(model, kind, body, {"finalizers": left})
    return done


def _key(kind: Kind, body: Body) -> tuple[str, str]:
    return (body["metadata"]["namespace"] if kind.namespaced else "", body["metadata"]["name"])


def _delete(model: ApiModel, kind: Kind, body: Body) -> int:
    options = {"preconditions": {"uid": body["metadata"]["uid"]}, "propagationPolicy": "Background"}
    return _try(model, "DELETE", path_of(kind, body), options)


def _patch(model: ApiModel, kind: Kind, body: Body, change: Body) -> int:
    return _try(model, "PATCH", path_of(kind, body), {"metadata": {"uid": body["metadata"]["uid"], **change}})


def _try(model: ApiModel, method: str, path: str, body: Body) -> int:
    """Sends a request; one that another user made superfluous is no error."""
    before = model.version
    try:
        model.call(method, path, body, user=CONTROLLERS, content_type=_MERGE)
    except Refusal as refusal:
        if refusal.code not in (404, 409):
            raise
    return int(model.version != before)


def empty_namespaces(model: ApiModel) -> int:
    """Deletes what is in terminating namespaces, and those that are empty; returns the number of requests."""
    done = 0
    for space in model.objects("", "v1", "namespaces"):
        if "deletionTimestamp" not in space["metadata"]:
            continue
        name = space["metadata"]["name"]
        inside = [(kind, body) for kind, key, body in model.everything() if key[0] == name]
        for kind, body in inside:
            if "deletionTimestamp" not in body["metadata"]:
                done += _delete(model, kind, body)
        if not inside:
            model.finalize(name, user=CONTROLLERS)
            done += 1
    return done


def release_volumes(model: ApiModel) -> int:
    """Removes the protection of deleted claims that no pod uses, and of deleted volumes without a claim; returns the number of requests."""
    pods = [pod for pod in model.objects("", "v1", "pods") if pod["status"].get("phase") not in ("Succeeded", "Failed")]
    used = {
        (pod["metadata"]["namespace"], volume["persistentVolumeClaim"]["claimName"])
        for pod in pods
        for volume in pod["spec"].get("volumes") or ()
        if "persistentVolumeClaim" in volume
    }
    done = 0
    for plural in ("persistentvolumeclaims", "persistentvolumes"):
        kind = model.kind("", "v1", plural)
        for body in model.objects("", "v1", plural):
            finalizers = body["metadata"].get("finalizers") or []
            protection = _PROTECTION[kind.kind]
            busy = _key(kind, body) in used if kind.namespaced else body["status"].get("phase") == "Bound"
            if "deletionTimestamp" in body["metadata"] and protection in finalizers and not busy:
                done += _patch(model, kind, body, {"finalizers": [each for each in finalizers if each != protection]})
    return done
