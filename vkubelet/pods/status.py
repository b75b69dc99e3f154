"""Computes the PodStatus to publish from the provider's report and the published status. Pure.

Invariant: conditions of other controllers, the start time and a terminal phase survive; a transition time changes only when the status of
its condition does.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from attrs import frozen

from vkubelet.api.objects import POD_CONDITIONS, Json, JsonView, Pod
from vkubelet.clock import rfc3339
from vkubelet.pods.containers import LISTS, container_statuses, ended, ever_ran
from vkubelet.pods.phase import TERMINAL, by_name, completed_reason, pod_conditions, pod_phase, ready
from vkubelet.provider import PodReport, Waiting

_OWNED = frozenset(
    {"phase", "conditions", "message", "reason", "hostIP", "hostIPs", "podIP", "podIPs", "startTime", "observedGeneration", *LISTS}
)
"""Fields of a PodStatus that the runtime may remove; of the others it writes only what it sets."""

_ADDRESSES = {"podIPs", "hostIPs"}

_RESIZES = frozenset({"PodResizePending", "PodResizeInProgress"})


@frozen
class End:
    """Reason why the runtime makes a pod terminal. `failed` False: Succeeded if all its containers exited with 0, else Failed."""

    reason: str = ""
    message: str = ""
    failed: bool = False
    disrupts: bool = False
    """Whether to set the condition DisruptionTarget (KEP-3329), from which a Job's failure policy knows that the pod was not at fault."""


def compute_status(
    pod: Pod,
    report: PodReport | None,
    *,
    now: datetime,
    host_ips: Sequence[str] = (),
    generation: int = 0,
    waiting: Waiting | None = None,
) -> Json:
    """Returns the status of `pod` for the provider's report; without one its containers wait for the reason `waiting`.

    `generation` is that of the spec that the backend has, 0 if unknown. The status published last is `pod.status`.
    """
    spec, previous = pod.spec, pod.status
    wanted: Json = container_statuses(spec, report, previous=previous, now=now, terminating=pod.terminating, waiting=waiting)
    wanted["phase"] = _phase(spec, wanted, previous, terminating=pod.terminating)
    if wanted["phase"] == previous.get("phase"):
        wanted.update({key: previous[key] for key in ("reason", "message") if key in previous})
    wanted.update(_addresses(spec, previous, report.ips if report is not None else (), host_ips))
    foreign = [c for c in previous.get("conditions", ()) if c["type"] not in POD_CONDITIONS]
    conditions = pod_conditions(spec, wanted, foreign=foreign, has_address="podIP" in wanted)
    resizes = report.conditions if report is not None else None
    conditions += [dict(condition) for condition in resizes or ()]
    ended = _RESIZES - {condition["type"] for condition in resizes} if resizes is not None else frozenset[str]()
    return _settled(previous, _with_generation(wanted, conditions, previous, generation), now=now, dropped=ended)


def _phase(spec: JsonView, wanted: JsonView, previous: JsonView, *, terminating: bool) -> str:
    """Computes the phase; a terminal one is withheld until no container runs any more (status_manager.go, mergePodStatus)."""
    statuses = by_name(wanted)
    phase = pod_phase(spec, statuses, terminating=terminating)
    if phase in TERMINAL and any("running" in status.get("state", {}) for status in statuses.values()):
        return str(previous.get("phase") or "Pending")
    return phase


def adopt_status(pod: Pod, status: JsonView, *, now: datetime, host_ips: Sequence[str] = (), dropped: Collection[str] = ()) -> Json:
    """Adapts a complete PodStatus of the provider's backend to `pod`.

    Conditions of other controllers are kept except for the types `dropped`; readiness gates count.
    """
    spec, previous = pod.spec, pod.status
    wanted: Json = {"phase": "Pending", **status}
    if "hostIP" not in wanted:
        wanted.update({key: value for key, value in _addresses(spec, previous, (), host_ips).items() if key.startswith("hostIP")})
    theirs = {c["type"]: dict(c) for c in status.get("conditions", ())}
    foreign = [c for c in previous.get("conditions", ()) if c["type"] not in theirs]
    if wanted["phase"] in TERMINAL:
        _close(theirs, wanted["phase"])
    elif theirs.get("Ready", {}).get("status") == "True":
        gated = ready(spec, {"status": "True"}, foreign=[*foreign, *theirs.values()])
        theirs["Ready"] = {**theirs["Ready"], **gated}
    wanted["conditions"] = [*theirs.values()]
    wanted["observedGeneration"] = max(status.get("observedGeneration", 0), previous.get("observedGeneration", 0))
    return _settled(previous, wanted, now=now, dropped=dropped)


def end_status(pod: Pod, wanted: JsonView, *, now: datetime, end: End) -> Json:
    """Returns `wanted` as a terminal status: no container runs any more. A failed pod that never ran anything shows no containers."""
    spec, previous = pod.spec, pod.status
    result: Json = {key: value for key, value in wanted.items() if key not in ("reason", "message")}
    if end.failed and not any(ever_ran(status) for status in by_name(wanted).values()):
        result = {key: value for key, value in result.items() if key not in LISTS}
    for name in LISTS:
        if name in result:
            result[name] = [ended(status, now=now) for status in result[name]]
    phase = "Failed" if end.failed else pod_phase(spec, by_name(result), terminating=True)
    result["phase"] = phase if phase in TERMINAL else "Failed"
    result.update({key: value for key, value in (("reason", end.reason), ("message", end.message)) if value})
    conditions = {c["type"]: dict(c) for c in wanted.get("conditions", ())}
    if result["phase"] == "Failed" and conditions.get("Initialized", {}).get("reason") == "PodCompleted":
        del conditions["Initialized"]["reason"]
    for kind in ("Ready", "ContainersReady"):
        # That the pod is terminal is more specific than the reason why it was not ready before.
        conditions.get(kind, {})["status"] = ""
    conditions.setdefault("PodReadyToStartContainers", {"type": "PodReadyToStartContainers"})["status"] = "False"
    _close(conditions, result["phase"])
    if end.disrupts:
        target = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": end.message}
        conditions["DisruptionTarget"] = target
    result["conditions"] = list(conditions.values())
    return _settled(previous, result, now=now)


def _close(conditions: dict[str, Json], phase: str) -> None:
    """Makes a terminal pod not ready, whatever its containers reported last."""
    for kind in ("Ready", "ContainersReady"):
        if conditions.get(kind, {}).get("status") != "False":
            kept = {key: value for key, value in conditions.get(kind, {}).items() if key == "observedGeneration"}
            conditions[kind] = {"type": kind, "status": "False", "reason": completed_reason(phase), **kept}


def _addresses(spec: JsonView, previous: JsonView, pod_ips: Sequence[str], host_ips: Sequence[str]) -> Json:
    """Returns the four address fields.

    A published address stays until another one is reported; host-network pods have the node's addresses.
    """
    if not pod_ips and spec.get("hostNetwork"):
        pod_ips = host_ips
    result: Json = {}
    for single, many, ips in (("hostIP", "hostIPs", host_ips), ("podIP", "podIPs", pod_ips)):
        if ips:
            result.update({single: ips[0], many: [{"ip": ip} for ip in ips]})
        else:
            result.update({key: previous[key] for key in (single, many) if previous.get(key)})
    return result


def _with_generation(wanted: Json, conditions: list[Json], previous: JsonView, generation: int) -> Json:
    """Adds the observed generation, which never decreases (KEP-5067)."""
    observed = max(generation, previous.get("observedGeneration", 0))
    if observed:
        wanted["observedGeneration"] = observed
        conditions = [{**condition, "observedGeneration": observed} for condition in conditions]
    return {**wanted, "conditions": conditions}


def _settled(previous: JsonView, wanted: JsonView, *, now: datetime, dropped: Collection[str] = ()) -> Json:
    """Returns `wanted` with every field that the runtime may not change taken from the published status."""
    result: Json = {key: value for key, value in previous.items() if key not in _OWNED}
    result.update({key: value for key, value in wanted.items() if value is not None})
    if not result.get("observedGeneration"):
        result.pop("observedGeneration", None)
    if previous.get("qosClass"):
        result["qosClass"] = previous["qosClass"]
    result["startTime"] = previous.get("startTime") or wanted.get("startTime") or rfc3339(now)
    result["conditions"] = _merged(previous.get("conditions", ()), wanted.get("conditions", ()), now=now, dropped=dropped)
    return result


def _merged(old: Sequence[JsonView], new: Sequence[JsonView], *, now: datetime, dropped: Collection[str]) -> list[Json]:
    before = {condition["type"]: condition for condition in old}
    result = []
    for condition in new:
        was = before.pop(condition["type"], {})
        moved = rfc3339(now) if was else condition.get("lastTransitionTime") or rfc3339(now)
        unmoved = was.get("status") == condition.get("status") and was.get("lastTransitionTime")
        result.append({**condition, "lastTransitionTime": unmoved or moved})
    return [*result, *(dict(condition) for kind, condition in before.items() if kind not in dropped)]


# --- The difference, as a strategic merge patch ------------------------------------------------------------------------------------------


def redact_status(status: Json, redact: Callable[[str], str]) -> None:
    """Redacts the texts of the status that may quote values given to a provider; a termination message is the program's own."""
    waiting = [each["state"]["waiting"] for kind in LISTS for each in status.get(kind) or () if "waiting" in (each.get("state") or {})]
    for holder in (status, *waiting):
        if holder.get("message"):
            holder["message"] = redact(holder["message"])


def status_patch(
    old: JsonView, new: JsonView, *, uid: str, resource_version: str, annotations: Mapping[str, str] | None = None
) -> Json | None:
    """Returns the patch that turns the published status `old` into `new`, or None if there is nothing to write.

    It applies to exactly this incarnation and version of the pod. `podIPs` and `hostIPs` are replaced completely, because their merge key
    would keep removed addresses; container lists have no merge key and are replaced by the server anyway (k8s.io api core/v1 PodStatus).
    """
    change: Json = {}
    for key in dict.fromkeys([*new, *old]):
        before, after = old.get(key), new.get(key)
        if same(before, after):
            continue
        if key == "conditions":
            _put_if(change, key, _condition_changes(before or (), after or ()))
            if key in change and _is_out_of_order(before or (), after or (), change[key]):
                # Otherwise the conditions of the patch would come before the existing ones.
                change[f"$setElementOrder/{key}"] = [{"type": condition["type"]} for condition in after or ()]
        elif key in _ADDRESSES:
            change[key] = [{"$patch": "replace"}, *(after or ())]
        else:
            change[key] = after
    if not change and not annotations:
        return None
    metadata: Json = {"uid": uid, "resourceVersion": resource_version}
    _put_if(metadata, "annotations", dict(annotations or {}))
    body: Json = {"metadata": metadata}
    _put_if(body, "status", change)
    return body


def _put_if(target: Json, key: str, value: Json | list[Json]) -> None:
    if value:
        target[key] = value


def _condition_changes(old: Sequence[JsonView], new: Sequence[JsonView]) -> list[Json]:
    """Returns changed conditions completely, with null for each field they lose, and removed ones by type."""
    before = {condition["type"]: condition for condition in old}
    changes: list[Json] = []
    for condition in new:
        was = before.pop(condition["type"], {})
        if not same(was, condition):
            changes.append({**{key: None for key in was if key not in condition}, **condition})
    return [*changes, *({"$patch": "delete", "type": kind} for kind in before)]


def _is_out_of_order(old: Sequence[JsonView], new: Sequence[JsonView], changed: Sequence[JsonView]) -> bool:
    """Checks whether merging would order the conditions differently from `new`: the server puts those of a patch first."""
    kept = {condition["type"] for condition in new}
    named = [condition["type"] for condition in changed if condition["type"] in kept]
    rest = [condition["type"] for condition in old if condition["type"] in kept and condition["type"] not in named]
    return [*named, *rest] != [condition["type"] for condition in new]


def same(one: object, other: object) -> bool:
    """Compares two values, equating null with absent: the API server writes some absent times as null."""
    if one == other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return all(same(one.get(key), other.get(key)) for key in one.keys() | other.keys())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return False
