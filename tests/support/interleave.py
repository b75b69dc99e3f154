"""Runs file operations once for each moment at which another program could change a path under them.

Invariant: `change` happens just before one call into the kernel, at each of them in turn, so that a race is found without racing.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

_OF_NAMES = {"fspath", "_path_normpath", "_path_splitroot_ex"}
"""Functions of `posix` that leave the kernel alone; which of them `os.path` calls depends on the version of Python."""


def interleaved(work: Callable[[], object], change: Callable[[], None], *, undo: Callable[[], None]) -> int:
    """How many such moments `work` has; it may raise OSError, ValueError and what is derived from them."""
    for moment in itertools.count():
        if not _once(work, change, moment):
            return moment
        undo()
    raise AssertionError


def _once(work: Callable[[], object], change: Callable[[], None], moment: int) -> bool:
    calls = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        # The call of openat2 goes through ctypes, which is not reported; the Python function around it is.
        into_kernel = event == "c_call" and getattr(argument, "__module__", "") in ("posix", "io")
        into_kernel = into_kernel and getattr(argument, "__name__", "") not in _OF_NAMES
        if into_kernel or (event == "call" and frame.f_code.co_name == "_openat2"):
            calls += 1
            if calls == moment + 1:
                change()

    sys.setprofile(profile)
    try:
        with suppress(OSError, ValueError):
            work()
    finally:
        sys.setprofile(None)
    return calls > moment


def exchange(one: Path, other: Path) -> Callable[[], None]:
    """What exchanges two names, as a program that may write to their directory can do it."""

    def change() -> None:
        aside = one.with_name("aside")
        os.rename(one, aside)
        os.rename(other, one)
        os.rename(aside, other)

    return change
