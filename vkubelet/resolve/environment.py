"""Computes the environment of one container. Pure.

Invariant: for the same pod and the same objects it is that of the kubelet: `envFrom` in order, then `env` in order, then Services for the
names that are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from vkubelet.api.shapes import JsonView
from vkubelet.resolve.downward import Facts, field_value, resource_value
from vkubelet.resolve.expansion import expand
from vkubelet.resolve.references import Absence, Content, Kind, MissingReferenceError, Objects, Reference


@frozen
class Environment:
    """Variables by name, and the optional ones that are missing."""

    variables: Mapping[str, str]
    absent: Sequence[Absence] = ()


class _Sources:
    """The objects that `env` and `envFrom` name."""

    def __init__(self, objects: Objects, namespace: str) -> None:
        self._objects = objects
        self._namespace = namespace
        self.absent: list[Absence] = []

    def content(self, kind: Kind, source: JsonView) -> Content | None:
        """Returns the content of an object; None: it is optional and missing. Raises MissingReferenceError."""
        reference = Reference(kind, source.get("name") or "")
        found = self._objects.get(reference)
        if found is None:
            self._miss(reference, source)
        return found

    def value(self, kind: Kind, source: JsonView) -> str | None:
        """Returns the value of one key likewise."""
        found = self.content(kind, source)
        value = found.variables().get(source["key"]) if found is not None else None
        if found is not None and value is None:
            self._miss(Reference(kind, source.get("name") or ""), source, key=source["key"])
        return value

    def _miss(self, reference: Reference, source: JsonView, *, key: str = "") -> None:
        absence = Absence(reference, self._namespace, key, bool(source.get("optional")))
        if not absence.optional:
            raise MissingReferenceError(absence)
        self.absent.append(absence)


def environment(container: JsonView, facts: Facts, *, objects: Objects, services: Mapping[str, str]) -> Environment:
    """Computes the environment; `services` are the variables of Services.

    Raises MissingReferenceError, and ValueError for an invalid field.
    """
    sources = _Sources(objects, facts.meta.namespace)
    found = _imported(container, sources)
    for variable in container.get("env") or ():
        value = _value(variable, found, facts=facts, container=container, sources=sources, services=services)
        if value is not None:
            found[variable["name"]] = value
    return Environment({**services, **found}, tuple(sources.absent))


def _imported(container: JsonView, sources: _Sources) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        for kind, field in ((Kind.CONFIGMAP, "configMapRef"), (Kind.SECRET, "secretRef")):
            content = sources.content(kind, source[field]) if source.get(field) is not None else None
            prefix = source.get("prefix") or ""
            found.update({prefix + key: value for key, value in (content.variables() if content is not None else {}).items()})
    return found


def _value(
    variable: JsonView,
    found: Mapping[str, str],
    *,
    facts: Facts,
    container: JsonView,
    sources: _Sources,
    services: Mapping[str, str],
) -> str | None:
    """Returns the value of a variable; None: the variable is omitted."""
    source = variable.get("valueFrom") or {}
    if variable.get("value") or not source:
        return expand(variable.get("value") or "", found, services)
    if "fieldRef" in source:
        return field_value(facts, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return resource_value(facts, source["resourceFieldRef"], container)
    for kind, field in ((Kind.CONFIGMAP, "configMapKeyRef"), (Kind.SECRET, "secretKeyRef")):
        if field in source:
            return sources.value(kind, source[field])
    raise ValueError(f"env {variable['name']}: {', '.join(source)} is not supported here")
