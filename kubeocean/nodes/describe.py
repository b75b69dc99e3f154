"""Computes the desired virtual node that the runtime declares from a physical Node and its lease. Pure.

Invariant: the result depends only on the arguments and contains no heartbeat, so an unchanged node is described by an equal value.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

from attrs import evolve

from kubeocean.leasing.policy import Decision
from kubeocean.leasing.record import LeaseRecord
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding, names_key
from vkubelet.api import names
from vkubelet.api.objects import Json, JsonView, Node
from vkubelet.api.quantity import format_resources, parse_resources
from vkubelet.clock import parse_rfc3339, rfc3339
from vkubelet.provider import NodeDescription, Taint

_VIRTUAL_TYPES: Final = frozenset({"external", keys.VIRTUAL_NODE_TYPE, "eklet"})

# Written by a controller of each cluster by its own rules: two controllers would overwrite a copy in turns. The last one requests that the
# controller-manager attach volumes: that is done in the worker, for the physical pod, and by one cluster only.
_LOCAL_ANNOTATIONS: Final = frozenset({"node.alpha.kubernetes.io/ttl", names.LAST_APPLIED, names.ATTACH_BY_CONTROLLER})

_RESERVED: Final = ("node-restriction.kubernetes.io", "node-role.kubernetes.io")
"""Domains of labels that only the owner of a cluster gives its nodes: to keep pods off other nodes, and to name roles."""

_CACHED_LABELS: Final = 4096

_RUNTIME: Final = "vkubelet.io/"
"""Prefix of what our own runtime records on a Node; it may serve the nodes of the worker too."""


def eligible(labels: Mapping[str, str]) -> bool:
    """Checks that it is a real node; virtual nodes of any implementation are not leased."""
    types = {labels.get(names.INSTANCE_TYPE), labels.get(names.BETA_INSTANCE_TYPE)}
    return not types & _VIRTUAL_TYPES and labels.get(keys.NODE_TYPE) != keys.VIRTUAL_KUBELET


@lru_cache(_CACHED_LABELS)
def stays_in_worker(label: str) -> bool:
    """Returns whether a label of a physical node stays in the worker, since hub components would trust it as one of the hub's owner."""
    domain = label.partition("/")[0]
    return domain in _RESERVED or domain.endswith(tuple(f".{each}" for each in _RESERVED)) or label.startswith(_RUNTIME)


def describe(
    node: Node, decision: Decision, *, binding: ClusterBinding, prometheus_url: str = "", port: int | None = None
) -> NodeDescription:
    """Computes the virtual node of `node` under a decision with `exists`; `port` is its kubelet port, None while unknown."""
    status = node.status
    info: JsonView = status.get("nodeInfo") or {}
    amounts, (os, arch) = format_resources(decision.amounts), _platform(status)
    return NodeDescription(
        keys.vnode_name(binding.cluster_id, node.metadata.name),
        amounts,
        allocatable=amounts,
        labels=_labels(node, binding, port),
        annotations=_annotations(node, decision, prometheus_url, allowed=binding.from_worker.node_annotations),
        taints=_taints(node, decision, binding),
        conditions=[_condition(each) for each in status.get("conditions") or ()],
        os=os,
        arch=arch,
        info={name: value for name, value in info.items() if isinstance(value, str)},
    )


def stamped(description: NodeDescription, before: NodeDescription | None, *, now: datetime) -> NodeDescription:
    """Adds the time of the last change to the description, which is kept from `before`, the previous description, while nothing differs.

    Conditions do not count: a time that changed with them would be one more change.
    """
    same = before is not None and _compared(before) == _compared(description)
    time = before.annotations.get(keys.LAST_SYNC_TIME) if same and before is not None else None
    return evolve(description, annotations={**description.annotations, keys.LAST_SYNC_TIME: time or rfc3339(now)})


def lease_record(description: NodeDescription | None) -> LeaseRecord | None:
    """Returns the record of the last decision about a node; None without one, as from an earlier version."""
    return LeaseRecord.decode(description.annotations.get(keys.LEASE_RECORD, "")) if description is not None else None


def closed_since(description: NodeDescription | None, record: LeaseRecord | None) -> datetime | None:
    """Returns when the node was closed. A Node without a record is from an earlier version: its grace starts when this one decides."""
    if description is None or record is None:
        return None
    times = (taint.time_added for taint in description.taints if taint.key == keys.TAINT_CLOSED and taint.time_added)
    return next(map(parse_rfc3339, times), None)


def lease_event(before: NodeDescription | None, decision: Decision) -> tuple[str, str] | None:
    """Returns reason and message of the event about a node whose lease a window or a policy changed; None without such a change.

    Amounts change with every pod of the worker and are no event.
    """
    if before is None or decision.deciding is None:
        return None
    policy, earlier = decision.deciding.name, keys.deciding_policy(before.annotations)
    was_closed = any(taint.key == keys.TAINT_CLOSED for taint in before.taints)
    if decision.effect:
        text = f"no time window of policy {policy} is open, so the node takes no new pods; `kubeocean plan` shows when one opens"
        return None if was_closed else ("LeaseClosed", text)
    if was_closed:
        return "LeaseOpened", f"policy {policy} leases the node again"
    if earlier not in ("", policy):
        return "LeaseChanged", f"policy {policy} leases the node instead of policy {earlier}"
    return None


def _compared(description: NodeDescription) -> tuple[object, ...]:
    annotations = {key: value for key, value in description.annotations.items() if key != keys.LAST_SYNC_TIME}
    taints = {(taint.key, taint.effect, taint.value) for taint in description.taints}
    return (description.labels, annotations, taints, parse_resources(description.allocatable))


def _labels(node: Node, binding: ClusterBinding, port: int | None) -> dict[str, str]:
    """Returns all labels of the virtual node, also those that the runtime would add: what is read from a Node of an earlier process must
    compare equal."""
    name, (os, arch) = node.metadata.name, _platform(node.status)
    labels = {
        names.OS: os,
        names.ARCH: arch,
        **{key: value for key, value in node.metadata.labels.items() if not stays_in_worker(key)},
        keys.CLUSTER_BINDING: keys.label_value(binding.name),
        keys.PHYSICAL_CLUSTER_ID: binding.cluster_id,
        keys.PHYSICAL_NODE_NAME: keys.label_value(name),
        keys.PHYSICAL_NODE_UID: node.metadata.uid,
        keys.MANAGED_BY: keys.MANAGED,
        keys.NODE_TYPE: keys.VIRTUAL_KUBELET,
        names.INSTANCE_TYPE: keys.VIRTUAL_NODE_TYPE,
        names.BETA_INSTANCE_TYPE: keys.VIRTUAL_NODE_TYPE,
        names.HOSTNAME: keys.vnode_name(binding.cluster_id, name),
        names.EXCLUDE_FROM_LOAD_BALANCERS: "true",
    }
    # Ours, but only for readers in the worker.
    labels.pop(keys.POLICY_APPLIED, None)
    if address := _first_address(node.status):
        labels[keys.PHYSICAL_NODE_ADDRESS] = keys.label_value(address)
    if port is not None:
        labels[keys.PROXIER_PORT] = str(port)
    return labels


def _platform(status: JsonView) -> tuple[str, str]:
    """Returns the operating system and the architecture."""
    info: JsonView = status.get("nodeInfo") or {}
    return info.get("operatingSystem") or "linux", info.get("architecture") or "amd64"


def _first_address(status: JsonView) -> str:
    return next((each["address"] for each in status.get("addresses") or () if each.get("type") == "InternalIP"), "")


def _annotations(node: Node, decision: Decision, prometheus_url: str, *, allowed: Sequence[str]) -> dict[str, str]:
    """Returns our annotations, and those of the physical node that the binding lists: network plugins, autoscalers and machine controllers
    of the hub act on annotations of nodes.
    """
    annotations = {
        key: value
        for key, value in node.metadata.annotations.items()
        if names_key(allowed, key) and key not in _LOCAL_ANNOTATIONS and not key.startswith((_RUNTIME, keys.DOMAIN))
    }
    annotations |= {
        keys.PHYSICAL_NODE_NAME: node.metadata.name,
        keys.PHYSICAL_NODE_UID: node.metadata.uid,
        keys.POLICIES_APPLIED: ",".join(decision.applied),
        keys.POLICY_DETAILS: decision.details,
    }
    if prometheus_url:
        annotations[keys.PROMETHEUS_URL] = prometheus_url
    return annotations


def _taints(node: Node, decision: Decision, binding: ClusterBinding) -> tuple[Taint, ...]:
    """Returns the physical node's taints, then ours; the default one is the last of those that are permanent."""
    taints = list(_physical_taints(node.spec.get("taints") or ()))
    if not binding.disable_default_taint:
        taints.append(Taint(key=keys.TAINT_VNODE, effect="NoSchedule"))
    if decision.effect:
        since = rfc3339(decision.closed_since) if decision.closed_since else ""
        taints.append(Taint(key=keys.TAINT_CLOSED, effect=decision.effect, value="true", time_added=since))
    return tuple({(taint.key, taint.effect): taint for taint in taints}.values())


def _physical_taints(taints: Iterable[JsonView]) -> Iterable[Taint]:
    for taint in taints:
        if taint["key"] == keys.TAINT_CLOSED:
            continue
        # The hub's own controllers remove the original from a node that is not cordoned in the hub.
        key = keys.TAINT_UNSCHEDULABLE if taint["key"] == names.TAINT_UNSCHEDULABLE else taint["key"]
        yield Taint(key=key, effect=taint["effect"], value=taint.get("value") or "", time_added=taint.get("timeAdded") or "")


def _condition(condition: JsonView) -> Json:
    return {key: value for key, value in condition.items() if key != "lastHeartbeatTime"}
