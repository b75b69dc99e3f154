"""How much memory this process has, and how much of it it needs."""

from __future__ import annotations

import ctypes
import gc
import resource
from pathlib import Path


def resident() -> int:
    """Returns the bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def retained() -> int:
    """Returns the bytes of this process in memory when what it has freed is returned to the kernel."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return resident()
