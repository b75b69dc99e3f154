"""Tables that kubectl prints, read by their columns."""

from __future__ import annotations

import re
from collections.abc import Mapping

_HEAD = re.compile(r"(?<!\S)(?<!\S )\S")
"""Where a column starts: names of columns contain single spaces."""


def tables(text: str) -> dict[str, Mapping[str, str]]:
    """The cells of each row by their columns, by the name in the first column; several tables are separated by an empty line."""
    found: dict[str, Mapping[str, str]] = {}
    for part in text.strip().split("\n\n"):
        head, *rows = part.splitlines()
        starts = [match.start() for match in _HEAD.finditer(head)]
        spans = list(zip(starts, [*starts[1:], None], strict=True))
        for row in rows:
            cells = {head[at:end].strip(): row[at:end].strip() for at, end in spans}
            found[next(iter(cells.values()))] = cells
    return found
