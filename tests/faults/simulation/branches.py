"""Runs schedules that have a beginning in common together: the process is forked where they part.

Invariant: the history of a schedule is the same whether it is run alone or with others; a process runs on only as long as all of its
schedules have had the same faults.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from tests.faults.simulation.schedule import OF_EVENTS, OF_WRITES, Fault, Schedule

Point = tuple[str, int]
"""Where a fault may take effect: a write by its number, an event of a side by its number, or a second."""
K = TypeVar("K", bound=Hashable)


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


class Branch:
    """The schedules of this process: of one scenario and seed, and with the same faults so far."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        assert len({schedule.with_faults(()) for schedule in schedules}) == 1, "schedules of different scenarios or seeds"
        self.schedules = list(schedules)
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
        """Returns what all schedules of this process have in common: for each other value a copy of the process runs to its end first."""
        groups: dict[K, list[Schedule]] = {}
        for schedule in self.schedules:
            groups.setdefault(feature(schedule), []).append(schedule)
        *others, last = sorted(groups.items(), key=lambda group: len(group[1]))
        for value, schedules in others:
            if _is_copy():
                self.schedules = schedules
                return value
        value, self.schedules = last
        return value


def _is_copy() -> bool:
    """Forks: returns True in the new process, and False in the other one when the new one has ended. Raises ChildProcessError."""
    loop, state = asyncio.get_running_loop(), random.getstate()
    child = os.fork()
    if child == 0:
        # Python seeds its generator again in a new process.
        random.setstate(state)
        # asyncio knows the loop that runs by the id of the process.
        asyncio._set_running_loop(loop)
        return True
    _, status = os.waitpid(child, 0)
    if status:
        raise ChildProcessError(f"a simulation ended with the status {status}")
    return False
