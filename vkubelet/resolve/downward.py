"""Downward API: fields of a pod and resources of its containers. Pure.

Invariant: an unknown path is rejected by its name; nothing becomes empty silently.

The paths are documented at "Downward API: available fields".
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Self

from attrs import frozen

from vkubelet.api.objects import JsonView, ObjectMeta, Pod
from vkubelet.api.podspec import PLANNED_CONTAINERS
from vkubelet.api.quantity import ZERO, Quantity

_LIMITED_BY_THE_NODE: Final = ("cpu", "memory", "ephemeral-storage")
_LIMITED_BY_THE_POD: Final = ("cpu", "memory")
_ESCAPES: Final = {"\a": "a", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", "\v": "v", "\\": "\\", '"': '"'}


@frozen(kw_only=True)
class Facts:
    """Facts about a pod at one moment; `spec` is decoded, `allocatable` that of its node; the primary address comes first."""

    meta: ObjectMeta
    spec: JsonView
    pod_ips: Sequence[str] = ()
    host_ips: Sequence[str] = ()
    allocatable: Mapping[str, str] = {}

    @classmethod
    def of(cls, pod: Pod, *, pod_ips: Sequence[str], host_ips: Sequence[str], allocatable: Mapping[str, str]) -> Self:
        """Returns the facts of a pod.

        A pod on its host's network has the host's addresses; one without given addresses has the published ones.
        """
        spec, status = pod.spec, pod.status
        told = tuple(pod_ips) or tuple(each["ip"] for each in status.get("podIPs") or ())
        if spec.get("hostNetwork"):
            told = told or tuple(host_ips)
        return cls(meta=pod.metadata, spec=spec, pod_ips=one_of_each_family(told, host_ips), host_ips=host_ips, allocatable=allocatable)


def one_of_each_family(ips: Sequence[str], host_ips: Sequence[str]) -> tuple[str, ...]:
    """Returns the first address of each family, the family of the node first."""
    six = bool(host_ips) and ":" in host_ips[0]
    firsts = (next((ip for ip in ips if (":" in ip) is family), None) for family in (six, not six))
    return tuple(ip for ip in firsts if ip is not None)


def field_value(facts: Facts, path: str) -> str:
    """Returns the value of a `fieldRef`. Raises ValueError for an invalid path."""
    meta = facts.meta
    values: dict[str, str] = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "spec.nodeName": facts.spec.get("nodeName", ""),
        # Its old name, which the API server still accepts.
        "spec.host": facts.spec.get("nodeName", ""),
        "spec.serviceAccountName": facts.spec.get("serviceAccountName", ""),
        "status.hostIP": next(iter(facts.host_ips), ""),
        "status.hostIPs": ",".join(facts.host_ips),
        "status.podIP": next(iter(facts.pod_ips), ""),
        "status.podIPs": ",".join(facts.pod_ips),
    }
    if path in values:
        return values[path]
    return metadata_value(meta, path)


def metadata_value(meta: ObjectMeta, path: str) -> str:
    """Returns labels and annotations, all or one. Raises ValueError."""
    maps = {"metadata.labels": meta.labels, "metadata.annotations": meta.annotations}
    if path in maps:
        return format_map(maps[path])
    name, bracket, key = path.removesuffix("']").partition("['")
    if path.endswith("']") and bracket and name in maps:
        return maps[name].get(key, "")
    raise ValueError(f"unsupported fieldPath: {path}")


def format_map(entries: Mapping[str, str]) -> str:
    """Formats sorted lines of key="value", quoted as Go does."""
    return "\n".join(f"{key}={_quoted(entries[key])}" for key in sorted(entries))


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return "\\" + _ESCAPES[char]
    if char == " " or unicodedata.category(char)[0] in "LMNPS":
        return char
    code = ord(char)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def resource_value(facts: Facts, reference: JsonView, container: JsonView | None) -> str:
    """Returns the value of a `resourceFieldRef` of `container`, or of the one it names: in divisors, rounded up. Raises ValueError."""
    name = reference.get("containerName") or ""
    container = _container(facts.spec, name) if name else container
    if container is None:
        raise ValueError("resourceFieldRef: containerName is missing")
    kind, _, resource = reference.get("resource", "").partition(".")
    if kind not in ("limits", "requests") or not (resource in _LIMITED_BY_THE_NODE or resource.startswith("hugepages-")):
        raise ValueError(f"unsupported container resource : {reference.get('resource', '')}")
    divisor = Quantity.parse(reference.get("divisor") or "0")
    amount = _amount(facts, container, kind, resource)
    return str(_divided(amount, divisor if divisor else Quantity.of(1), thousandths=resource == "cpu"))


def _divided(amount: Quantity, divisor: Quantity, *, thousandths: bool) -> int:
    if thousandths:
        return -(-amount.milli() // divisor.milli())
    return -(-amount.value() // divisor.value())


def _amount(facts: Facts, container: JsonView, kind: str, resource: str) -> Quantity:
    told = Quantity.parse(((container.get("resources") or {}).get(kind) or {}).get(resource, "0"))
    if told or kind == "requests" or resource not in _LIMITED_BY_THE_NODE:
        return told
    if resource not in facts.allocatable:
        return ZERO
    of_the_pod = ((facts.spec.get("resources") or {}).get("limits") or {}).get(resource, "0")
    own = Quantity.parse(of_the_pod) if resource in _LIMITED_BY_THE_POD else ZERO
    return own or Quantity.parse(facts.allocatable[resource])


def _container(spec: JsonView, name: str) -> JsonView:
    for container in _named(spec, PLANNED_CONTAINERS):
        if container["name"] == name:
            return container
    raise ValueError(f"container {name} not found")


def _named(spec: JsonView, lists: Iterable[str]) -> Iterable[JsonView]:
    return (container for kind in lists for container in spec.get(kind) or ())
