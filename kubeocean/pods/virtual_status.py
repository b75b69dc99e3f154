"""Translates the status of a physical pod into the status, annotations and labels of its virtual pod (pure).

Invariant: generations are the hub's: the virtual pod's is reported as observed only when the physical pod reflects the spec that was sent
for it and its kubelet has observed that. Internal data of the two clusters is not visible to users.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kubeocean.model import keys
from kubeocean.model.crds import names_key
from kubeocean.model.identity import is_internal
from kubeocean.model.overrides import patched_keys, virtual_images
from kubeocean.pods.hub_names import status_in_hub_names
from kubeocean.pods.resize import Pending
from vkubelet.api.conditions import get_condition
from vkubelet.api.objects import Pod
from vkubelet.api.shapes import Json, JsonView

_FROM_WORKER: Final = (
    "phase",
    "message",
    "reason",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "startTime",
    "containerStatuses",
    "initContainerStatuses",
    "ephemeralContainerStatuses",
    "resources",
    "allocatedResources",
)
_FROM_HOME: Final = ("qosClass", "nominatedNodeName", "resourceClaimStatuses")
_SCHEDULED: Final = "PodScheduled"
REFUSED: Final = "FailedEphemeralContainer"


def virtual_status(pod: Pod, physical: Pod, *, refused: Mapping[str, str] = MappingProxyType({})) -> Json:
    """Returns the complete status of the virtual pod, without the conditions that other clients set in the hub.

    `refused` are ephemeral containers, by name, that the worker does not have, with the reason: `kubectl debug` shows what they wait for.
    """
    there, home = physical.status, pod.status
    there = status_in_hub_names(there, pod, physical)
    status: Json = {name: there[name] for name in _FROM_WORKER if there.get(name)}
    status |= {name: home[name] for name in _FROM_HOME if home.get(name)}
    status |= _in_the_users_images(status, virtual_images(physical.metadata))
    if refused:
        status["ephemeralContainerStatuses"] = _with_refused(pod, there, refused)
    observed = _observed(pod, physical, there)
    if observed:
        status["observedGeneration"] = observed
    elif home.get("observedGeneration"):
        status["observedGeneration"] = home["observedGeneration"]
    status["conditions"] = _conditions(pod, there, home, observed=observed)
    if pending := Pending.of(physical.metadata):
        # A condition of the worker's kubelet is about an earlier resize, if about any.
        condition = {**pending.condition, **({"observedGeneration": observed} if observed else {})}
        status["conditions"] = [*(each for each in status["conditions"] if each["type"] != condition["type"]), condition]
    return status


def _in_the_users_images(status: JsonView, images: Mapping[str, str]) -> Json:
    """Returns the container statuses with the image of the user's spec where the binding rewrote it; `imageID` is the running image."""
    lists = (name for name in status if name.lower().endswith("containerstatuses"))
    return {
        kind: [{**each, "image": images[each["name"]]} if each["name"] in images else each for each in status[kind]]
        for kind in lists
        if images
    }


def _with_refused(pod: Pod, there: JsonView, refused: Mapping[str, str]) -> list[Json]:
    statuses = list(there.get("ephemeralContainerStatuses") or ())
    images = {container["name"]: container.get("image") or "" for container in pod.spec.get("ephemeralContainers") or ()}
    for name in refused.keys() & images.keys() - {status["name"] for status in statuses}:
        waiting = {"reason": REFUSED, "message": refused[name]}
        base = {"name": name, "image": images[name], "imageID": "", "ready": False, "restartCount": 0}
        statuses.append({**base, "state": {"waiting": waiting}})
    return sorted(statuses, key=lambda status: list(images).index(status["name"]) if status["name"] in images else 0)


def virtual_annotations(pod: Pod, physical: Pod, *, allowed: Sequence[str] = ()) -> dict[str, str]:
    """Returns the annotations to write to the virtual pod: the identity of its physical pod, and the allowed ones added to that."""
    place = {
        keys.PHYSICAL_POD_NAMESPACE: physical.metadata.namespace,
        keys.PHYSICAL_POD_NAME: physical.metadata.name,
        keys.PHYSICAL_POD_UID: physical.metadata.uid,
        keys.PHYSICAL_POD_OF: pod.metadata.uid,
    }
    mine = pod.metadata.annotations
    added = _added(physical, "annotations", mine, expected=_expected(physical).annotations, allowed=allowed)
    return added | {key: value for key, value in place.items() if mine.get(key) != value}


def virtual_labels(pod: Pod, physical: Pod, *, allowed: Sequence[str] = ()) -> dict[str, str]:
    """Returns the labels to write to the virtual pod: the allowed ones that were added to the physical pod."""
    return _added(physical, "labels", pod.metadata.labels, expected=_expected(physical).labels, allowed=allowed)


def _expected(physical: Pod) -> keys.ExpectedMetadata:
    text = physical.metadata.annotations.get(keys.EXPECTED_METADATA, "")
    return keys.ExpectedMetadata.decode(text) or keys.ExpectedMetadata()


def _added(physical: Pod, kind: str, home: Mapping[str, str], *, expected: Mapping[str, str], allowed: Sequence[str]) -> dict[str, str]:
    """Returns the entries that the worker added under keys that the binding allows and the user never had.

    Services, controllers and autoscalers of the hub act on labels and annotations of pods, so no others may come from a worker.
    """
    there = physical.metadata.labels if kind == "labels" else physical.metadata.annotations
    known = home.keys() | expected.keys() | patched_keys(physical.metadata, kind)
    return {key: value for key, value in there.items() if key not in known and names_key(allowed, key) and not is_internal(key)}


def _observed(pod: Pod, physical: Pod, there: JsonView) -> int:
    """Returns the generation of the virtual pod that the physical kubelet has observed; 0 while that is not known."""
    sent = physical.metadata.annotations.get(keys.VIRTUAL_GENERATION)
    seen = there.get("observedGeneration")
    is_current = bool(seen) and seen == physical.metadata.generation and sent == str(pod.metadata.generation)
    return pod.metadata.generation if is_current else 0


def _conditions(pod: Pod, there: JsonView, home: JsonView, *, observed: int) -> list[Json]:
    """Returns the hub's PodScheduled first, then the worker's conditions, with Ready computed from the readiness gates of the hub."""
    scheduled = get_condition(home.get("conditions") or (), _SCHEDULED)
    conditions = [scheduled] if scheduled else []
    for condition in there.get("conditions") or ():
        if condition.get("type") != _SCHEDULED:
            conditions.append(_own_count(condition, observed))
    gates = [gate.get("conditionType") for gate in pod.spec.get("readinessGates") or ()]
    return _gated(conditions, gates, home.get("conditions") or ()) if gates else conditions


def _own_count(condition: JsonView, observed: int) -> Json:
    renewed = {name: value for name, value in condition.items() if name != "observedGeneration"}
    if observed and "observedGeneration" in condition:
        renewed["observedGeneration"] = observed
    return renewed


def _gated(conditions: Iterable[Json], gates: Sequence[str], home: Sequence[JsonView]) -> list[Json]:
    """Computes Ready as the kubelet does (KEP-580): it is False until every gate's condition, which is set in the hub, is True."""
    closed = [gate for gate in gates if (get_condition(home, gate) or {}).get("status") != "True"]
    if not closed:
        return list(conditions)
    message = f"corresponding condition of pod readiness gate is not True: {', '.join(closed)}"
    return [
        {**each, "status": "False", "reason": "ReadinessGatesNotReady", "message": message}
        if each["type"] == "Ready" and each.get("status") == "True"
        else each
        for each in conditions
    ]
