"""Reads the fields of a custom resource that may contain anything, and records those of the wrong type.

Invariant: a wrong type never raises; it reads as absent and leaves a problem that names the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import cast

from attrs import frozen

from vkubelet.api.objects import JsonView
from vkubelet.api.quantity import Quantity


@frozen
class Problem:
    """A problem of an object: the path of the field as written in YAML, and a sentence with the remedy."""

    field: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.field}: {self.sentence}"


class Fields:
    """One JSON object with its path; problems are appended to `problems`."""

    def __init__(self, value: object, path: str, problems: list[Problem]) -> None:
        self._path = path
        self._problems = problems
        if value is not None and not isinstance(value, dict):
            problems.append(Problem(path, "must be an object"))
        self._value: JsonView = value if isinstance(value, dict) else {}

    @property
    def value(self) -> JsonView:
        """The JSON object as written."""
        return self._value

    def problem(self, name: str, sentence: str) -> None:
        """Records a problem of a field."""
        self._problems.append(Problem(f"{self._path}.{name}", sentence))

    def has(self, name: str) -> bool:
        return self._value.get(name) is not None

    def text(self, name: str) -> str:
        return cast(str, self._typed(name, str, "must be a string")) if self.has(name) else ""

    def flag(self, name: str) -> bool:
        return cast(bool, self._typed(name, bool, "must be true or false")) if self.has(name) else False

    def number(self, name: str, default: int = 0) -> int:
        """Returns an integer; a JSON true is none."""
        if isinstance(self._value.get(name), bool):
            self.problem(name, "must be a whole number")
            return default
        return cast(int, self._typed(name, int, "must be a whole number")) if self.has(name) else default

    def quantity(self, name: str) -> Quantity | None:
        """Returns an amount of a resource; None when absent or invalid."""
        value = self._value.get(name)
        if value is None:
            return None
        try:
            if isinstance(value, str | int | float):
                return Quantity.parse(value)
        except ValueError:
            pass
        self.problem(name, "is not a quantity; write an amount such as 4, 500m or 8Gi")
        return None

    def texts(self, name: str) -> tuple[str, ...]:
        listed = self._list(name)
        if not all(isinstance(each, str) for each in listed):
            self.problem(name, "must be a list of strings")
            return ()
        return tuple(cast(Sequence[str], listed))

    def strings(self, name: str) -> dict[str, str]:
        """Returns an object of strings, without entries of another type."""
        inner = self.inner(name)
        found = {key: inner.text(key) for key in inner._value}
        return {key: text for key, text in found.items() if isinstance(inner._value[key], str)}

    def amounts(self, name: str) -> dict[str, Quantity]:
        """Returns an object of amounts, such as a ResourceList, without invalid entries."""
        inner = self.inner(name)
        found = {key: inner.quantity(key) for key in inner._value}
        return {key: amount for key, amount in found.items() if amount is not None}

    def time(self, name: str) -> datetime | None:
        """Returns a time; None when absent or invalid."""
        text = self.text(name)
        try:
            found = datetime.fromisoformat(text) if text else None
        except ValueError:
            found = None
        if text and (found is None or found.tzinfo is None):
            self.problem(name, "must be an RFC 3339 time such as 2026-01-01T00:00:00Z")
            return None
        return found

    def entries(self, name: str) -> list[tuple[str, Fields]]:
        """Returns an object of objects, by name."""
        inner = self.inner(name)
        return [(key, inner.inner(key)) for key in inner._value]

    def inner(self, name: str) -> Fields:
        """Returns a nested object; an empty one when it is absent."""
        return Fields(self._value.get(name), f"{self._path}.{name}", self._problems)

    def items(self, name: str) -> list[Fields]:
        return [Fields(each, f"{self._path}.{name}[{at}]", self._problems) for at, each in enumerate(self._list(name))]

    def selector(self, name: str) -> JsonView | None:
        """Returns a NodeSelector of valid types, so that matching cannot fail; an invalid one is recorded and matches nothing."""
        if not self.has(name):
            return None
        before = len(self._problems)
        inner = self.inner(name)
        for term in inner.items("nodeSelectorTerms"):
            for requirement in (*term.items("matchExpressions"), *term.items("matchFields")):
                requirement.text("key"), requirement.text("operator"), requirement.texts("values")
        return inner._value if len(self._problems) == before else {"nodeSelectorTerms": [{}]}

    def _list(self, name: str) -> Sequence[object]:
        value = self._value.get(name)
        if value is not None and not isinstance(value, list):
            self.problem(name, "must be a list")
        return value if isinstance(value, list) else []

    def _typed(self, name: str, kind: type[object], sentence: str) -> object:
        value = self._value[name]
        if not isinstance(value, kind):
            self.problem(name, sentence)
            return kind()
        return value
