"""Reads what `tests.benchmarks.metered` wrote: the longest turns of the event loop, and what these did.

Invariant: the garbage collector's passes are part of the turns; a line that is being written is not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from tests.support.stall import MOST


@frozen
class Turns:
    """The turns of one metered program."""

    file: Path

    def longest(self, began: float, ended: float) -> float:
        """Seconds of CPU of the longest turn between two moments (monotonic); what long turns did goes to standard output."""
        lines = [line for line in self._lines() if began <= line["at"] <= ended + 1]
        for line in lines:
            if line["longest"] >= MOST:
                print(*(f"      {line['longest'] * 1000:.0f} ms: {' < '.join(calls)}" for calls in line["where"]), sep="\n", flush=True)
        print(f"      collector {max((line['collector'] for line in lines), default=0) * 1000:.0f} ms", flush=True)
        return max((float(line["longest"]) for line in lines), default=0.0)

    def _lines(self) -> Sequence[Mapping[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().rpartition("\n")[0].splitlines()]
