"""Manifests as YAML for people: each rule of a role with its reason (pure).

Invariant: the text decodes to the objects it was rendered from.
"""

import json
import re
from collections.abc import Mapping, Sequence

import yaml

from vkubelet.api.objects import Json, JsonView
from vkubelet.api.rbac import Rule

_ROLES = ("Role", "ClusterRole")
_WIDTH = 136
_PLAIN = re.compile(r"[\w./:-]+", re.ASCII)


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)


def commented(objects: Sequence[JsonView], rules: Sequence[Rule], *, notes: Mapping[int, str] | None = None) -> str:
    """Renders YAML documents; each rule of a role has its reason, and the object at each index of `notes` that comment, above it."""
    reasons = {_identity(rule.body, rule.namespace): rule.why for rule in rules}
    return "---\n".join(_comment((notes or {}).get(at, "")) + _document(body, reasons) for at, body in enumerate(objects))


def _document(body: JsonView, reasons: Mapping[object, str]) -> str:
    if body["kind"] not in _ROLES:
        return _plain(body)
    lines = [_plain({key: value for key, value in body.items() if key != "rules"}), "rules:\n"]
    for rule in body["rules"]:
        why = reasons.get(_identity(rule, body["metadata"].get("namespace", "")), "")
        lines.append(_indented(_comment(why) + _rule(rule), "  "))
    return "".join(lines)


def _plain(body: JsonView) -> str:
    return yaml.dump(dict(body), Dumper=_Dumper, sort_keys=False, width=_WIDTH)


def _rule(rule: Json) -> str:
    fields = [f"{key}: {_listed(value)}" for key, value in rule.items()]
    return "- " + "\n  ".join(fields) + "\n"


def _listed(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_scalar, values))}]"


def _scalar(value: str) -> str:
    """Returns a text of a list, quoted where YAML would read it as something else."""
    return value if _PLAIN.fullmatch(value) and yaml.safe_load(value) == value else json.dumps(value)


def _comment(text: str) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())


def _indented(text: str, by: str) -> str:
    return "".join(f"{by}{line}" for line in text.splitlines(keepends=True))


def _identity(rule: JsonView, namespace: str) -> object:
    return (namespace, *(tuple(rule.get(key, ())) for key in ("apiGroups", "resources", "verbs", "resourceNames")))
