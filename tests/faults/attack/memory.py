"""How much memory this process has, and how much of it it needs."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

from vkubelet.collector import return_free_memory


def resident() -> int:
    """Returns the bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def retained() -> int:
    """Returns the bytes of this process in memory when what it has freed is returned to the kernel."""
    gc.collect()
    return_free_memory()
    return resident()
