"""Expands `$(NAME)` in commands, arguments, values and paths. Pure.

Invariant: an inserted value is never expanded again, and a reference to an unknown name stays unchanged.

The rules are those of the kubelet (k8s.io/kubernetes third_party/forked/golang/expansion, documented at "Define dependent environment
variables"): `$$` is a dollar sign, an unclosed `$(` and `$x` stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from vkubelet.api.shapes import JsonView

_REFERENCE: Final = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


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
