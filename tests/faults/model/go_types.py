"""Writes `schema.json`, the JSON shape of the API types that the model knows, from the Go sources of k8s.io/api and k8s.io/apimachinery.

Invariant: the schema holds nothing that was typed by hand; a newer Kubernetes needs only another run:

    python -m tests.faults.model.go_types ~/go/pkg/mod/k8s.io/api@v0.34.4 ~/go/pkg/mod/k8s.io/apimachinery@v0.34.4
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SCHEMA = Path(__file__).with_name("schema.json")

# Packages by the prefix of their types in the schema.
_API = {
    "core": "core/v1",
    "coordination": "coordination/v1",
    "apps": "apps/v1",
    "storage": "storage/v1",
    "policy": "policy/v1",
    "authentication": "authentication/v1",
    "authorization": "authorization/v1",
    "rbac": "rbac/v1",
    "scheduling": "scheduling/v1",
    "certificates": "certificates/v1",
    "discovery": "discovery/v1",
    "networking": "networking/v1",
}
_ROOTS = [
    "core.Pod",
    "core.Node",
    "core.ConfigMap",
    "core.Secret",
    "core.Service",
    "core.ServiceAccount",
    "core.Namespace",
    "core.Event",
    "core.PersistentVolumeClaim",
    "core.PersistentVolume",
    "coordination.Lease",
    "apps.ReplicaSet",
    "apps.Deployment",
    "apps.StatefulSet",
    "apps.DaemonSet",
    "storage.CSINode",
    "policy.PodDisruptionBudget",
    "authentication.TokenRequest",
    "authentication.TokenReview",
    "authorization.SelfSubjectAccessReview",
    "authorization.SubjectAccessReview",
    "rbac.Role",
    "rbac.RoleBinding",
    "rbac.ClusterRole",
    "rbac.ClusterRoleBinding",
    "scheduling.PriorityClass",
    "certificates.CertificateSigningRequest",
    "discovery.EndpointSlice",
    "networking.NetworkPolicy",
]
_ALIASES = {"v1": "core", "corev1": "core", "metav1": "meta", "apiv1": "core", "apicorev1": "core"}
_SCALARS = {
    "string": "string",
    "bool": "bool",
    "int": "int",
    "int32": "int",
    "int64": "int",
    "uint32": "int",
    "float64": "float",
    "[]byte": "bytes",
    "resource.Quantity": "quantity",
    "meta.Time": "time",
    "meta.MicroTime": "microtime",
    "intstr.IntOrString": "intstr",
    "types.UID": "string",
    "types.NodeName": "string",
    "runtime.RawExtension": "any",
    "meta.FieldsV1": "any",
}
_DECLARED = re.compile(r"^type (\w+) (.+?)\s*(?://.*)?$")
_FIELD = re.compile(r"^\s+(?:(\w+)\s+)?([\w.\[\]*]+)\s+`(.*)`")
_TAG = re.compile(r'(\w+):"([^"]*)"')


def read_package(prefix: str, directory: Path) -> Iterator[tuple[str, object]]:
    """Yields the types of a package: the fields of a struct, or the name of the type that another one is made of."""
    for source in sorted(directory.glob("*types.go")):
        lines = iter(source.read_text().splitlines())
        for line in lines:
            declared = _DECLARED.match(line)
            if declared is None:
                continue
            name, rest = declared.groups()
            if not rest.startswith("struct"):
                yield f"{prefix}.{name}", _qualified(rest, prefix)
            elif not rest.endswith("}"):
                yield f"{prefix}.{name}", list(_fields(lines, prefix))


def _fields(lines: Iterator[str], prefix: str) -> Iterator[list[str]]:
    for line in lines:
        if line.startswith("}"):
            return
        found = _FIELD.match(line)
        if found is None:
            continue
        kind, tags = _qualified(found.group(2), prefix), dict(_TAG.findall(found.group(3)))
        name, *options = tags["json"].split(",")
        if "inline" in options:
            yield ["", kind]
        elif name != "-":
            flags = "".join(letter for letter, option in (("o", "omitempty"), ("z", "omitzero")) if option in options)
            yield [name, kind, flags, tags.get("patchStrategy", ""), tags.get("patchMergeKey", "")]


def _qualified(go: str, prefix: str) -> str:
    """Returns a Go type as the schema names it."""
    if go in _SCALARS:
        return _SCALARS[go]
    if go.startswith("*"):
        return "*" + _qualified(go[1:], prefix)
    if go.startswith("[]"):
        return "[]" + _qualified(go[2:], prefix)
    if go.startswith("map["):
        return "{}" + _qualified(go.partition("]")[2], prefix)
    package, dot, name = go.rpartition(".")
    full = f"{_ALIASES.get(package, package)}.{name}" if dot else f"{prefix}.{go}"
    return _SCALARS.get(full, full)


def reachable(types: dict[str, object], roots: list[str]) -> dict[str, list[list[str]]]:
    """Returns the structs that the roots consist of; other named types are replaced by what they stand for."""

    def resolved(kind: str) -> str:
        for mark in ("*", "[]", "{}"):
            if kind.startswith(mark):
                return mark + resolved(kind[len(mark) :])
        found = types.get(kind, kind)
        return resolved(found) if isinstance(found, str) and found != kind else kind

    result: dict[str, list[list[str]]] = {}

    def flat(name: str) -> Iterator[list[str]]:
        fields = types[name]
        assert isinstance(fields, list)
        for field in fields:
            kind = resolved(field[1])
            if field[0]:
                yield [field[0], kind, *field[2:]]
            else:
                yield from flat(kind.lstrip("*"))

    def visit(name: str) -> None:
        if name in result or name not in types:
            return
        result[name] = list(flat(name))
        for field in result[name]:
            visit(field[1].lstrip("*[]{}"))

    for root in roots:
        visit(root)
    return result


def main(api: Path, machinery: Path) -> None:
    """Writes the schema."""
    types = dict(read_package("meta", machinery / "pkg/apis/meta/v1"))
    for prefix, directory in _API.items():
        types |= dict(read_package(prefix, api / directory))
    rows = [f"{json.dumps(name)}: {json.dumps(fields, separators=(',', ':'))}" for name, fields in sorted(reachable(types, _ROOTS).items())]
    SCHEMA.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
