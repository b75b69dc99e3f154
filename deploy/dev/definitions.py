"""Writes the pages of docs/reference that follow from YAML: the fields of both custom resources, and the values of all charts.

Invariant: the sentences of a page are those of the definitions; a field of a custom resource without one is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from vkubelet.api.objects import JsonView

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference"
MADE = "<!-- Made by `make docs` from {source}; change the descriptions there. -->"
_BOUNDS = {
    "enum": "one of {}",
    "default": "default {}",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minItems": "at least {} entries",
    "maxItems": "at most {} entries",
    "maxLength": "at most {} characters",
}
_ITEM, _VALUE = "[]", "{}"


def pages() -> dict[Path, str]:
    """Renders all pages; returns content by file."""
    return {
        PAGES / "clusterbinding.md": definition_page("clusterbindings"),
        PAGES / "resourceleasingpolicy.md": definition_page("resourceleasingpolicies"),
        PAGES / "charts.md": charts_page(),
    }


def definition_page(name: str) -> str:
    """Renders every field of a custom resource with its type, its bounds and its description."""
    source = f"kubeocean/manifests/{name}.yaml"
    spec = yaml.safe_load((ROOT / source).read_text())["spec"]
    version = spec["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    columns = ", ".join(each["name"] for each in version["additionalPrinterColumns"] if not each.get("priority"))
    wide = ", ".join(each["name"] for each in version["additionalPrinterColumns"] if each.get("priority"))
    lines = [
        f"# {spec['names']['kind']}",
        MADE.format(source=f"`{source}`"),
        "",
        schema["description"],
        "",
        f"`apiVersion: {spec['group']}/{version['name']}`, {spec['scope'].lower()}-scoped, short name `{spec['names']['shortNames'][0]}`.",
        f"`kubectl get {spec['names']['plural']}` shows: {columns}{f'; with `-o wide` also: {wide}' if wide else ''}.",
        "`kubectl explain --recursive` prints the same fields. `[]` stands for each entry of a list, `{}` for each value of a map.",
    ]
    for part in ("spec", "status"):
        found = schema["properties"][part]
        lines += ["", f"## {part}", "", "| field | type | meaning |", "|---|---|---|"]
        lines += [row(path, field, required) for path, field, required in fields(found, part)]
        lines += [line for rule in rules(found, part) for line in rule]
    return "\n".join(lines) + "\n"


def fields(schema: JsonView, path: str) -> Iterator[tuple[str, JsonView, bool]]:
    """Yields each field below a schema as its path, its schema, and whether its parent requires it; not those inside of a patch."""
    for name, field in (schema.get("properties") or {}).items():
        here = f"{path}.{name}"
        yield here, field, name in (schema.get("required") or ())
        if name != "podPatch":
            yield from fields(field, here)
            yield from fields(field.get("items") or {}, f"{here}{_ITEM}")
            yield from fields(field.get("additionalProperties") or {}, f"{here}{_VALUE}")


def row(path: str, field: JsonView, required: bool) -> str:
    """Renders a field. Raises KeyError with its path when it has no description."""
    if "description" not in field:
        raise KeyError(f"{path}: no description")
    bounds = [text.format(shown(field[key])) for key, text in _BOUNDS.items() if key in field]
    kind = "; ".join([kind_of(field), *(["required"] if required else []), *bounds])
    return f"| `{path}` | {kind} | {cell(field['description'])} |"


def kind_of(field: JsonView) -> str:
    """Returns the type as YAML names it."""
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    kind = field["type"]
    if kind == "array":
        return f"list of {field['items']['type']}s"
    if kind == "object" and "additionalProperties" in field:
        return "map"
    return {"date-time": "time", "byte": "base64"}.get(field.get("format", ""), kind)


def shown(value: object) -> str:
    return ", ".join(f"`{each}`" for each in value) if isinstance(value, list) else f"`{str(value).lower()}`"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def rules(schema: JsonView, path: str) -> Iterator[list[str]]:
    """Yields the sections on what the API server refuses beyond types and bounds."""
    found = [*messages(schema, path)]
    if found:
        yield ["", f"### Refused in {path}", "", "| field | message |", "|---|---|", *dict.fromkeys(found)]


def messages(schema: JsonView, path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations") or ():
        yield f"| `{path}{rule.get('fieldPath', '')}` | {cell(rule['message'])} |"
    for name, field in (schema.get("properties") or {}).items():
        yield from messages(field, f"{path}.{name}")
        yield from messages(field.get("items") or {}, f"{path}.{name}{_ITEM}")


def charts_page() -> str:
    """Renders every value of all charts with its default and its comment."""
    lines = [
        "# Chart values",
        MADE.format(source="the `values.yaml` of the charts"),
        "",
        "Helm rejects an unknown name and an invalid value. [Install](../lease/install.md) explains which values of the first two charts",
        "to consider, [Join a cluster](../fleet/join.md) those of a fleet.",
    ]
    charts = {
        "kubeocean": "the hub",
        "kubeocean-worker": "each worker cluster",
        "fleet-hub": "the hub of a fleet",
        "fleet-agent": "each cluster of a fleet",
    }
    for name, where in charts.items():
        source = f"deploy/charts/{name}/values.yaml"
        lines += ["", f"## `{name}`, for {where}", "", "| value | default | meaning |", "|---|---|---|"]
        lines += [f"| `{path}` | {default} | {cell(text)} |" for path, default, text in values((ROOT / source).read_text())]
    return "\n".join(lines) + "\n"


def values(text: str) -> Iterator[tuple[str, str, str]]:
    """Yields path, default and comment of each value, and of each section that has a comment; a section has no default."""
    path: list[str] = []
    comments: list[str] = []
    inside = 0
    for line, following in zip(text.splitlines(), [*text.splitlines()[1:], ""], strict=True):
        found = re.match(r"( *)([\w.]+):(?: (.+))?$", line)
        if comment := re.match(r" *# ?(.*)", line):
            comments.append(comment[1])
        elif found and (not inside or len(found[1]) < inside):
            depth = len(found[1]) // 2
            path = [*path[:depth], found[2]]
            is_list = re.match(r" *- ", following) is not None
            inside = len(found[1]) + 1 if is_list else 0
            if found[3] or is_list or comments:
                yield ".".join(path), f"`{found[3]}`" if found[3] else "see the file" if is_list else "", " ".join(comments)
            comments = []
        elif not line.strip():
            comments = []


if __name__ == "__main__":
    for file, text in pages().items():
        file.write_text(text)
