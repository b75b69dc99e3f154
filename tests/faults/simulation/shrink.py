"""Shrinks a failing schedule to the smallest list of faults that still fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import evolve

from tests.faults.simulation.schedule import Fault, Kind, Schedule

_SHORTEST = 1.0


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Returns the smallest schedule found; `fails` runs a candidate and says whether the same oracle finds something."""
    while True:
        smaller = next((each for each in _smaller(schedule) if fails(each)), None)
        if smaller is None:
            return schedule
        schedule = smaller


def _smaller(schedule: Schedule) -> Iterator[Schedule]:
    """Yields candidates: without a half of the faults, without one, with a shorter one."""
    faults = schedule.faults
    if len(faults) > 3:
        half = len(faults) // 2
        yield schedule.with_faults(faults[half:])
        yield schedule.with_faults(faults[:half])
    for number in range(len(faults)):
        yield schedule.with_faults(faults[:number] + faults[number + 1 :])
    for number, fault in enumerate(faults):
        if (shorter := _shorter(fault)) is not None:
            yield schedule.with_faults((*faults[:number], shorter, *faults[number + 1 :]))


def _shorter(fault: Fault) -> Fault | None:
    if fault.kind in (Kind.REFUSED, Kind.LOST, Kind.UNSENT) or abs(fault.value) <= _SHORTEST:
        return None
    return evolve(fault, value=float(round(fault.value / 2)))
