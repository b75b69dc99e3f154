"""Computes the mirrors of a Service and its EndpointSlices, and what differs from those that exist. Pure.

Invariant: a mirror selects no pods and exposes nothing: it is of type ClusterIP or ExternalName, without addresses, nodes or objects of
the hub but those of its endpoints. Two calls with equal inputs give equal bodies, so an unchanged Service causes no write.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from attrs import frozen

from kubeocean.copies.bodies import copy_of, mirror_metadata, missing_marks
from kubeocean.model import keys
from kubeocean.worker.cluster import Mount
from vkubelet.api.names import HEADLESS, SERVICE_NAME, SLICE_MANAGED_BY
from vkubelet.api.objects import ENDPOINTSLICES, SERVICES, Json, JsonView, Key, Unknown

MASTER_SERVICE: Final = Key("default", "kubernetes")
_OF_ALIASES: Final = ("type", "externalName", "ports")
"""Fields of a Service of type ExternalName that are compared; the API server sets others."""
_OF_OTHERS: Final = (
    "type",
    "ports",
    "sessionAffinity",
    "sessionAffinityConfig",
    "publishNotReadyAddresses",
    "internalTrafficPolicy",
    "ipFamilyPolicy",
    "ipFamilies",
)
_EXTERNAL, _HEADLESS, _CLUSTER = "ExternalName", "headless", "ClusterIP"
_CONDITIONS: Final = ("ready", "serving", "terminating")
_SLICE_CONTENT: Final = ("addressType", "endpoints", "ports")


@frozen
class Mirror:
    """Desired state of one Service in the worker."""

    service: Json
    slices: Sequence[Json] = ()


def desired(service: Unknown, slices: Iterable[Unknown], mount: Mount) -> Mirror | None:
    """Returns the mirror of a Service and of its EndpointSlices; None when it has none.

    The Service of the API server has none: `spec.apiServerAccess` is how pods in the worker reach it.
    """
    if service.key == MASTER_SERVICE or service.metadata.deletion_timestamp:
        return None
    body = _service(service, mount)
    if body["spec"]["type"] == _EXTERNAL:
        return Mirror(body)
    made = [_slice(each, service.key, mount) for each in slices if not each.metadata.deletion_timestamp]
    return Mirror(body, sorted(made, key=lambda each: str(each["metadata"]["name"])))


def service_of(endpointslice: Unknown) -> Key:
    """Returns the Service of an EndpointSlice of the hub; its name is empty for one of no Service."""
    return Key(endpointslice.metadata.namespace, endpointslice.metadata.labels.get(SERVICE_NAME, ""))


def original_of(mirror: Unknown) -> Key | None:
    """Returns the Service of the hub to which a mirror of either kind belongs; None when it names none."""
    found, service = copy_of(mirror.metadata), mirror.metadata.annotations.get(keys.VIRTUAL_SERVICE)
    return Key(found.namespace, service) if found is not None and service else found


def service_change(live: Unknown, wanted: Json) -> Json | None:
    """Returns the merge patch that makes the mirror of a Service equal to the desired one, None when nothing differs."""
    spec: JsonView = live.body.get("spec") or {}
    ours: JsonView = wanted["spec"]
    compared = _OF_ALIASES if ours["type"] == _EXTERNAL else _OF_OTHERS
    change: Json = {name: ours.get(name) for name in compared if _differs(name, spec, ours)}
    metadata = missing_marks(live.metadata, wanted, prefix="")
    if not (change or metadata):
        return None
    patch: Json = {"metadata": {"uid": live.metadata.uid, "resourceVersion": live.metadata.resource_version, **metadata}}
    return {**patch, "spec": change} if change else patch


def must_replace(live: Unknown, wanted: Json) -> bool:
    """Checks that no update leads to the desired Service: whether it has a cluster address is immutable."""
    return _shape(live.body.get("spec") or {}) != _shape(wanted["spec"])


def slice_differs(live: Unknown, wanted: Json) -> bool:
    """Checks that the mirror of an EndpointSlice differs from the desired one."""
    body = live.body
    return any((body.get(name) or None) != (wanted.get(name) or None) for name in _SLICE_CONTENT) or bool(
        missing_marks(live.metadata, wanted, prefix="")
    )


def is_immutable_change(live: Unknown, wanted: Json) -> bool:
    """Checks that an EndpointSlice has other addresses than an update could give it."""
    return bool(live.body.get("addressType") != wanted["addressType"])


def _service(service: Unknown, mount: Mount) -> Json:
    key, spec = service.key, service.body.get("spec") or {}
    return {
        "apiVersion": SERVICES.api_version,
        "kind": SERVICES.kind,
        "metadata": mirror_metadata(key, mount.service_key(key), mount),
        "spec": _spec(spec),
    }


def _spec(spec: JsonView) -> Json:
    ports = [_service_port(port) for port in spec.get("ports") or ()]
    shape = _shape(spec)
    if shape == _EXTERNAL:
        out: Json = {"type": _EXTERNAL, "externalName": spec.get("externalName", "")}
        return {**out, "ports": ports} if ports else out
    out = {"type": _CLUSTER, "sessionAffinity": spec.get("sessionAffinity") or "None", **_families(spec)}
    # Endpoints of the mirror have no node, so none would count as local.
    out["internalTrafficPolicy"] = "Cluster"
    if ports:
        out["ports"] = ports
    if spec.get("sessionAffinityConfig"):
        out["sessionAffinityConfig"] = spec["sessionAffinityConfig"]
    if spec.get("publishNotReadyAddresses"):
        out["publishNotReadyAddresses"] = True
    if shape == _HEADLESS:
        out["clusterIP"] = "None"
    return out


def _families(spec: JsonView) -> Json:
    """Returns the address families: two where the worker has two, whatever their order in the hub."""
    families = list(spec.get("ipFamilies") or ())
    if len(families) > 1:
        return {"ipFamilyPolicy": "PreferDualStack"}
    return {"ipFamilyPolicy": "SingleStack", **({"ipFamilies": families} if families else {})}


def _service_port(port: JsonView) -> Json:
    out = {name: port[name] for name in ("name", "appProtocol") if port.get(name)}
    target = port.get("targetPort")
    # The name of a container's port means nothing without pods; proxies read the ports of the EndpointSlices.
    return {
        **out,
        "protocol": port.get("protocol") or "TCP",
        "port": port["port"],
        "targetPort": target if isinstance(target, int) and target else port["port"],
    }


def _shape(spec: JsonView) -> str:
    if spec.get("type") == _EXTERNAL:
        return _EXTERNAL
    return _HEADLESS if spec.get("clusterIP") == "None" else _CLUSTER


def _differs(name: str, live: JsonView, wanted: JsonView) -> bool:
    if name == "ipFamilies" and name not in wanted:
        return False
    return bool((live.get(name) or None) != (wanted.get(name) or None))


def _slice(endpointslice: Unknown, service: Key, mount: Mount) -> Json:
    meta, body = endpointslice.metadata, endpointslice.body
    metadata = mirror_metadata(endpointslice.key, mount.copy_key(endpointslice.key), mount)
    metadata["labels"] |= {SERVICE_NAME: mount.service_key(service).name, SLICE_MANAGED_BY: keys.MANAGED}
    if HEADLESS in meta.labels:
        metadata["labels"][HEADLESS] = meta.labels[HEADLESS]
    metadata["annotations"][keys.VIRTUAL_SERVICE] = service.name
    return {
        "apiVersion": ENDPOINTSLICES.api_version,
        "kind": ENDPOINTSLICES.kind,
        "metadata": metadata,
        "addressType": body.get("addressType") or "IPv4",
        "endpoints": [_endpoint(each) for each in body.get("endpoints") or ()],
        "ports": [dict(each) for each in body.get("ports") or ()],
    }


def _endpoint(endpoint: JsonView) -> Json:
    """Returns an endpoint without its node, zone and pod, none of which the worker has."""
    observed: JsonView = endpoint.get("conditions") or {}
    conditions = {name: observed[name] for name in _CONDITIONS if observed.get(name) is not None}
    out: Json = {"addresses": list(endpoint["addresses"]), "conditions": conditions}
    return {**out, "hostname": endpoint["hostname"]} if endpoint.get("hostname") else out
