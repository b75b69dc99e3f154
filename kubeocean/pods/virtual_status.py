"""Translates the status of a physical pod into the status, annotations and labels of its virtual pod (pure).

Invariant: generations are the hub's: the virtual pod's is reported as observed only when the physical pod reflects the spec that was sent
for it and its kubelet has observed that. Internal data of the two clusters is not visible to users.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

from kubeocean.model import keys
from kubeocean.model.crds import names_key
from kubeocean.model.identity import is_internal
from kubeocean.model.overrides import patched_keys, virtual_images
from kubeocean.model.references import references
from kubeocean.pods.changes import Pending
from vkubelet.api.objects import Json, JsonView, Pod, get_condition
from vkubelet.api.podspec import CONTAINER_STATUSES
from vkubelet.errors import PodRejected

_FROM_WORKER: Final = (
    "phase",
    "message",
    "reason",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "startTime",
    *CONTAINER_STATUSES,
    "resources",
    "allocatedResources",
)
_FROM_HUB: Final = ("qosClass", "nominatedNodeName", "resourceClaimStatuses")
_SCHEDULED: Final = "PodScheduled"
_HASHED: Final = re.compile(r"-[0-9a-f]{32}")
REFUSED: Final = "FailedEphemeralContainer"


def virtual_status(pod: Pod, physical: Pod, *, refused: Mapping[str, str] = MappingProxyType({})) -> Json:
    """Returns the complete status of the virtual pod, without the conditions that other clients set in the hub.

    `refused` are ephemeral containers, by name, that the worker does not have, with the reason: `kubectl debug` shows what they wait for.
    """
    backing, published = physical.status, pod.status
    backing = status_in_hub_names(backing, pod, physical)
    status: Json = {name: backing[name] for name in _FROM_WORKER if backing.get(name)}
    status |= {name: published[name] for name in _FROM_HUB if published.get(name)}
    status |= _in_the_users_images(status, virtual_images(physical.metadata))
    if refused:
        status["ephemeralContainerStatuses"] = _with_refused(pod, backing, refused)
    observed = _observed(pod, physical, backing)
    if observed:
        status["observedGeneration"] = observed
    elif published.get("observedGeneration"):
        status["observedGeneration"] = published["observedGeneration"]
    status["conditions"] = _conditions(pod, backing, published, observed=observed)
    if pending := Pending.of(physical.metadata):
        # A condition of the worker's kubelet is about an earlier resize, if about any.
        condition = {**pending.condition, **({"observedGeneration": observed} if observed else {})}
        status["conditions"] = [*(each for each in status["conditions"] if each["type"] != condition["type"]), condition]
    return status


def _in_the_users_images(status: JsonView, images: Mapping[str, str]) -> Json:
    """Returns the container statuses with the image of the user's spec where the binding rewrote it; `imageID` is the running image."""
    return {
        kind: [{**each, "image": images[each["name"]]} if each["name"] in images else each for each in status[kind]]
        for kind in CONTAINER_STATUSES
        if images and kind in status
    }


def _with_refused(pod: Pod, backing: JsonView, refused: Mapping[str, str]) -> list[Json]:
    statuses = list(backing.get("ephemeralContainerStatuses") or ())
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
    added = _added(physical, "annotations", mine, allowed=allowed)
    return added | {key: value for key, value in place.items() if mine.get(key) != value}


def virtual_labels(pod: Pod, physical: Pod, *, allowed: Sequence[str] = ()) -> dict[str, str]:
    """Returns the labels to write to the virtual pod: the allowed ones that were added to the physical pod."""
    return _added(physical, "labels", pod.metadata.labels, allowed=allowed)


def _expected(physical: Pod) -> keys.ExpectedMetadata:
    text = physical.metadata.annotations.get(keys.EXPECTED_METADATA, "")
    return keys.ExpectedMetadata.decode(text) or keys.ExpectedMetadata()


Kind = Literal["labels", "annotations"]


def _added(physical: Pod, kind: Kind, published: Mapping[str, str], *, allowed: Sequence[str]) -> dict[str, str]:
    """Returns the entries that the worker added under keys that the binding allows and the user never had.

    Services, controllers and autoscalers of the hub act on labels and annotations of pods, so no others may come from a worker.
    """
    if not allowed:
        return {}
    metadata, expected = physical.metadata, _expected(physical)
    backing, sent = (metadata.labels, expected.labels) if kind == "labels" else (metadata.annotations, expected.annotations)
    known = published.keys() | sent.keys() | patched_keys(physical.metadata, kind)
    return {key: value for key, value in backing.items() if key not in known and names_key(allowed, key) and not is_internal(key)}


def _observed(pod: Pod, physical: Pod, backing: JsonView) -> int:
    """Returns the generation of the virtual pod that the physical kubelet has observed; 0 while that is not known."""
    sent = physical.metadata.annotations.get(keys.VIRTUAL_GENERATION)
    seen = backing.get("observedGeneration")
    is_current = bool(seen) and seen == physical.metadata.generation and sent == str(pod.metadata.generation)
    return pod.metadata.generation if is_current else 0


def _conditions(pod: Pod, backing: JsonView, published: JsonView, *, observed: int) -> list[Json]:
    """Returns the hub's PodScheduled first, then the worker's conditions, with Ready computed from the readiness gates of the hub."""
    scheduled = get_condition(published.get("conditions") or (), _SCHEDULED)
    conditions = [scheduled] if scheduled else []
    for condition in backing.get("conditions") or ():
        if condition.get("type") != _SCHEDULED:
            conditions.append(_own_count(condition, observed))
    gates = [gate.get("conditionType") for gate in pod.spec.get("readinessGates") or ()]
    return _gated(conditions, gates, published.get("conditions") or ()) if gates else conditions


def _own_count(condition: JsonView, observed: int) -> Json:
    renewed = {name: value for name, value in condition.items() if name != "observedGeneration"}
    if observed and "observedGeneration" in condition:
        renewed["observedGeneration"] = observed
    return renewed


def _gated(conditions: Iterable[Json], gates: Sequence[str], published: Sequence[JsonView]) -> list[Json]:
    """Computes Ready as the kubelet does (KEP-580): it is False until every gate's condition, which is set in the hub, is True."""
    closed = [gate for gate in gates if (get_condition(published, gate) or {}).get("status") != "True"]
    if not closed:
        return list(conditions)
    message = f"corresponding condition of pod readiness gate is not True: {', '.join(closed)}"
    return [
        {**each, "status": "False", "reason": "ReadinessGatesNotReady", "message": message}
        if each["type"] == "Ready" and each.get("status") == "True"
        else each
        for each in conditions
    ]


# --- Names of the hub in messages of the worker ----------------------------------------------------------------------------------------


def in_hub_names(text: str, pod: Pod, physical: Pod) -> str:
    """Returns the text with hub names in place of the worker's.

    Replaces the names of the pod and its node, of the copies it uses, and of the mount namespace where it is next to a name.
    """
    meta, backing = pod.metadata, physical.metadata
    names = {backing.name: meta.name, backing.uid: meta.uid}
    if physical.node:
        names[physical.node] = pod.node
    if _HASHED.search(text.replace(backing.name, "")):
        names |= _copies(pod)
    for name in sorted((name for name in names if name in text), key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9.-]){re.escape(name)}(?!\.?[A-Za-z0-9]|-)", names[name].replace("\\", r"\\"), text)
    if backing.namespace not in text:
        return text
    namespace = re.escape(backing.namespace)
    beside = rf'(?<![A-Za-z0-9.-]){namespace}(?="?/)|(?<=_){namespace}(?=\()|(?<=namespace ){namespace}\b|(?<=namespace "){namespace}(?=")'
    return re.sub(beside, meta.namespace, text)


def _copies(pod: Pod) -> dict[str, str]:
    meta = pod.metadata
    try:
        named = [reference.name for reference in references(pod).objects]
    except PodRejected:
        return {}
    tokens = {keys.token_secret_name(meta.namespace, meta.name, meta.uid): f"{meta.name}-token"}
    return tokens | {keys.physical_name(meta.namespace, name): name for name in named}


def status_in_hub_names(status: JsonView, pod: Pod, physical: Pod) -> Json:
    """Returns the status with the messages of the pod, its conditions and its waiting containers in hub names.

    What a container wrote before it terminated (`terminated.message`) belongs to its user, and stays.
    """
    renamed: Json = dict(status)
    if text := status.get("message"):
        renamed["message"] = in_hub_names(text, pod, physical)
    renamed["conditions"] = [_renamed(each, pod, physical) for each in status.get("conditions") or ()]
    for kind in status.keys() & set(CONTAINER_STATUSES):
        renamed[kind] = [_waiting_renamed(each, pod, physical) for each in status[kind]]
    return renamed


def _waiting_renamed(entry: JsonView, pod: Pod, physical: Pod) -> JsonView:
    state: JsonView = entry.get("state") or {}
    if not (state.get("waiting") or {}).get("message"):
        return entry
    return {**entry, "state": {**state, "waiting": _renamed(state["waiting"], pod, physical)}}


def _renamed(holder: JsonView, pod: Pod, physical: Pod) -> Json:
    text = holder.get("message")
    return {**holder, "message": in_hub_names(text, pod, physical)} if text else dict(holder)
