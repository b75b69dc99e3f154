"""How much memory this process has."""

from __future__ import annotations

import resource
from pathlib import Path


def resident() -> int:
    """Returns the bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
