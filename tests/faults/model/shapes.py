"""Brings objects into the form in which an API server stores and returns them: fields as in the Go types, defaults filled in.

Invariant: what is clean stays the same object, so a part that a patch left alone costs nothing and is shared with the stored object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

from vkubelet.api.quantity import Quantity

Body = dict[str, Any]
Default = Callable[[Body], None]

_SECONDS: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_MICROSECONDS: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class WrongShape(Exception):
    """A value has another JSON type than its field."""


class Shape(Protocol):
    """Type of a field. `zero` is what Go writes for a value that was not set; `merge_key` and `merges` control strategic merge patches."""

    zero: Any

    def clean(self, value: Any, known: Any) -> Any:
        """Returns the value as it is stored; `known` is the stored one, whose parts are clean. Raises WrongShape."""
        ...


class Scalar:
    """Text, number or boolean."""

    def __init__(self, kinds: tuple[type, ...], zero: Any, read: Callable[[Any], Any] | None = None) -> None:
        self._kinds = kinds
        self._usual = kinds[0]
        self._read = read
        self.zero = zero

    def clean(self, value: Any, known: Any) -> Any:
        if type(value) is self._usual and self._read is None:
            return value
        if not isinstance(value, self._kinds) or (isinstance(value, bool) and bool not in self._kinds):
            raise WrongShape(f"{value!r} is not {' or '.join(kind.__name__ for kind in self._kinds)}")
        return value if self._read is None else self._read(value)


class Anything:
    """A value whose form the server does not know."""

    zero = None

    def clean(self, value: Any, known: Any) -> Any:
        return value


class ListOf:
    """A list."""

    zero = None

    def __init__(self, item: Shape) -> None:
        self.item = item

    def clean(self, value: Any, known: Any) -> Any:
        if value is known:
            return value
        if not isinstance(value, list):
            raise WrongShape(f"{value!r} is not a list")
        item = self.item
        old = known if isinstance(known, list) else ()
        # Items that a patch left alone are the stored ones, at the same place or after what was inserted or removed.
        stored = {id(each) for each in old}
        return [each if id(each) in stored else item.zero if each is None else item.clean(each, None) for each in value]


class MapOf:
    """A map by text."""

    zero = None

    def __init__(self, value: Shape) -> None:
        self.value = value

    def clean(self, value: Any, known: Any) -> Any:
        if value is known:
            return value
        if not isinstance(value, dict):
            raise WrongShape(f"{value!r} is not an object")
        shape = self.value
        return {key: shape.zero if each is None else shape.clean(each, None) for key, each in value.items()}


class Field:
    """A field of a struct: when it is omitted, and how a strategic merge patch merges it."""

    def __init__(self, kind: str, flags: str, strategy: str, merge_key: str) -> None:
        self.pointer = kind.startswith("*")
        self.shape: Shape = _shape(kind.removeprefix("*"))
        struct = isinstance(self.shape, Struct)
        omits = "o" in flags or "z" in flags
        # Go omits neither structs nor times that are empty, unless a pointer to them is nil.
        timed = kind in ("time", "microtime", "quantity", "intstr") and "z" not in flags
        self.omitted_when_zero = omits and not self.pointer and not struct and not timed
        self.always = not self.pointer and (not omits or struct or timed)
        self.null_when_nil = self.pointer and not omits
        self.strategy = strategy.split(",")
        self.merge_key = merge_key


class Struct:
    """A Go struct: unknown fields are dropped; `default` fills in what is missing."""

    zero: Any = {}

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: dict[str, Field] = {}
        self.default: Default | None = None
        self._always: list[tuple[str, Field]] = []

    def complete(self, rows: list[list[str]]) -> None:
        """Adds the fields; separately, because types refer to themselves."""
        self.fields = {name: Field(kind, flags, strategy, key) for name, kind, flags, strategy, key in rows}
        self._always = [(name, field) for name, field in self.fields.items() if field.always or field.null_when_nil]

    def clean(self, value: Any, known: Any) -> Any:
        if value is known:
            return value
        if not isinstance(value, dict):
            raise WrongShape(f"{value!r} is not an object ({self.name})")
        old: Mapping[str, Any] = known if isinstance(known, dict) else {}
        fields = self.fields
        made: Body = {}
        for key, each in value.items():
            field = fields.get(key)
            if field is None or each is None:
                continue
            was = old.get(key)
            kept = each if each is was and was is not None else field.shape.clean(each, was)
            if kept or not field.omitted_when_zero:
                made[key] = kept
        for key, field in self._always:
            if key not in made:
                made[key] = field.shape.clean({}, None) if isinstance(field.shape, Struct) and not field.pointer else field.shape.zero
                if field.pointer:
                    made[key] = None
        if self.default is not None:
            self.default(made)
        return made


@lru_cache(maxsize=4096)
def _quantity(value: str | int | float) -> str:
    try:
        return str(Quantity.parse(value))
    except ValueError as error:
        raise WrongShape(f"{value!r} is not a quantity") from error


def _time(value: str) -> str:
    return value if _SECONDS.fullmatch(value) else _instant(value).strftime("%Y-%m-%dT%H:%M:%SZ")


def _microtime(value: str) -> str:
    return value if _MICROSECONDS.fullmatch(value) else _instant(value).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _instant(value: str) -> datetime:
    try:
        return datetime.fromisoformat(value).astimezone(UTC)
    except ValueError as error:
        raise WrongShape(f"{value!r} is not a time") from error


_SCALARS: Final[dict[str, Shape]] = {
    "string": Scalar((str,), ""),
    "bool": Scalar((bool,), False),
    "int": Scalar((int,), 0),
    "float": Scalar((int, float), 0),
    "bytes": Scalar((str,), None),
    "quantity": Scalar((str, int, float), "0", _quantity),
    "time": Scalar((str,), None, _time),
    "microtime": Scalar((str,), None, _microtime),
    "intstr": Scalar((str, int), 0),
    "any": Anything(),
}
_structs: Final[dict[str, Struct]] = {}


def _shape(kind: str) -> Shape:
    if kind.startswith("[]"):
        return ListOf(_shape(kind[2:]))
    if kind.startswith("{}"):
        return MapOf(_shape(kind[2:]))
    if kind.startswith("*"):
        return _shape(kind[1:])
    return _SCALARS.get(kind) or _structs[kind]


def _load() -> None:
    schema = json.loads(Path(__file__).with_name("schema.json").read_text())
    _structs.update({name: Struct(name) for name in schema})
    for name, rows in schema.items():
        _structs[name].complete(rows)


def struct(name: str) -> Struct:
    """Returns a type by its name in `schema.json`."""
    if not _structs:
        _load()
    return _structs[name]
