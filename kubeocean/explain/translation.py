"""Compares a virtual pod with the physical pod into which `pods.translate` translates it.

Invariant: only the paths of fields and the names of objects and images are shown; values of environment variables never are.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from kubeocean.model.identity import Target, propagated
from kubeocean.pods.translate import physical_pod
from vkubelet.api.objects import JsonView, Pod

_SHOWN: Final = frozenset(
    {"image", "secretName", "claimName", "priorityClassName", "hostname", "hostnameOverride", "subdomain", "dnsPolicy", "fieldPath"}
)
_REFERENCES: Final = ("Ref", "configMap", "secret", "imagePullSecrets")


@frozen(kw_only=True)
class Difference:
    """One field that differs: without `virtual` it was added, without `physical` it was dropped; "…" stands for a value not shown."""

    path: str
    virtual: str = ""
    physical: str = ""


_HIDDEN: Final = "…"


def translation(pod: Pod, target: Target) -> list[Difference]:
    """Returns all differences of spec, labels and annotations of the user. Raises PodRejected for a pod that cannot be translated."""
    body = physical_pod(pod, target)
    desired = propagated(pod)
    return [*_dropped_metadata(pod, desired.labels, desired.annotations), *_compared(pod.spec, body["spec"], "spec")]


def _dropped_metadata(pod: Pod, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Iterator[Difference]:
    for kind, mine, kept in (("labels", pod.metadata.labels, labels), ("annotations", pod.metadata.annotations, annotations)):
        for key in sorted(mine.keys() - kept.keys()):
            yield Difference(path=f"metadata.{kind}[{key}]", virtual=_HIDDEN)


def _compared(virtual: object, physical: object, path: str) -> Iterator[Difference]:
    """Yields the differences below a path; lists are compared by the name of their items, or by position."""
    if virtual == physical:
        return
    if isinstance(virtual, Mapping) and isinstance(physical, Mapping):
        for name in (*virtual, *(name for name in physical if name not in virtual)):
            yield from _compared(virtual.get(name), physical.get(name), f"{path}.{name}")
    elif _is_list(virtual) and _is_list(physical):
        before, after = _by_name(virtual), _by_name(physical)
        for name in (*before, *(name for name in after if name not in before)):
            yield from _compared(before.get(name), after.get(name), f"{path}[{name}]")
    elif virtual or physical or virtual is False or physical is False:
        yield Difference(path=path, virtual=_text(virtual, path), physical=_text(physical, path))


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _by_name(items: object) -> dict[str, object]:
    listed: Sequence[object] = items if isinstance(items, Sequence) else ()
    return {str(item["name"]) if isinstance(item, Mapping) and "name" in item else str(at): item for at, item in enumerate(listed)}


def _text(value: object, path: str) -> str:
    if value is None:
        return ""
    parent, _, name = path.rpartition(".")
    of_reference = name == "name" and parent.rpartition(".")[2].partition("[")[0].endswith(_REFERENCES)
    return str(value) if isinstance(value, str | bool | int) and (name in _SHOWN or of_reference or isinstance(value, bool)) else _HIDDEN


def summary(found: Sequence[Difference]) -> JsonView:
    """Groups differences by what happened: dropped, added, changed."""
    return {
        "dropped": [each.path for each in found if not each.physical],
        "added": [each.path for each in found if not each.virtual],
        "changed": [each.path for each in found if each.virtual and each.physical],
    }
