"""Objects from the OpenAPI schema of a CustomResourceDefinition: valid ones, values of a wrong type at one place, and unknown fields.

Invariant: what is generated follows from the schema that the charts install; no field is named here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import yaml
from attrs import frozen
from hypothesis import strategies as st

from kubeocean.model.crds import definition
from vkubelet.api.objects import Json, Resource, Unknown

_LONGEST_TEXT = 40
_INTEGERS = (-(2**31), 2**31 - 1)
_FORMATS: dict[str, st.SearchStrategy[Any]] = {
    "byte": st.sampled_from(["", "UEVN", "/w=="]),
    "date-time": st.sampled_from(["2026-01-01T00:00:00Z", "2026-12-31T23:59:59.999999Z"]),
    "ipv4": st.sampled_from(["0.0.0.0", "10.0.0.1", "255.255.255.255"]),
    "ipv6": st.sampled_from(["::", "2001:db8::1"]),
}
WRONG: tuple[Any, ...] = ("text", "", 0, -1, 2**70, 1.5, True, [], ["text"], [[]], {}, {"a": 1}, [None])
"""Values of every type of JSON; null counts as absent."""


def spec_schema(resource: Resource[Unknown]) -> Json:
    """Returns the schema of `spec`."""
    version = yaml.safe_load(definition(resource))["spec"]["versions"][0]
    found: Json = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def values(schema: Json) -> st.SearchStrategy[Any]:
    """Values that the schema accepts, its bounds more often than others; the rules in CEL are not considered."""
    if schema.get("x-kubernetes-int-or-string"):
        return st.integers(max(0, schema.get("minimum", 0)), 2**31) | _text(schema)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "object":
            return _objects(schema)
        case "array":
            most = min(schema.get("maxItems", 3), 3)
            unique = json_key if schema.get("x-kubernetes-list-type") == "set" else None
            return st.lists(values(schema["items"]), min_size=schema.get("minItems", 0), max_size=most, unique_by=unique)
        case "integer":
            low, high = schema.get("minimum", _INTEGERS[0]), schema.get("maximum", _INTEGERS[1])
            return st.sampled_from([low, low + 1, high]) | st.integers(low, high)
        case "boolean":
            return st.booleans()
        case _:
            return _text(schema)


def json_key(value: object) -> str:
    """Returns a text that is the same for equal values."""
    return repr(value)


def _text(schema: Json) -> st.SearchStrategy[Any]:
    formats = [each["format"] for each in schema.get("anyOf", ()) if "format" in each] or [schema.get("format", "")]
    if formats[0] in _FORMATS:
        return st.one_of([_FORMATS[each] for each in formats])
    least, most = schema.get("minLength", 0), min(schema.get("maxLength", _LONGEST_TEXT), _LONGEST_TEXT)
    if "pattern" in schema:
        found = st.from_regex(re.compile(schema["pattern"], re.ASCII), fullmatch=True)
        return found.filter(lambda text: least <= len(text) <= most and "\n" not in text)
    return st.text(st.characters(codec="utf-8"), min_size=least, max_size=most)


def _objects(schema: Json) -> st.SearchStrategy[Any]:
    properties = {name: values(each) for name, each in schema.get("properties", {}).items()}
    required = schema.get("required", ())
    fixed = {name: each for name, each in properties.items() if name in required}
    optional = {name: each for name, each in properties.items() if name not in required}
    found = st.fixed_dictionaries(fixed, optional=optional)
    if "additionalProperties" in schema:
        more = st.dictionaries(st.text(min_size=1, max_size=10), values(schema["additionalProperties"]), max_size=3)
        return st.builds(lambda one, other: {**one, **other}, more, found)
    return found


# --- One wrong value --------------------------------------------------------------------------------------------------------------------


@frozen
class Place:
    """A place of an object: names of fields, and 0 for the first item of a list; and the type that the schema demands there."""

    path: tuple[str | int, ...]
    type: str

    def __str__(self) -> str:
        return "spec" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)

    def accepts(self, value: object) -> bool:
        """Checks the type of a value."""
        kinds: dict[str, type | tuple[type, ...]] = {"object": dict, "array": list, "integer": int, "boolean": bool, "string": str}
        if self.type == "int-or-string":
            # A fraction is read as an amount, although the schema refuses it.
            return isinstance(value, int | float | str) and not isinstance(value, bool)
        return isinstance(value, kinds[self.type]) and (self.type == "boolean" or not isinstance(value, bool))

    def put(self, spec: Json, value: object) -> Json:
        """Returns a copy of the spec with this value here, and what is above it."""
        changed = deepcopy(spec)
        at: Any = changed
        for part, following in zip(self.path, self.path[1:], strict=False):
            at = _entered(at, part, [] if isinstance(following, int) else {})
        _entered(at, self.path[-1], value, replace=True)
        return changed


def _entered(at: Any, part: str | int, value: object, *, replace: bool = False) -> Any:
    """Returns what is at `part`, which becomes `value` where nothing is there."""
    if isinstance(part, int):
        if not at:
            at.append(value)
        elif replace:
            at[part] = value
        return at[part]
    if replace or at.get(part) is None:
        at[part] = value
    return at[part]


def places(schema: Json, path: tuple[str | int, ...] = ()) -> Iterator[Place]:
    """Yields all places below `schema`; what preserves unknown fields belongs to another schema."""
    for name, each in schema.get("properties", {}).items():
        at = (*path, name)
        yield Place(at, "int-or-string" if each.get("x-kubernetes-int-or-string") else each["type"])
        if each.get("x-kubernetes-preserve-unknown-fields"):
            continue
        yield from places(each, at)
        if each.get("type") == "array":
            items = each["items"]
            yield Place((*at, 0), items["type"])
            yield from places(items, (*at, 0))


def with_unknown_fields(value: Any, schema: Json, name: str = "fieldOfTheFuture") -> Any:
    """Returns a copy in which every object of the schema has one more field."""
    if isinstance(value, dict) and "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        known = schema["properties"]
        return {
            name: {"any": ["thing"]},
            **{key: with_unknown_fields(each, known[key]) if key in known else each for key, each in value.items()},
        }
    if isinstance(value, list) and "items" in schema:
        return [with_unknown_fields(each, schema["items"]) for each in value]
    return value
