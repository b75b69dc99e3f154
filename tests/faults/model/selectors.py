"""Label and field selectors as an API server evaluates them.

Invariant: a selector is parsed once per request or watch; matching allocates nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from tests.faults.model.refusals import bad_request

Body = dict[str, Any]
Check = Callable[[Body], bool]

_SET: Final = re.compile(r"^\s*([^\s!=,()]+)\s+(in|notin)\s+\(([^)]*)\)\s*$")
_POD: Final = {
    "spec.nodeName": "",
    "spec.restartPolicy": "",
    "spec.schedulerName": "",
    "spec.serviceAccountName": "",
    "spec.hostNetwork": "false",
    "status.phase": "",
    "status.podIP": "",
    "status.nominatedNodeName": "",
}
_EVENT: Final = {
    **{f"involvedObject.{name}": "" for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")},
    "reason": "",
    "reportingComponent": "",
    "source": "",
    "type": "",
}
_FIELDS: Final = {
    "Pod": _POD,
    "Event": _EVENT,
    "Secret": {"type": ""},
    "Namespace": {"status.phase": ""},
    "Node": {"spec.unschedulable": "false"},
}


def _split(text: str) -> list[str]:
    """Splits at commas outside of parentheses."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append(text[start:index])
            start = index + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def _labels_of(obj: Body) -> Body:
    found: Body = obj["metadata"].get("labels") or {}
    return found


def _label(part: str) -> Check:
    found = _SET.match(part)
    if found:
        key, operator, listed = found.groups()
        values = {each.strip() for each in listed.split(",")}
        if operator == "in":
            return lambda obj: _labels_of(obj).get(key) in values
        return lambda obj: _labels_of(obj).get(key) not in values
    for sign in ("!=", "==", "="):
        key, equals, value = (each.strip() for each in part.partition(sign))
        if equals:
            return _compares(key, value, negated=sign == "!=")
    if part.startswith("!"):
        return lambda obj: part[1:].strip() not in _labels_of(obj)
    return lambda obj: part in _labels_of(obj)


def _compares(key: str, value: str, *, negated: bool) -> Check:
    if negated:
        return lambda obj: _labels_of(obj).get(key) != value
    return lambda obj: _labels_of(obj).get(key) == value


def _field(part: str, kind: str) -> Check:
    for sign in ("!=", "==", "="):
        path, equals, value = part.partition(sign)
        if equals:
            break
    else:
        raise bad_request(f"invalid field selector: {part!r}")
    known = {"metadata.name": "", "metadata.namespace": "", **_FIELDS.get(kind, {})}
    if path not in known:
        raise bad_request(f"field label not supported: {path}")
    missing, names = known[path], path.split(".")

    def read(obj: Body) -> str:
        found: Any = obj
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        if kind == "Event" and path == "source":
            found = (obj.get("source") or {}).get("component") or obj.get("reportingComponent")
        if isinstance(found, bool):
            return str(found).lower()
        return found or missing

    return (lambda obj: read(obj) != value) if sign == "!=" else lambda obj: read(obj) == value


def selector(labels: str, fields: str, kind: str) -> Check | None:
    """Returns the check of both selectors, None when they select everything. Raises Refusal."""
    checks = [*(_label(part) for part in _split(labels)), *(_field(part, kind) for part in _split(fields))]
    if not checks:
        return None
    if len(checks) == 1:
        return checks[0]
    return lambda obj: all(check(obj) for check in checks)
