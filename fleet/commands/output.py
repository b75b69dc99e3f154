"""Runs a command: lines for people, or its result as JSON or YAML for programs.

Invariant: with JSON or YAML nothing but the result is on stdout; lines and progress are on stderr.
"""

import json
import sys
from collections.abc import Callable
from typing import Any, Final, Protocol

import yaml

from vkubelet.commands.clusters import finish
from vkubelet.commands.terminal import Terminal

FORMATS: Final = ("json", "yaml")


class Command(Protocol):
    """One run of a command."""

    async def run(self) -> Any:
        """Does it; returns what it did as JSON. Raises VKubeletError."""
        ...


def execute(output: str, make: Callable[[Terminal], Command]) -> Any:
    """Runs a command that is made for a terminal; `output` is "" or one of FORMATS. Returns its result. Raises VKubeletError."""
    results: list[Any] = []

    async def run() -> None:
        results.append(await make(Terminal(sys.stderr) if output else Terminal.standard()).run())
        if output:
            Terminal(sys.stdout).write_line(written(results[0], output))

    finish(run())
    return results[0]


def written(result: object, output: str) -> str:
    """Formats a result (pure)."""
    return json.dumps(result, indent=2) if output == "json" else yaml.safe_dump(result, sort_keys=False).rstrip()
