"""Reads /proc: parents and children, start times and resource usage of processes.

Invariant: a process that exits meanwhile is omitted; its absence is no error.
"""

import os
import re
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    """Content of `/proc/PID/stat`: times in seconds, those of children count when they were waited for; `start` in ticks since the boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    cpu: float
    waited_cpu: float
    start: int
    resident: int


def parse_stat(text: str) -> Stat:
    """Parses the text. Raises ValueError. The name in parentheses may contain anything, parentheses too."""
    head, _, tail = text.rpartition(")")
    words = tail.split()
    if len(words) < 22 or "(" not in head:
        raise ValueError("not a line of /proc/PID/stat")
    pid = int(head.partition("(")[0])
    spent, waited = int(words[11]) + int(words[12]), int(words[13]) + int(words[14])
    return Stat(
        pid, words[0], int(words[1]), int(words[2]), int(words[3]), spent / TICKS, waited / TICKS, int(words[19]), int(words[21]) * PAGE
    )


def stat_of(pid: int) -> Stat | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return parse_stat(file.read())
    except (OSError, ValueError):
        return None


def started(pid: int) -> int:
    """Returns when it started, which distinguishes a process from a later one of the same number; 0 when there is none."""
    found = stat_of(pid)
    return found.start if found is not None else 0


def is_alive(pid: int, start: int) -> bool:
    """Checks whether exactly this process runs; a zombie does not."""
    found = stat_of(pid)
    return found is not None and found.start == start and found.state not in ("Z", "X")


def children(pid: int) -> list[int]:
    """Returns the children of all its threads, as a list in /proc contains what one thread has started."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
        return found
    except (OSError, ValueError):
        return [each for each in everyone() if (stat := stat_of(each)) is not None and stat.parent == pid]


def everyone() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(pid: int) -> list[int]:
    """Returns all processes below, without itself."""
    found: list[int] = []
    waiting = children(pid)
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += children(one)
    return found


def unescaped(path: bytes) -> bytes:
    """Unescapes a path in a list of mounts."""
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), path)


def boot_id() -> str:
    """Returns an id that changes with every boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
