"""What an API server does to an object before it stores it, by resource type (k8s.io/kubernetes, pkg/registry/*/*/strategy.go).

Invariant: `create` and `update` return new objects whose parts are clean and may be shared; they never change what is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.faults.model.kinds import Kind
from tests.faults.model.quality import qos_class

Body = dict[str, Any]
Prepare = Callable[[Body, Body], None]

_META_OF_STATUS: Final = ("deletionTimestamp", "ownerReferences")


def prepare_create(kind: Kind, obj: Body, *, now: str) -> None:
    """Clears fields that only the server sets, and sets them."""
    if kind.generation:
        obj["metadata"]["generation"] = 1
    else:
        obj["metadata"].pop("generation", None)
    if kind.kind == "Pod":
        obj["status"] = {"phase": "Pending", "qosClass": qos_class(obj["spec"])}
        if obj["spec"].get("schedulingGates"):
            gated = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "lastProbeTime": None,
                "lastTransitionTime": now,
            }
            obj["status"]["conditions"] = [{**gated, "message": "Scheduling is blocked due to non-empty scheduling gates"}]
    elif kind.kind == "PersistentVolumeClaim":
        obj["status"] = {"phase": "Pending"}
    elif kind.kind == "PersistentVolume":
        obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": now}
    elif kind.kind == "Namespace":
        obj["status"] = {"phase": "Active"}
        obj["spec"] = {"finalizers": ["kubernetes"]}
    elif "status" in kind.subresources and kind.kind != "Node":
        _reset_status(kind, obj)


def _reset_status(kind: Kind, obj: Body) -> None:
    if kind.custom:
        obj.pop("status", None)
    elif kind.kind == "Service":
        obj["status"] = {"loadBalancer": {}}
    elif kind.kind == "ReplicaSet":
        obj["status"] = {"replicas": 0}
    elif "status" in obj:
        obj["status"] = kind.shape.clean({}, None).get("status", {})


def prepare_update(kind: Kind, new: Body, old: Body, subresource: str, *, now: str) -> None:
    """Takes from the stored object what this request must not change; counts the generation."""
    if subresource == "status":
        _prepare_status(kind, new, old, now=now)
    elif subresource == "ephemeralcontainers":
        _only(new, old, {**old["spec"], **_picked(new["spec"], "ephemeralContainers")})
    elif subresource == "approval":
        # Of a CertificateSigningRequest only the conditions (pkg/registry/certificates/certificates, csrApprovalStrategy).
        conditions = (new.get("status") or {}).get("conditions") or []
        new["spec"], new["status"] = old["spec"], {**(old.get("status") or {}), "conditions": conditions}
    elif subresource == "resize":
        _only(new, old, _resized(new["spec"], old["spec"]))
    elif "status" in kind.subresources:
        if "status" in old:
            new["status"] = old["status"]
        else:
            new.pop("status", None)
    if kind.kind == "CSINode" and not new["spec"].get("drivers"):
        # The binary form in which etcd has it does not distinguish an empty list from none.
        new["spec"] = {**new["spec"], "drivers": None}
    metadata = new["metadata"]
    if "generation" in old["metadata"]:
        metadata["generation"] = old["metadata"]["generation"] + _spec_changed(kind, new, old, subresource)
    else:
        metadata.pop("generation", None)


def _spec_changed(kind: Kind, new: Body, old: Body, subresource: str) -> bool:
    if subresource == "status":
        return False
    if kind.custom:
        return any(new.get(key) != old.get(key) for key in new.keys() | old.keys() if key not in ("metadata", "status"))
    if kind.kind == "Deployment" and new["metadata"].get("annotations") != old["metadata"].get("annotations"):
        return True
    return bool(new.get("spec") != old.get("spec"))


def _picked(spec: Body, *names: str) -> Body:
    return {name: spec[name] for name in names if name in spec}


def _only(new: Body, old: Body, spec: Body) -> None:
    """Keeps all but the spec, as rest.ResetObjectMetaForStatus does with the metadata."""
    new["spec"], new["status"] = spec, old["status"]
    _reset_metadata(new, old)


def _reset_metadata(new: Body, old: Body) -> None:
    for name in ("deletionTimestamp", "generation", "finalizers", "ownerReferences", "labels", "annotations"):
        if name in old["metadata"]:
            new["metadata"][name] = old["metadata"][name]
        else:
            new["metadata"].pop(name, None)


def _resized(new: Body, old: Body) -> Body:
    spec = dict(old)
    for kind in ("containers", "initContainers"):
        was, now = old.get(kind) or [], new.get(kind) or []
        if [each["name"] for each in was] != [each["name"] for each in now]:
            return new
        if was:
            spec[kind] = [_with_resources(before, after) for before, after in zip(was, now, strict=True)]
    return spec


def _with_resources(before: Body, after: Body) -> Body:
    if all(before.get(name) == after.get(name) for name in ("resources", "resizePolicy")):
        return before
    rest = {name: value for name, value in before.items() if name not in ("resources", "resizePolicy")}
    return {**rest, **_picked(after, "resources", "resizePolicy")}


def _prepare_status(kind: Kind, new: Body, old: Body, *, now: str) -> None:
    for name in new.keys() - {"metadata", "status", "kind", "apiVersion"}:
        if name not in old:
            del new[name]
    for name, value in old.items():
        if name not in ("metadata", "status"):
            new[name] = value
    if kind.custom:
        keep = new["metadata"].get("resourceVersion")
        new["metadata"] = {**old["metadata"], **({"resourceVersion": keep} if keep else {})}
    elif kind.kind == "Pod":
        _prepare_pod_status(new, old)
    elif kind.kind == "Node":
        new["status"].pop("config", None)
    elif kind.kind == "PersistentVolume":
        _move_phase(new["status"], old["status"], now)
    elif kind.kind not in ("PersistentVolumeClaim", "PersistentVolume", "Service", "Namespace"):
        _reset_metadata(new, old)


def _move_phase(new: Body, old: Body, now: str) -> None:
    """Sets the time of the last change of a volume's phase, unless the client did."""
    sent, before = new.get("lastPhaseTransitionTime"), old.get("lastPhaseTransitionTime")
    if new.get("phase") != old.get("phase") and sent in (None, before):
        new["lastPhaseTransitionTime"] = now
    elif sent is None and before is not None:
        new["lastPhaseTransitionTime"] = before


def _prepare_pod_status(new: Body, old: Body) -> None:
    for name in _META_OF_STATUS:
        if name in old["metadata"]:
            new["metadata"][name] = old["metadata"][name]
        else:
            new["metadata"].pop(name, None)
    status, before = new["status"], old["status"]
    for name in ("qosClass", "observedGeneration"):
        if not status.get(name) and before.get(name):
            status[name] = before[name]
    generations = {each["type"]: each.get("observedGeneration", 0) for each in reversed(before.get("conditions") or ())}
    if any(generations.get(each["type"]) and not each.get("observedGeneration") for each in status.get("conditions") or ()):
        status["conditions"] = [
            {**each, "observedGeneration": generations[each["type"]]}
            if generations.get(each["type"]) and not each.get("observedGeneration")
            else each
            for each in status["conditions"]
        ]


def grace_period(pod: Body, asked: int | None) -> int:
    """Returns the grace period of the first deletion of a pod: 0 when no kubelet has to stop it."""
    period = asked if asked is not None else pod["spec"].get("terminationGracePeriodSeconds", 0)
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in ("Failed", "Succeeded"):
        period = 0
    return 1 if period < 0 else int(period)
