"""Custom resources of the model: pruning, defaults and validation by the schema of a CustomResourceDefinition.

Invariant: rules in CEL (x-kubernetes-validations) are not evaluated; all else of a structural schema is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from tests.faults.model.kinds import Kind
from tests.faults.model.refusals import Cause
from tests.faults.model.shapes import Struct, WrongShape, struct

Body = dict[str, Any]

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}

_BLOCKING: Final = ("FieldValueNotSupported", "FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany", "FieldValueTypeInvalid")
_UNCHECKED: Final = (
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"
)


@lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


class CustomShape:
    """Shape of a custom resource: metadata as for all objects, the rest by its schema."""

    zero = None

    def __init__(self, schema: Body) -> None:
        self._schema = schema
        self._metadata: Struct = struct("meta.ObjectMeta")

    @property
    def properties(self) -> Body:
        """The schema of each member of an object."""
        found: Body = self._schema["properties"]
        return found

    def clean(self, value: Any, known: Any) -> Any:
        """Prunes unknown fields and fills in defaults."""
        if value is known:
            return value
        if not isinstance(value, dict):
            raise WrongShape("not an object")
        old = known if isinstance(known, dict) else {}
        made = {
            key: self._pruned(each, self._schema["properties"][key]) for key, each in value.items() if key in self._schema["properties"]
        }
        made["metadata"] = self._metadata.clean(value.get("metadata") or {}, old.get("metadata"))
        return made

    def _pruned(self, value: Any, schema: Body) -> Any:
        if isinstance(value, dict):
            return self._pruned_object(value, schema)
        if isinstance(value, list):
            items = schema.get("items")
            return [self._pruned(each, items) for each in value] if items else value
        return value

    def _pruned_object(self, value: Body, schema: Body) -> Body:
        properties, more = schema.get("properties", {}), schema.get("additionalProperties")
        keeps = schema.get("x-kubernetes-preserve-unknown-fields")
        made: Body = {}
        for key, each in value.items():
            inner = properties.get(key) or (more if isinstance(more, dict) else None)
            if inner is not None:
                # A null counts as absent.
                if each is not None or inner.get("nullable"):
                    made[key] = self._pruned(each, inner)
            elif keeps or more is True:
                made[key] = each
        for key, inner in properties.items():
            if "default" in inner and key not in made:
                made[key] = inner["default"]
        return made

    def causes(self, obj: Body, old: Body | None) -> list[Cause]:
        """Returns what is invalid; parts that did not change are not judged again."""
        found: list[Cause] = []
        for key in ("spec", "status"):
            schema = self._schema["properties"].get(key)
            if schema is not None and key in obj and (old is None or obj[key] != old.get(key)):
                found += _problems(obj[key], schema, key)
        found += [_required(key, "") for key in self._schema.get("required", ()) if key not in obj]
        if any(cause.reason in _BLOCKING for cause in found):
            found.append(Cause("<nil>", f"Invalid value: null: {_UNCHECKED}"))
        return found


def _required(key: str, path: str) -> Cause:
    return Cause(f"{path}.{key}" if path else key, "Required value", "FieldValueRequired")


def _problems(value: Any, schema: Body, path: str) -> Iterator[Cause]:
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        if value is None and schema.get("nullable"):
            return
        given = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}.get(type(value), "null")
        yield Cause(path, f'Invalid value: "{given}": {path} in body must be of type {kind}: "{given}"', "FieldValueTypeInvalid")
        return
    if isinstance(value, dict):
        yield from _object_problems(value, schema, path)
    elif isinstance(value, list):
        yield from _limits(len(value), schema, path, names=("minItems", "maxItems", "items"))
        for index, each in enumerate(value):
            yield from _problems(each, schema.get("items", {}), f"{path}[{index}]")
        yield from _duplicates(value, schema, path)
    elif isinstance(value, str):
        yield from _limits(len(value), schema, path, names=("minLength", "maxLength", "chars"))
        if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
            yield Cause(path, f"Invalid value: {json.dumps(value)}: {path} in body should match '{schema['pattern']}'")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            yield Cause(path, f"Invalid value: {value}: {path} in body should be greater than or equal to {schema['minimum']}")
        if "maximum" in schema and value > schema["maximum"]:
            yield Cause(path, f"Invalid value: {value}: {path} in body should be less than or equal to {schema['maximum']}")
    if "enum" in schema and value not in schema["enum"]:
        listed = ", ".join(json.dumps(each) for each in schema["enum"])
        yield Cause(path, f"Unsupported value: {json.dumps(value)}: supported values: {listed}", "FieldValueNotSupported")


def _object_problems(value: Body, schema: Body, path: str) -> Iterator[Cause]:
    for key in schema.get("required", ()):
        if key not in value:
            yield _required(key, path)
    more = schema.get("additionalProperties")
    for key, each in value.items():
        inner = schema.get("properties", {}).get(key) or (more if isinstance(more, dict) else None)
        if inner is not None:
            yield from _problems(each, inner, f"{path}.{key}")


def _limits(size: int, schema: Body, path: str, *, names: tuple[str, str, str]) -> Iterator[Cause]:
    least, most, unit = names
    if least in schema and size < schema[least]:
        yield Cause(path, f"Invalid value: {path} in body should be at least {schema[least]} {unit} long")
    if most in schema and size > schema[most]:
        yield Cause(path, f"Too long: may not be more than {schema[most]} {unit}", "FieldValueTooLong")


def _duplicates(value: list[Any], schema: Body, path: str) -> Iterator[Cause]:
    if schema.get("x-kubernetes-list-type") != "map":
        return
    keys = schema["x-kubernetes-list-map-keys"]
    seen: list[Body] = []
    for index, each in enumerate(value):
        key = {name: each.get(name) for name in keys} if isinstance(each, dict) else {}
        if key in seen:
            yield Cause(f"{path}[{index}]", f"Duplicate value: {json.dumps(key, separators=(',', ':'))}", "FieldValueDuplicate")
        seen.append(key)


def kinds_of(definition: Body) -> list[Kind]:
    """Returns the resource types that a CustomResourceDefinition adds."""
    spec = definition["spec"]
    return [
        Kind(
            spec["group"],
            version["name"],
            spec["names"]["plural"],
            spec["names"]["kind"],
            spec["scope"] == "Namespaced",
            CustomShape(version["schema"]["openAPIV3Schema"]),
            subresources=frozenset(version.get("subresources", {})),
            generation=True,
            custom=True,
            unconditional=False,
        )
        for version in spec["versions"]
        if version["served"]
    ]
