"""Output of reading commands: tables for people, JSON and YAML for programs.

Invariant: JSON and YAML contain all of the data whatever the width of the terminal, and a pipe gets neither colours nor line breaks.
"""

import enum
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, cast

import attrs
import yaml
from attrs import frozen
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vkubelet.api.objects import PodRef
from vkubelet.api.quantity import Quantity, Resources
from vkubelet.clock import rfc3339
from vkubelet.commands.terminal import Terminal
from vkubelet.logformat import printable

_PIPE_WIDTH = 10_000
_NAMED = ("cpu", "memory")


class Format(enum.StrEnum):
    """Values of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_data(self) -> bool:
        """Whether it is meant for programs."""
        return self in (Format.JSON, Format.YAML)


@frozen
class Columns:
    """A table: the head, and the cells of each row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


Block = str | Columns


def encoded(value: object) -> Any:
    """Converts a value of ours to JSON: times as RFC 3339, amounts as quantities (pure)."""
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, Quantity):
        return str(value)
    if attrs.has(type(value)):
        return encoded(fields_of(cast(attrs.AttrsInstance, value)))
    if isinstance(value, PodRef):
        return encoded(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): encoded(inner) for key, inner in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str):
        return [encoded(inner) for inner in value]
    return value


def fields_of(value: attrs.AttrsInstance) -> dict[str, object]:
    """Returns the fields of a value of ours by name (pure)."""
    return attrs.asdict(value, recurse=False)


def data(value: object, chosen: Format) -> str:
    """Renders a value as JSON or YAML (pure)."""
    if chosen is Format.YAML:
        return yaml.safe_dump(encoded(value), sort_keys=False, width=140).rstrip()
    return json.dumps(encoded(value), indent=2)


@contextmanager
def in_progress(text: str) -> Iterator[None]:
    """Shows at a terminal, on stderr, that the command is at work."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(text):
        yield


def write(terminal: Terminal, blocks: Sequence[Block]) -> None:
    """Prints text and tables; at a terminal, cells are wrapped to its width."""
    for line in rendered(blocks, width=terminal.width if terminal.live else _PIPE_WIDTH, live=terminal.live):
        terminal.write_line(line)


def rendered(blocks: Sequence[Block], *, width: int, live: bool = False) -> Iterator[str]:
    """Yields the lines of text and tables (pure)."""
    console = Console(width=width, force_terminal=live, color_system="auto" if live else None, highlight=False, legacy_windows=False)
    for block in blocks:
        with console.capture() as captured:
            console.print(_table(block) if isinstance(block, Columns) else _text(block))
        yield from (line.rstrip() for line in captured.get().rstrip("\n").split("\n"))


def _table(columns: Columns) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns.head:
        # A short cell is not broken: the last column has the sentences.
        table.add_column(name, no_wrap=name != columns.head[-1], overflow="fold")
    for row in columns.rows:
        table.add_row(*map(_text, row))
    return table


def _text(text: str) -> Text:
    return Text(printable(text))


def amounts_text(amounts: Resources, *, wide: bool = False) -> str:
    """Formats amounts as `cpu 4, memory 8Gi`; without `wide`, only these two and extended resources that are not zero (pure)."""
    names = [name for name in _NAMED if name in amounts]
    names += sorted(name for name in amounts if name not in _NAMED and (wide or ("/" in name and amounts[name])))
    return ", ".join(f"{name} {amount_text(amounts[name])}" for name in names)


def amount_text(amount: Quantity) -> str:
    """Formats an amount of bytes in the largest binary unit that keeps three digits, any other as Kubernetes does (pure)."""
    for unit, size in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20)):
        value = amount.value()
        if value >= 10 * size or (value >= size and value % size == 0):
            exact = value % size == 0
            return f"{value // size}{unit}" if exact else f"{value / size:.1f}{unit}"
    return str(amount)
