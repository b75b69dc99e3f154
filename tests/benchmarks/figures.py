"""What a benchmark found, as a table for people and as JSON for programs.

Invariant: a figure says what it is compared with and within which limits it must lie; nothing but the measurement decides whether it does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen


@frozen(kw_only=True)
class Figure:
    """`most` and `least` bound the value, `least_ratio` and `most_ratio` the ratio to what `ratio_to` names.

    `load` is the load average of the machine.
    """

    name: str
    value: float
    unit: str
    most: float | None = None
    least: float | None = None
    ratio_to: str = ""
    ratio: float | None = None
    least_ratio: float | None = None
    most_ratio: float | None = None
    load: float = field(factory=lambda: os.getloadavg()[0])

    @property
    def bound(self) -> str:
        """What must hold, as text; "" for a figure that is only told."""
        parts = (("< ", self.most), ("> ", self.least), ("ratio >= ", self.least_ratio), ("ratio <= ", self.most_ratio))
        return ", ".join(f"{sign}{_short(limit)}" for sign, limit in parts if limit is not None)

    @property
    def holds(self) -> bool:
        return (
            (self.most is None or self.value < self.most)
            and (self.least is None or self.value > self.least)
            and (self.least_ratio is None or (self.ratio is not None and self.ratio >= self.least_ratio))
            and (self.most_ratio is None or (self.ratio is not None and self.ratio <= self.most_ratio))
        )

    def as_json(self) -> Mapping[str, Any]:
        ratio = None if self.ratio is None else round(self.ratio, 3)
        return {"value": round(self.value, 4), "unit": self.unit, "ratio_to": self.ratio_to, "ratio": ratio, "load": round(self.load, 1)}


def _short(number: float) -> str:
    return f"{number:.3g}" if abs(number) < 100 else f"{number:,.0f}"


def table(figures: Iterable[Figure]) -> str:
    """One line for each figure, under a heading."""
    rows = [("figure", "value", "unit", "ratio", "must be", "", "load")]
    for each in figures:
        ratio = f"{each.ratio:.2f} of {each.ratio_to}" if each.ratio is not None else ""
        verdict = "" if not each.bound else "yes" if each.holds else "NO"
        rows.append((each.name, _short(each.value), each.unit, ratio, each.bound, verdict, f"{each.load:.1f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def write(figures: Sequence[Figure], file: Path) -> None:
    """Put them into the file; what it holds under other names stays."""
    known = json.loads(file.read_text()) if file.exists() else {}
    known.update({each.name: each.as_json() for each in figures})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
