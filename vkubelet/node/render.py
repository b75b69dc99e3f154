"""Renders a NodeDescription, address and port as the bodies to post and patch. Pure.

Invariant: the result is a function of the inputs; times occur only in conditions, and an unchanged node renders no patch.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from zlib import crc32

from attrs import evolve, frozen

from vkubelet.api import names
from vkubelet.api.objects import Json, JsonView, Node
from vkubelet.api.quantity import Quantity
from vkubelet.api.scheduling import is_extended
from vkubelet.clock import parse_rfc3339, rfc3339
from vkubelet.node.declared import Health
from vkubelet.node.taints import taint_body
from vkubelet.provider import NodeDescription, Taint

RETIRING = Taint("vkubelet.io/retiring", "NoSchedule")
"""Taint of a node that accepts no new pods because its provider withdrew it."""

REPORT_EVERY = timedelta(minutes=6)
"""Interval at which an unchanged status is sent, as with the kubelet's `nodeStatusReportFrequency`, whose default is five minutes. After a
change it is half of it to one and a half, so that nodes that change together are not reported together
(pkg/kubelet/kubelet_node_status.go, calculateDelay)."""

_SKEW = timedelta(minutes=1)
"""A heartbeat this far in the future is not clock skew between machines: our clock was set back, and the status is due."""

KUBELET_VERSION = "v1.34.0-vkubelet"

_HEALTHY_CONDITIONS = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


@frozen
class Endpoint:
    """Published address and port of the kubelet server of one node; `also` are addresses of another family."""

    address: str
    port: int
    also: tuple[str, ...] = ()


@frozen(kw_only=True)
class Wanted:
    """Desired state of a Node, as far as we own it."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    taints: Sequence[Taint]
    conditions: Sequence[JsonView]
    status: JsonView
    provider_id: str = ""


def wanted(node: NodeDescription, endpoint: Endpoint, *, instance: str, health: Health, taints: Sequence[Taint] = ()) -> Wanted:
    """Returns the desired state of the Node for a description; `taints` come before those of the description."""
    labels = {
        "type": "virtual-kubelet",
        names.HOSTNAME: node.name,
        names.OS: node.os,
        names.ARCH: node.arch,
        names.EXCLUDE_FROM_LOAD_BALANCERS: "true",
        **node.labels,
        names.INSTANCE: instance,
    }
    conditions = _conditions(node, health)
    all_taints = (*taints, *node.taints)
    owned = {
        "instance": instance,
        "labels": sorted(labels),
        "annotations": sorted(node.annotations),
        "conditions": sorted(condition["type"] for condition in conditions),
        "taints": sorted({taint.key for taint in all_taints}),
        "resources": sorted({*node.capacity, *node.allocatable}),
    }
    return Wanted(
        name=node.name,
        labels=labels,
        annotations={**node.annotations, names.OWNED: json.dumps(owned, separators=(",", ":"))},
        taints=all_taints,
        conditions=conditions,
        status=_status(node, endpoint),
        provider_id=node.provider_id,
    )


def _status(node: NodeDescription, endpoint: Endpoint) -> Json:
    return {
        "capacity": _amounts(node.capacity),
        "allocatable": _amounts(node.allocatable or node.capacity),
        "addresses": [dict(a) for a in node.addresses] or [_internal(ip) for ip in (endpoint.address, *endpoint.also)],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": endpoint.port}},
        "nodeInfo": {
            "architecture": node.arch,
            "operatingSystem": node.os,
            "kubeletVersion": KUBELET_VERSION,
            "containerRuntimeVersion": "vkubelet://",
            **dict.fromkeys(("bootID", "kernelVersion", "kubeProxyVersion", "machineID", "osImage", "systemUUID"), ""),
            **node.info,
        },
        "features": dict(node.features),
    }


def _internal(ip: str) -> Json:
    return {"type": "InternalIP", "address": ip}


def _amounts(resources: Mapping[str, str]) -> dict[str, str]:
    """Formats amounts as the API server does, so that they compare equal to its responses."""
    return {resource: _canonical(amount) for resource, amount in resources.items()}


def _canonical(amount: str) -> str:
    try:
        return str(Quantity.parse(amount))
    except ValueError:
        # The API server rejects it, and names it.
        return amount


def _conditions(node: NodeDescription, health: Health) -> list[Json]:
    """Returns the provider's conditions with a Ready condition, which is not True when the provider or the ping failed."""
    conditions = [dict(condition) for condition in node.conditions]
    if not conditions:
        conditions = [{"type": kind, "status": "False", "reason": why, "message": text} for kind, why, text in _HEALTHY_CONDITIONS]
    if not any(condition["type"] == "Ready" for condition in conditions):
        text = "kubelet is posting ready status"
        conditions.append({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": text})
    if health.reason:
        conditions = [condition for condition in conditions if condition["type"] != "Ready"]
        conditions.append({"type": "Ready", "status": "False", "reason": health.reason, "message": health.message})
    return conditions


def new_node(node: Wanted) -> Json:
    """Returns the body to POST: marks and all taints, no status, so that the Node cannot be Ready before it is tainted."""
    spec: Json = {"taints": [taint_body(taint) for taint in node.taints]}
    if node.provider_id:
        spec["providerID"] = node.provider_id
    metadata = {"name": node.name, "labels": dict(node.labels), "annotations": dict(node.annotations)}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}


def owning(live: Node, taints: Iterable[Taint]) -> str:
    """Returns the record of what is ours on a Node as it is, with these taints."""
    try:
        note = json.loads(live.metadata.annotations.get(names.OWNED, ""))
    except ValueError:
        note = None
    if not isinstance(note, dict):
        note = {"resources": []}
    return _noted(note, {*names.owned_keys(live).taints, *(taint.key for taint in taints)})


def still_owning(node: Wanted, taints: Collection[str]) -> Wanted:
    """Returns the desired state that still records these taints as ours: if removing them fails, their owner would otherwise be unknown."""
    if not taints:
        return node
    note = json.loads(node.annotations[names.OWNED])
    return evolve(node, annotations={**node.annotations, names.OWNED: _noted(note, {*note["taints"], *taints})})


def _noted(note: JsonView, taints: Collection[str]) -> str:
    return json.dumps({**note, "taints": sorted(taints)}, separators=(",", ":"))


def status_patch(live: Node, node: Wanted, *, now: datetime) -> Json | None:
    """Returns the strategic merge patch for `nodes/{name}/status`, or None when only heartbeat times would change and none is due."""
    owned, node = names.owned_keys(live), with_foreign_resources(live, node)
    metadata = {
        kind: difference
        for kind, difference in (
            ("labels", _map_difference(live.metadata.labels, node.labels, owned.labels)),
            ("annotations", _map_difference(live.metadata.annotations, node.annotations, owned.annotations)),
        )
        if difference
    }
    status = live.status
    change = _status_difference(status, node.status)
    if not (metadata or change or _conditions_differ(status, node, owned) or _report_due(status, node, now)):
        return None
    change["conditions"] = _conditions_patch(status, node, owned, now=now)
    return {"metadata": {"uid": live.metadata.uid, **metadata}, "status": change}


def with_foreign_resources(live: Node, node: Wanted) -> Wanted:
    """Adds the extended resources that other clients advertise in the capacity; as with a kubelet they become allocatable.

    Source: pkg/kubelet/nodestatus/setters.go, MachineInfo; "Advertise Extended Resources for a Node".
    """
    owned = names.owned_keys(live).resources
    capacity = live.status.get("capacity") or {}
    foreign = {name: amount for name, amount in capacity.items() if is_extended(name) and owned is not None and name not in owned}
    if not foreign:
        return node
    resources = {kind: {**foreign, **node.status[kind]} for kind in ("capacity", "allocatable")}
    return evolve(node, status={**node.status, **resources})


def lasting(patch: JsonView) -> Json:
    """Returns the lasting part of a status patch: everything but the conditions, whose heartbeats always differ."""
    metadata = {key: value for key, value in patch["metadata"].items() if key != "uid"}
    status = {key: value for key, value in patch["status"].items() if key != "conditions"}
    return {**({"metadata": metadata} if metadata else {}), **({"status": status} if status else {})}


def is_heartbeat(live: JsonView, patch: JsonView) -> bool:
    """Checks that a status patch repeats the conditions of the Node and changes nothing else."""
    if lasting(patch):
        return False
    have = _by_type(live.get("conditions", ()))
    return all("$patch" not in each and _same(have.get(each["type"]), each) for each in patch["status"]["conditions"])


def _map_difference(live: Mapping[str, str], want: Mapping[str, str], owned: Collection[str]) -> Json:
    change: Json = {key: value for key, value in want.items() if live.get(key) != value}
    change.update({key: None for key in owned if key in live and key not in want})
    return change


def _status_difference(live: JsonView, want: JsonView) -> Json:
    change: Json = {}
    for kind in ("capacity", "allocatable", "features"):
        have = live.get(kind) or {}
        # Foreign resources are part of the desired state; all others are ours, and are removed when they are no longer desired.
        difference = _map_difference(have, want[kind], have)
        if difference:
            change[kind] = difference
    if live.get("addresses", []) != want["addresses"]:
        # The merge key `type` would merge two addresses of one type into one.
        change["addresses"] = [*want["addresses"], {"$patch": "replace"}]
    if live.get("daemonEndpoints") != want["daemonEndpoints"]:
        change["daemonEndpoints"] = want["daemonEndpoints"]
    info = _map_difference(live.get("nodeInfo", {}), want["nodeInfo"], ())
    if info:
        change["nodeInfo"] = info
    return change


def _by_type(conditions: Sequence[JsonView]) -> dict[str, JsonView]:
    return {condition["type"]: condition for condition in conditions}


def _same(live: JsonView | None, want: JsonView) -> bool:
    return live is not None and all(live.get(key, "") == want.get(key, "") for key in ("status", "reason", "message"))


def _dropped(live: JsonView, node: Wanted, owned: names.Owned) -> set[str]:
    return (set(owned.conditions) & set(_by_type(live.get("conditions", ())))) - set(_by_type(node.conditions))


def _conditions_differ(live: JsonView, node: Wanted, owned: names.Owned) -> bool:
    have = _by_type(live.get("conditions", ()))
    return bool(_dropped(live, node, owned)) or any(not _same(have.get(c["type"]), c) for c in node.conditions)


def _report_due(live: JsonView, node: Wanted, now: datetime) -> bool:
    return next_report(live, node, now=now) <= 0


def next_report(live: JsonView, node: Wanted, *, now: datetime) -> float:
    """Returns the seconds until an unchanged status is due again, by the heartbeat of our own conditions."""
    ours = {condition["type"] for condition in node.conditions}
    beats = [c.get("lastHeartbeatTime") or "" for c in live.get("conditions", ()) if c["type"] in ours]
    if not beats or not all(beats):
        return 0.0
    earliest = parse_rfc3339(min(beats)) + REPORT_EVERY / 2
    left = _next_place(node.name, earliest) - now
    return left.total_seconds() if left <= 1.5 * REPORT_EVERY + _SKEW else 0.0


def _next_place(name: str, earliest: datetime) -> datetime:
    """Returns the first time from `earliest` on at which a node of this name is reported: its name determines its place in each interval,
    so nodes stay apart whatever happened to them together, a restart of the process included."""
    every = REPORT_EVERY.total_seconds()
    return earliest + timedelta(seconds=(crc32(name.encode()) - earliest.timestamp()) % every)


def _conditions_patch(live: JsonView, node: Wanted, owned: names.Owned, *, now: datetime) -> list[Json]:
    """Returns all our conditions with a new heartbeat, and removals of those no longer desired; transition times change only with the
    status."""
    have = _by_type(live.get("conditions", ()))
    patch: list[Json] = []
    for condition in node.conditions:
        before = have.get(condition["type"])
        kept = before is not None and before.get("status") == condition["status"] and before.get("lastTransitionTime")
        given = condition.get("lastTransitionTime")
        moved = kept or given or rfc3339(now)
        # A strategic merge keeps what the patch omits.
        cleared = {key: "" for key in ("reason", "message") if before is not None and before.get(key)}
        patch.append({**cleared, **condition, "lastHeartbeatTime": rfc3339(now), "lastTransitionTime": moved})
    patch.extend({"$patch": "delete", "type": kind} for kind in sorted(_dropped(live, node, owned)))
    return patch


def decreases(live: JsonView, node: Wanted) -> bool:
    """Checks whether the allocatable amount of any resource would decrease or disappear."""
    want = node.status["allocatable"]
    for resource, amount in live.get("allocatable", {}).items():
        if resource not in want or Quantity.parse(want[resource]) < Quantity.parse(amount):
            return True
    return False
