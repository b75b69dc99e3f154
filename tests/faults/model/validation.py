"""Validation of creations and updates, as far as the product can run into it (k8s.io/kubernetes, pkg/apis/core/validation).

Invariant: each function returns the invalid fields in the order of the server; none changes what it is given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from tests.faults.model.custom import CustomShape
from tests.faults.model.kinds import Kind
from tests.faults.model.quality import qos_class
from tests.faults.model.refusals import Cause
from vkubelet.api.quantity import Quantity

Body = dict[str, Any]

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_PART: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_IMMUTABLE: Final = "field is immutable"
_RFC1123: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


def invalid(field: str, value: object, why: str) -> Cause:
    shown = json.dumps(value, separators=(",", ":"))
    return Cause(field, f"Invalid value: {shown}: {why}")


def forbidden(field: str, why: str) -> Cause:
    return Cause(field, f"Forbidden: {why}", "FieldValueForbidden")


def required(field: str, why: str = "") -> Cause:
    return Cause(field, f"Required value: {why}" if why else "Required value", "FieldValueRequired")


def duplicate(field: str, value: object) -> Cause:
    return Cause(field, f"Duplicate value: {json.dumps(value, separators=(',', ':'))}", "FieldValueDuplicate")


def not_supported(field: str, value: str, allowed: list[str]) -> Cause:
    listed = ", ".join(json.dumps(each) for each in sorted(allowed))
    return Cause(field, f'Unsupported value: "{value}": supported values: {listed}', "FieldValueNotSupported")


def on_create(kind: Kind, obj: Body) -> list[Cause]:
    """Returns what is invalid about a new object."""
    if isinstance(kind.shape, CustomShape):
        return [*kind.shape.causes(obj, None), *_name(kind, obj["metadata"].get("name", "")), *_metadata(obj["metadata"])]
    return [*_name(kind, obj["metadata"].get("name", "")), *_metadata(obj["metadata"]), *_content(kind, obj)]


def on_update(kind: Kind, new: Body, old: Body, subresource: str) -> list[Cause]:
    """Returns what is invalid about a change."""
    causes = [*_metadata_update(new["metadata"], old["metadata"])]
    if any(new["metadata"].get(name) is not old["metadata"].get(name) for name in ("labels", "ownerReferences")):
        causes += _metadata(new["metadata"])
    if kind.kind == "Pod":
        if subresource == "status":
            return [*causes, *_pod_status(new, old)]
        if subresource == "ephemeralcontainers":
            return [*causes, *_ephemeral(new["spec"], old["spec"])]
        if subresource == "resize":
            return [*causes, *_resize(new, old)]
        return [*causes, *_content(kind, new), *_pod_update(new["spec"], old["spec"])]
    if isinstance(kind.shape, CustomShape):
        return [*causes, *kind.shape.causes(new, old)]
    causes += _content(kind, new)
    if kind.kind == "Node":
        causes += _node_update(new, old)
    elif kind.kind == "CSINode":
        causes += _drivers(new["spec"], old["spec"])
    elif kind.kind in ("ConfigMap", "Secret"):
        causes += _immutable_data(kind, new, old)
    elif kind.kind == "PersistentVolumeClaim" and subresource != "status":
        causes += _claim_update(new, old)
    return causes


# --- Metadata -----------------------------------------------------------------------------------------------------------------------------


def _name(kind: Kind, name: str) -> Iterator[Cause]:
    if not name:
        yield required("metadata.name", "name or generateName is required")
    elif not _SUBDOMAIN.fullmatch(name) and not kind.group.startswith("rbac"):
        yield invalid("metadata.name", name, _RFC1123)


def _metadata(metadata: Body) -> Iterator[Cause]:
    for key, value in (metadata.get("labels") or {}).items():
        if not _NAME_PART.fullmatch(key.rpartition("/")[2]) or len(key.rpartition("/")[2]) > 63:
            yield invalid("metadata.labels", key, "name part must consist of alphanumeric characters, '-', '_' or '.'")
        if value and (not _NAME_PART.fullmatch(value) or len(value) > 63):
            yield invalid(
                "metadata.labels", value, "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'"
            )
    for each in metadata.get("ownerReferences") or ():
        for name in ("apiVersion", "kind", "name", "uid"):
            if not each.get(name):
                yield invalid(f"metadata.ownerReferences.{name}", "", "must not be empty")
    controllers = [each for each in metadata.get("ownerReferences") or () if each.get("controller")]
    if len(controllers) > 1:
        yield invalid("metadata.ownerReferences", controllers, "Only one reference can have Controller set to true")


def _metadata_update(new: Body, old: Body) -> Iterator[Cause]:
    if "deletionTimestamp" in old:
        added = [each for each in new.get("finalizers") or () if each not in (old.get("finalizers") or ())]
        if added:
            listed = ", ".join(json.dumps(each) for each in sorted(added))
            why = f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}"
            yield forbidden("metadata.finalizers", why)
    for name in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if new.get(name) != old.get(name):
            yield invalid(f"metadata.{name}", new.get(name), _IMMUTABLE)


# --- Content ------------------------------------------------------------------------------------------------------------------------------


def _content(kind: Kind, obj: Body) -> Iterator[Cause]:
    if kind.kind == "Pod":
        yield from _pod_spec(obj["spec"])
    elif kind.kind == "Node":
        yield from _taints(obj["spec"].get("taints") or [], "metadata.taints")
    elif kind.kind == "Lease":
        yield from _lease(obj["spec"])
    elif kind.kind == "Event" and obj.get("eventTime") is None:
        space, namespace = obj["metadata"]["namespace"], obj["involvedObject"].get("namespace", "")
        if space != namespace and not (space == "default" and not namespace):
            yield invalid("involvedObject.namespace", namespace, "does not match event.namespace")


def _pod_spec(spec: Body) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield required("spec.containers")
    names: set[str] = set()
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(kind) or ()):
            path = f"spec.{kind}[{index}]"
            if not container.get("name"):
                yield required(f"{path}.name")
            elif container["name"] in names:
                yield duplicate(f"{path}.name", container["name"])
            if not container.get("image"):
                yield required(f"{path}.image")
            names.add(container.get("name", ""))
            yield from _resources(container.get("resources") or {}, f"{path}.resources")
    yield from _host_ports(spec.get("containers") or [])
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        yield not_supported("spec.restartPolicy", spec.get("restartPolicy", ""), ["Always", "OnFailure", "Never"])
    if spec.get("activeDeadlineSeconds") is not None and not 1 <= spec["activeDeadlineSeconds"] <= 2**31 - 1:
        yield invalid("spec.activeDeadlineSeconds", spec["activeDeadlineSeconds"], "must be between 1 and 2147483647, inclusive")


def _host_ports(containers: list[Body]) -> Iterator[Cause]:
    seen: set[tuple[str, str, int]] = set()
    for index, container in enumerate(containers):
        for number, port in enumerate(container.get("ports") or ()):
            used = port.get("protocol", "TCP"), port.get("hostIP", ""), port.get("hostPort", 0)
            if used in seen:
                yield duplicate(f"spec.containers[{index}].ports[{number}].hostPort", "/".join(map(str, used)))
            if used[2]:
                seen.add(used)


def _resources(resources: Body, path: str) -> Iterator[Cause]:
    limits = resources.get("limits") or {}
    for name, amount in (resources.get("requests") or {}).items():
        if name in limits and Quantity.parse(amount) > Quantity.parse(limits[name]):
            yield invalid(f"{path}.requests", amount, f"must be less than or equal to {name} limit of {limits[name]}")


def _lease(spec: Body) -> Iterator[Cause]:
    if spec.get("leaseDurationSeconds") is not None and spec["leaseDurationSeconds"] <= 0:
        yield invalid("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0")
    if spec.get("leaseTransitions") is not None and spec["leaseTransitions"] < 0:
        yield invalid("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0")


def _taints(taints: list[Body], path: str) -> Iterator[Cause]:
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(taints):
        key, effect = taint.get("key", ""), taint.get("effect", "")
        if not key:
            yield invalid(f"{path}[{index}].key", key, "name part must be non-empty")
        if effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            allowed = ["NoSchedule", "PreferNoSchedule", "NoExecute"]
            yield not_supported(f"{path}[{index}].effect", effect, allowed) if effect else required(f"{path}[{index}].effect")
        if (key, effect) in seen:
            yield duplicate(f"{path}[{index}]", taint)
        seen.add((key, effect))


def _node_update(new: Body, old: Body) -> Iterator[Cause]:
    seen = []
    for index, address in enumerate(new["status"].get("addresses") or ()):
        if address in seen:
            yield duplicate(f"status.addresses[{index}]", address)
        seen.append(address)
    for name, shown in (("podCIDRs", "podCIDR"), ("providerID", "providerID")):
        if old["spec"].get(name) and new["spec"].get(name) != old["spec"][name]:
            yield forbidden(f"spec.{name}", f'node updates may not change {shown} except from "" to valid')


def _drivers(new: Body, old: Body) -> Iterator[Cause]:
    before = {each["name"]: each for each in old.get("drivers") or ()}
    for each in new.get("drivers") or ():
        was = before.get(each["name"])
        if was is not None and was != each:
            yield invalid("spec.drivers", each, _IMMUTABLE)


def _claim_update(new: Body, old: Body) -> Iterator[Cause]:
    spec, before = dict(new["spec"]), old["spec"]
    if not before.get("volumeName"):
        spec.pop("volumeName", None)
    if new["status"].get("phase") == "Bound":
        spec["resources"] = before["resources"]
    if spec != before:
        yield forbidden("spec", "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims")


def _immutable_data(kind: Kind, new: Body, old: Body) -> Iterator[Cause]:
    if kind.kind == "Secret" and new.get("type") != old.get("type"):
        yield invalid("type", new.get("type"), _IMMUTABLE)
    if old.get("immutable"):
        if not new.get("immutable"):
            yield forbidden("immutable", "field is immutable when `immutable` is set")
        for name in ("data", "binaryData"):
            if (new.get(name) or {}) != (old.get(name) or {}):
                yield forbidden(name, "field is immutable when `immutable` is set")


# --- Pods ---------------------------------------------------------------------------------------------------------------------------------


def _pod_update(new: Body, old: Body) -> Iterator[Cause]:
    for kind in ("containers", "initContainers"):
        if len(new.get(kind) or ()) != len(old.get(kind) or ()):
            yield forbidden(f"spec.{kind}", "pod updates may not add or remove containers")
            return
    deadline, before = new.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    if deadline is not None and before is not None and deadline > before:
        yield invalid("spec.activeDeadlineSeconds", deadline, "must be less than or equal to previous value")
        return
    if deadline is None and before is not None:
        yield invalid("spec.activeDeadlineSeconds", None, "must not update from a positive integer to nil value")
    if not all(any(_same_toleration(each, was) for each in new.get("tolerations") or ()) for was in old.get("tolerations") or ()):
        yield forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")
    gates = [each["name"] for each in old.get("schedulingGates") or ()]
    if any(each["name"] not in gates for each in new.get("schedulingGates") or ()):
        yield forbidden("spec.schedulingGates", "only deletion is allowed, but found new scheduling gate")
    if new != old and _munged(new, old) != old:
        yield forbidden("spec", "pod updates may not change fields other than " + _UPDATABLE)


_UPDATABLE: Final = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
    "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def _same_toleration(new: Body, old: Body) -> bool:
    return {**new, "tolerationSeconds": None} == {**old, "tolerationSeconds": None}


def _munged(new: Body, old: Body) -> Body:
    """Returns the new spec with the fields that may change as they were."""
    spec = dict(new)
    for kind in ("containers", "initContainers"):
        if spec.get(kind):
            spec[kind] = [{**each, "image": was["image"]} for each, was in zip(spec[kind], old[kind], strict=True)]
    for name in ("activeDeadlineSeconds", "schedulingGates", "tolerations"):
        if name in old:
            spec[name] = old[name]
        else:
            spec.pop(name, None)
    if old.get("terminationGracePeriodSeconds", 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        spec["terminationGracePeriodSeconds"] = old["terminationGracePeriodSeconds"]
    return spec


def _ephemeral(new: Body, old: Body) -> Iterator[Cause]:
    named = {each["name"]: each for each in new.get("ephemeralContainers") or ()}
    for each in old.get("ephemeralContainers") or ():
        if each["name"] not in named:
            yield forbidden("spec.ephemeralContainers", f'existing ephemeral containers "{each["name"]}" may not be removed\n')
        elif named[each["name"]] != each:
            yield forbidden("spec.ephemeralContainers", f'existing ephemeral containers "{each["name"]}" may not be changed\n')


def _resize(new: Body, old: Body) -> Iterator[Cause]:
    if qos_class(new["spec"]) != old["status"].get("qosClass"):
        yield invalid("spec", old["status"].get("qosClass"), "Pod QOS Class may not change as a result of resizing")
    running = [each for each in old["status"].get("containerStatuses") or () if "running" in (each.get("state") or {})]
    if running and not any("resources" in each for each in running):
        yield forbidden("spec", "Pod running on node without support for resize")


def _pod_status(new: Body, old: Body) -> Iterator[Cause]:
    status, before = new["status"], old["status"]
    if status.get("qosClass") != before.get("qosClass"):
        yield invalid("status.qosClass", status.get("qosClass"), _IMMUTABLE)
    for name in ("containerStatuses", "initContainerStatuses"):
        yield from _state_transitions(name, new, old)
    hosts = status.get("hostIPs")
    if hosts and hosts[0].get("ip") != status.get("hostIP"):
        yield invalid("status.hostIPs[0].ip", hosts[0].get("ip"), "must be equal to `hostIP`")


def _state_transitions(name: str, new: Body, old: Body) -> Iterator[Cause]:
    policy = old["spec"].get("restartPolicy")
    if policy == "Always":
        return
    after = {each["name"]: each for each in new["status"].get(name) or ()}
    sidecars = {each["name"] for each in old["spec"].get("initContainers") or () if each.get("restartPolicy") == "Always"}
    for index, was in enumerate(old["status"].get(name) or ()):
        ended = (was.get("state") or {}).get("terminated")
        now = after.get(was["name"])
        if ended is None or now is None or "terminated" in (now.get("state") or {}):
            continue
        if (policy == "OnFailure" and ended.get("exitCode", 0) != 0) or (name == "initContainerStatuses" and was["name"] in sidecars):
            continue
        yield forbidden(f"status.{name}[{index}].state", "may not be transitioned to non-terminated state")
