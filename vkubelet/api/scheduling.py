"""Reads from a pod what schedulers and kubelets check before it may run: requests, host ports, node affinity, tolerations. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from vkubelet.api.codec import decode_json
from vkubelet.api.memo import by_spec
from vkubelet.api.objects import JsonView
from vkubelet.api.podspec import PLANNED_CONTAINER_STATUSES, PLANNED_CONTAINERS
from vkubelet.api.quantity import Quantity, Resources, add_resources, format_resources, max_resources, parse_resources, sum_resources
from vkubelet.api.selectors import match_node_selector

HostPort = tuple[str, str, int]
"""Address ("0.0.0.0" for all), protocol and port."""

ALL_ADDRESSES = "0.0.0.0"


def effective_requests(spec: JsonView) -> dict[str, Quantity]:
    """Returns what the scheduler reserves for a pod: the maximum of its initialization and its run, plus overhead.

    Sidecars (init containers that restart always) count from their turn on; pod-level requests replace those of the containers. Source:
    k8s.io/component-helpers/resource, `PodRequests`. An amount that cannot be parsed counts as nothing.
    """
    running = sum_resources(_requests(each) for each in spec.get("containers") or ())
    sidecars: Resources = {}
    start: Resources = {}
    for container in spec.get("initContainers") or ():
        own = _requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars = add_resources(sidecars, own)
            start = max_resources(start, sidecars)
        else:
            start = max_resources(start, add_resources(own, sidecars))
    needed = max_resources(add_resources(running, sidecars), start)
    return add_resources({**needed, **_requests(spec)}, _amounts(spec.get("overhead")))


@by_spec
def requests_of(spec_json: bytes) -> Resources:
    """Returns the `effective_requests` of a spec as JSON."""
    return effective_requests(decode_json(spec_json))


def is_resized(status_json: bytes) -> bool:
    """Returns False for a status as JSON by which `allocated_spec` and `reserved_spec` change nothing."""
    return b'"allocatedResources"' in status_json or b'"resources"' in status_json


def allocated_spec(spec: JsonView, status: JsonView) -> JsonView:
    """Returns the spec with the requests that were allocated to its containers, where their statuses show them (KEP-1287)."""
    statuses = (entry for name in PLANNED_CONTAINER_STATUSES for entry in status.get(name) or ())
    granted = {entry["name"]: entry["allocatedResources"] for entry in statuses if entry.get("allocatedResources")}
    if not granted:
        return spec
    lists = {name: [_with_requests(each, granted.get(each["name"])) for each in spec.get(name) or ()] for name in PLANNED_CONTAINERS}
    return {**spec, **lists}


def reserved_spec(spec: JsonView, status: JsonView) -> JsonView:
    """Returns the spec with the requests that the scheduler counts while a resize is in progress or infeasible.

    Of each app container and sidecar the maximum of what it requests, what the kubelet has allocated, and what it runs with; without the
    first when the kubelet found the resize infeasible. Source: k8s.io/component-helpers/resource, `determineContainerReqs` with
    `UseStatusResources` (KEP-1287).
    """
    conditions: Sequence[JsonView] = status.get("conditions") or ()
    refused = any((each.get("type"), each.get("reason")) == ("PodResizePending", "Infeasible") for each in conditions)
    entries = (entry for name in PLANNED_CONTAINER_STATUSES for entry in status.get(name) or ())
    granted = {
        entry["name"]: max_resources(_amounts(entry.get("allocatedResources")), _requests(entry))
        for entry in entries
        if entry.get("resources") is not None
    }

    def reserved(container: JsonView) -> JsonView:
        asked, has = _requests(container), granted.get(container["name"])
        if has is None or has == asked:
            return container
        return _with_requests(container, format_resources(has if refused else max_resources(asked, has)))

    init = [reserved(each) if each.get("restartPolicy") == "Always" else each for each in spec.get("initContainers") or ()]
    return {**spec, "initContainers": init, "containers": [reserved(each) for each in spec.get("containers") or ()]}


def _with_requests(container: JsonView, granted: JsonView | None) -> JsonView:
    return container if granted is None else {**container, "resources": {**(container.get("resources") or {}), "requests": granted}}


def is_extended(resource: str) -> bool:
    """Checks that the resource belongs neither to Kubernetes (cpu, hugepages-2Mi, …) nor to a quota (core/v1, `IsExtendedResourceName`).

    Nodes may not know such a resource.
    """
    return "/" in resource and "kubernetes.io/" not in resource and not resource.startswith("requests.")


def host_ports(spec: JsonView) -> frozenset[HostPort]:
    """Returns the host ports that the containers of a pod request; of init containers only sidecars count (scheduler, NodePorts)."""
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    return frozenset(
        (port.get("hostIP") or ALL_ADDRESSES, port.get("protocol") or "TCP", port["hostPort"])
        for container in (*(spec.get("containers") or ()), *sidecars)
        for port in container.get("ports") or ()
        if port.get("hostPort")
    )


def ports_conflict(wanted: frozenset[HostPort], taken: Iterable[HostPort]) -> bool:
    """Checks for a conflict: protocol and number are equal and so are the addresses, or either is the wildcard address."""
    if not wanted:
        return False
    numbers = {(protocol, port): {address for address, p, n in wanted if (p, n) == (protocol, port)} for _, protocol, port in wanted}
    for address, protocol, port in taken:
        addresses = numbers.get((protocol, port))
        if addresses and (address == ALL_ADDRESSES or ALL_ADDRESSES in addresses or address in addresses):
            return True
    return False


def matches_node(spec: JsonView, *, labels: Mapping[str, str], name: str) -> bool:
    """Checks that the pod's nodeSelector and required node affinity select a node with these labels and this name."""
    selector: Mapping[str, str] = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity: JsonView = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required: JsonView = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = [_with_name(term, name) for term in required.get("nodeSelectorTerms") or ()]
    return match_node_selector({"nodeSelectorTerms": terms}, labels, name)


def _with_name(term: JsonView, name: str) -> JsonView:
    """Returns the term with fields that exclude another node replaced by one that selects this node, which policies require."""
    here = {"key": "metadata.name", "operator": "In", "values": [name]}
    return {**term, "matchFields": [here if _is_another(field, name) else field for field in term.get("matchFields") or ()]}


def _is_another(field: JsonView, name: str) -> bool:
    values: Sequence[str] = field.get("values") or ()
    return (field.get("key"), field.get("operator")) == ("metadata.name", "NotIn") and len(values) == 1 and values[0] != name


def tolerates(tolerations: Iterable[JsonView], taint: JsonView) -> bool:
    """Checks that one of the tolerations matches the taint (core/v1, `ToleratesTaint`)."""
    for each in tolerations:
        if each.get("effect") and each["effect"] != taint.get("effect"):
            continue
        if each.get("key") and each["key"] != taint.get("key"):
            continue
        operator = each.get("operator") or "Equal"
        if operator == "Exists" or (operator == "Equal" and (each.get("value") or "") == (taint.get("value") or "")):
            return True
    return False


def _requests(holder: JsonView) -> dict[str, Quantity]:
    return _amounts((holder.get("resources") or {}).get("requests"))


def _amounts(amounts: Mapping[str, str | int | float] | None) -> dict[str, Quantity]:
    try:
        return parse_resources(amounts or {})
    except ValueError:
        return {}
