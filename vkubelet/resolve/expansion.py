"""`$(NAME)` in commands, arguments, values and paths (pure).

Invariant: what is put in is never looked at again, and what names nothing stays as it was written.

The rules are those of the kubelet (k8s.io/kubernetes third_party/forked/golang/expansion, documented at "Define dependent environment
variables"): `$$` is a dollar sign, `$(` without an end and `$x` stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from vkubelet.api.shapes import JsonView

_REFERENCE: Final = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


def expand(text: str, *scopes: Mapping[str, str]) -> str:
    """Put in what the first of `scopes` that knows a name says."""

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        return next((scope[match[2]] for scope in scopes if match[2] in scope), match[0])

    return _REFERENCE.sub(value, text)


def expand_all(texts: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """A command or its arguments, with the environment of their container."""
    return tuple(expand(text, variables) for text in texts)


def expand_path(text: str, variables: Mapping[str, str]) -> str:
    """A `subPathExpr`. Raises ValueError naming the variables that are missing or empty: half a path leads somewhere else."""
    empty = sorted({match[2] for match in _REFERENCE.finditer(text) if not match[1] and not variables.get(match[2])})
    if empty:
        raise ValueError(f"missing value for {', '.join(empty)}")
    return expand(text, variables)


def expand_probe(command: Sequence[str], env: Sequence[JsonView]) -> tuple[str, ...]:
    """The command of an exec probe: it knows the literal values of its container's `env` alone, not expanded; hooks know none."""
    return expand_all(command, {variable["name"]: variable.get("value", "") for variable in env})
