"""Computes the environment of one container. Pure.

Invariant: for the same pod and the same objects it is that of the kubelet: `envFrom` in order, then `env` in order, then Services for the
names that are left.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from vkubelet.api.objects import JsonView
from vkubelet.api.podspec import Kind, Reference
from vkubelet.resolve.downward import Facts, field_value, resource_value
from vkubelet.resolve.references import Absence, Content, MissingReferenceError, Objects

_REFERENCE: Final = re.compile(r"\$(?:(\$)|\(([^)]*)\))")
MASTER_NAMESPACE, MASTER = "default", "kubernetes"


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


def expand(text: str, *scopes: Mapping[str, str]) -> str:
    """Replaces each name by its value in the first of `scopes` that contains it."""

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        return next((scope[match[2]] for scope in scopes if match[2] in scope), match[0])

    return _REFERENCE.sub(value, text)


def expand_all(texts: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Expands a command or its arguments with the environment of their container."""
    return tuple(expand(text, variables) for text in texts)


def expand_path(text: str, variables: Mapping[str, str]) -> str:
    """Expands a `subPathExpr`. Raises ValueError naming the variables that are missing or empty: an incomplete path leads elsewhere."""
    empty = sorted({match[2] for match in _REFERENCE.finditer(text) if not match[1] and not variables.get(match[2])})
    if empty:
        raise ValueError(f"missing value for {', '.join(empty)}")
    return expand(text, variables)


def expand_probe(command: Sequence[str], env: Sequence[JsonView]) -> tuple[str, ...]:
    """Expands the command of an exec probe: with only the literal values of its container's `env`, not expanded; hooks use none."""
    return expand_all(command, {variable["name"]: variable.get("value", "") for variable in env})


def service_variables(services: Iterable[JsonView], *, namespace: str, links: bool) -> dict[str, str]:
    """Returns the variables by name; with `links` of all `services` of the pod's namespace, one of them named `kubernetes` before the
    API server's."""
    chosen: dict[str, JsonView] = {}
    for service in services:
        meta, name = service["metadata"], service["metadata"]["name"]
        if service.get("spec", {}).get("clusterIP", "") in ("", "None"):
            continue
        own = meta["namespace"] == namespace and links
        if (meta["namespace"], name) == (MASTER_NAMESPACE, MASTER):
            chosen.setdefault(name, service)
        elif own:
            chosen[name] = service
    return {name: value for service in chosen.values() for name, value in _variables(service)}


def _variables(service: JsonView) -> Iterator[tuple[str, str]]:
    prefix, address = _upper(service["metadata"]["name"]), service["spec"]["clusterIP"]
    ports = service["spec"].get("ports") or ()
    yield f"{prefix}_SERVICE_HOST", address
    for number, port in enumerate(ports):
        protocol = port.get("protocol") or "TCP"
        url = f"{protocol.lower()}://{_bracketed(address)}:{port['port']}"
        if number == 0:
            yield f"{prefix}_SERVICE_PORT", str(port["port"])
            yield f"{prefix}_PORT", url
        if port.get("name"):
            yield f"{prefix}_SERVICE_PORT_{_upper(port['name'])}", str(port["port"])
        link = f"{prefix}_PORT_{port['port']}_{protocol.upper()}"
        yield link, url
        yield f"{link}_PROTO", protocol.lower()
        yield f"{link}_PORT", str(port["port"])
        yield f"{link}_ADDR", address


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
