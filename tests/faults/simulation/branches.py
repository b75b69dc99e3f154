"""Runs schedules that have a beginning in common together: the process is forked where they part.

Invariant: the history of a schedule is the same whether it is run alone or with others; a process runs on only as long as all of its
schedules have had the same faults. No more processes run at a time than there are slots.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import random
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from tests.faults.simulation.schedule import OF_EVENTS, OF_WRITES, Fault, Schedule

Point = tuple[str, int]
"""Where a fault may take effect: a write by its number, an event of a side by its number, or a second."""
K = TypeVar("K", bound=Hashable)
_AREAS: Final = Path("/proc/self/maps")
_LARGE: Final = 2 << 20
_COLLAPSE: Final = 25
"""MADV_COLLAPSE of madvise(2)."""


def of_write(number: int) -> Point:
    return "write", number


def of_event(side: str, number: int) -> Point:
    return f"event {side}", number


def of_second(second: int) -> Point:
    return "second", second


def point_of(fault: Fault) -> Point:
    """Returns where a fault takes effect."""
    if fault.kind in OF_WRITES:
        return of_write(fault.at)
    return of_event(fault.side, fault.at) if fault.kind in OF_EVENTS else of_second(fault.at)


class Slots:
    """How many more processes may run, in all processes of a campaign."""

    def __init__(self, number: int) -> None:
        self._source, self._sink = os.pipe()
        os.set_blocking(self._source, False)
        os.write(self._sink, bytes(number))

    def take(self) -> bool:
        """Takes a slot if there is one."""
        try:
            return bool(os.read(self._source, 1))
        except BlockingIOError:
            return False

    def give(self) -> None:
        """Returns a slot."""
        os.write(self._sink, bytes(1))

    def close(self) -> None:
        os.close(self._source)
        os.close(self._sink)


class Branch:
    """The schedules of this process: of one scenario and seed, and with the same faults so far.

    Of those that are due after `until`, a time of the machine, only one is run.
    """

    def __init__(self, schedules: Sequence[Schedule], *, slots: Slots | None = None, until: float = math.inf) -> None:
        assert len({schedule.with_faults(()) for schedule in schedules}) == 1, "schedules of different scenarios or seeds"
        self.schedules = list(schedules)
        self._slots = slots
        self._until = until
        self._beside: list[int] = []
        """Processes with slots of their own."""
        self._has_slot = slots is not None
        self._points = {point_of(fault) for schedule in schedules for fault in schedule.faults}

    def seconds(self) -> list[int]:
        """Returns the seconds at which a fault of any schedule starts."""
        return sorted(number for name, number in self._points if name == "second")

    def faults_at(self, point: Point) -> tuple[Fault, ...]:
        """Returns the faults that take effect here, in this process."""
        if point not in self._points:
            return ()
        return self.common(lambda schedule: tuple(fault for fault in schedule.faults if point_of(fault) == point))

    def common(self, feature: Callable[[Schedule], K]) -> K:
        """Returns what all schedules of this process have in common; a copy of the process runs to its end for each other value."""
        groups: dict[K, list[Schedule]] = {}
        for schedule in self.schedules:
            groups.setdefault(feature(schedule), []).append(schedule)
        *others, last = sorted(groups.items(), key=lambda group: len(group[1]))
        for value, schedules in others:
            if time.monotonic() < self._until and self._is_copy():
                self.schedules = schedules
                return value
        value, self.schedules = last
        return value

    def end(self) -> None:
        """Returns the slot of this process, as waiting needs none, and waits for its copies. Raises ChildProcessError."""
        if self._has_slot and self._slots is not None:
            self._slots.give()
        for process in self._beside:
            _wait(process)

    def _is_copy(self) -> bool:
        """Forks: returns True in the new process; False in the other one, at once if a slot is free, else when the new one has ended.

        Raises ChildProcessError.
        """
        loop, state = asyncio.get_running_loop(), random.getstate()
        free = self._slots is not None and self._slots.take()
        child = os.fork()
        if child == 0:
            self._beside, self._has_slot = [], free
            # Python seeds its generator again in a new process.
            random.setstate(state)
            # asyncio knows the loop that runs by the id of the process.
            asyncio._set_running_loop(loop)
            return True
        if free:
            self._beside.append(child)
        else:
            _wait(child)
        return False


def join_pages() -> None:
    """Joins the pages of the heap to large ones, where the kernel can (Linux 6.1).

    A fork then copies one entry for 512 pages, and the original takes one fault for each large page that it writes after a copy has ended.
    """
    try:
        areas, advise = _AREAS.read_text().splitlines(), ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return
    for area in areas:
        limits, access, _, _, inode, *_ = area.split()
        if access == "rw-p" and inode == "0" and "[stack]" not in area:
            start, end = (int(limit, 16) for limit in limits.split("-"))
            start, end = -(-start // _LARGE) * _LARGE, end // _LARGE * _LARGE
            if start < end:
                advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _COLLAPSE)


def _wait(process: int) -> None:
    _, status = os.waitpid(process, 0)
    if status:
        raise ChildProcessError(f"a simulation ended with the status {status}")
