"""`python -m tests.support.shifted FILE PROGRAM ARGS…`: `PROGRAM ARGS…` in a process whose wall clock a test sets.

Invariant: only the wall clock moves, as when a person sets a machine's time; `vkubelet.clock` is the one place that reads it, which the
architecture test holds.
"""

import importlib
import sys
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

from vkubelet import clock


def shift(file: Path) -> None:
    """The clock of this process is ahead by the seconds in the file; by 0 without the file."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            ahead = float(file.read_text()) if file.exists() else 0.0
            return datetime.now(tz) + timedelta(seconds=ahead)

    clock.datetime = Shifted  # type: ignore[misc]


if __name__ == "__main__":
    shift(Path(sys.argv.pop(1)))
    sys.exit(importlib.import_module(f"{sys.argv.pop(1)}.cli").main())
