"""The schedules of a campaign: every write and event of every scenario with every kind of fault, then combinations at random.

Invariant: the same seed and the same product give the same schedules in the same order; each write site meets each kind of fault once,
then once in each scenario, those of pods before all others, before any of them meets one again.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest

from tests.faults.simulation.schedule import OF_EVENTS, OF_WRITES, Fault, Kind, Schedule
from tests.faults.simulation.worlds import Outcome

_OF_WRITES: Sequence[tuple[Kind, float]] = (
    (Kind.CRASH, 2.0),
    (Kind.LOST, 0.0),
    (Kind.REFUSED, 503),
    (Kind.UNSENT, 0.0),
    (Kind.SLOW, 4.0),
    (Kind.REFUSED, 409),
    (Kind.LOST, 1.0),
    (Kind.SEVERED, 5.0),
    (Kind.REFUSED, 429),
    (Kind.CRASH, 20.0),
    (Kind.REFUSED, 500),
)
_OF_EVENTS: Sequence[tuple[Kind, float]] = ((Kind.DROPPED, 3.0), (Kind.DELAYED, 25.0), (Kind.ENDED, 0.0))
_TIMED: Sequence[tuple[Kind, Sequence[float]]] = (
    (Kind.CUT, (10.0, 50.0, 600.0)),
    (Kind.CLOSED, (5.0, 90.0)),
    (Kind.BROKEN, (8.0, 90.0, 900.0)),
    (Kind.LAG, (10.0, 45.0)),
    (Kind.STALE, (1.0, 5.0, 25.0)),
    (Kind.EXPIRED, (0.0,)),
)
_OF_PROCESS: Sequence[tuple[Kind, Sequence[float]]] = ((Kind.STALL, (1.0, 20.0, 60.0)), (Kind.CLOCK, (3600.0, -3600.0)))
_OF_ONE_SEED = 32
"""Combinations under one seed: they run together until their first fault, after which each has an order of its own."""
_MOMENTS = (3, 6, 12, 18, 22, 28, 34, 45, 61)


def sides(outcome: Outcome) -> list[str]:
    """Returns the API servers of a scenario."""
    return sorted(outcome.events)


def enumerated(base: Outcome) -> Iterator[Schedule]:
    """Yields every single fault of a scenario, by the numbers of writes and events of its run without faults."""
    schedule = base.schedule
    for kind, value in _OF_WRITES:
        for number in range(1, base.writes + 1):
            yield schedule.with_faults([Fault(kind, number, value)])
    for kind, value in _OF_EVENTS:
        for side in sides(base):
            for number in range(1, base.events[side] + 1):
                yield schedule.with_faults([Fault(kind, number, value, side)])
    yield from _timed(base)


def _timed(base: Outcome) -> Iterator[Schedule]:
    for moment in _MOMENTS:
        for kind, values in _TIMED:
            for side in sides(base):
                for value in values:
                    yield base.schedule.with_faults([Fault(kind, moment, value, side)])
        for kind, values in _OF_PROCESS:
            for value in values:
                yield base.schedule.with_faults([Fault(kind, moment, value)])


def combined(bases: Sequence[Outcome], rng: random.Random) -> Iterator[Schedule]:
    """Yields combinations of faults under other interleavings, without end."""
    while True:
        base = rng.choice(bases)
        seed = rng.randrange(1_000_000)
        for _ in range(_OF_ONE_SEED):
            faults = [_any(base, rng) for _ in range(rng.choice((1, 2, 2, 3, 4)))]
            yield Schedule(base.schedule.world, base.schedule.scenario, seed, tuple(sorted(set(faults))))


def _any(base: Outcome, rng: random.Random) -> Fault:
    drawn = rng.random()
    if drawn < 0.5:
        kind, value = rng.choice(_OF_WRITES)
        return Fault(kind, rng.randint(1, base.writes), value)
    side = rng.choice(sides(base))
    if drawn < 0.75:
        kind, value = rng.choice(_OF_EVENTS)
        return Fault(kind, rng.randint(1, base.events[side]), value, side)
    kind, values = rng.choice((*_TIMED, *_OF_PROCESS))
    return Fault(kind, rng.randint(1, 60), rng.choice(values), "" if kind in (Kind.STALL, Kind.CLOCK) else side)


def bases(scenarios: Iterable[tuple[str, str]], seed: int) -> list[Schedule]:
    """Returns the schedules without faults."""
    return [Schedule(world, scenario, seed) for world, scenario in scenarios]


def campaign(found: Sequence[Outcome], seed: int, kinds: Collection[Kind] = ()) -> Iterator[Schedule]:
    """Yields all schedules of a campaign: the single faults, those of each aim first, and then combinations of faults.

    With `kinds` only single faults of these.
    """
    rng = random.Random(seed)
    groups: dict[tuple[str, ...], list[Schedule]] = {}
    for base in found:
        for schedule in enumerated(base):
            if not kinds or schedule.faults[0].kind in kinds:
                groups.setdefault(aim(base, schedule.faults[0]), []).append(schedule)
    turns = list(groups.values())
    rng.shuffle(turns)
    last = {base.schedule: base.last_writes for base in found}
    sites = {base.schedule: base.sites for base in found}
    for group in turns:
        rng.shuffle(group)
        # A later write to the same object would repair what the fault has done.
        group.sort(key=lambda schedule: _is_repaired(schedule, last[schedule.with_faults(())]))
    yield from (group[0] for group in turns)
    yield from _by_scenario(sorted(turns, key=lambda group: not _is_of_pods(group[0], sites)))
    if not kinds:
        yield from combined(found, rng)


def _by_scenario(turns: Sequence[Sequence[Schedule]]) -> Iterator[Schedule]:
    """Yields what is left of groups after their first schedules: one for each scenario that had none, then all others in turns."""
    first: list[Schedule] = []
    rest: list[list[Schedule]] = []
    for group in turns:
        parts: dict[str, list[Schedule]] = {}
        for schedule in group:
            parts.setdefault(schedule.scenario, []).append(schedule)
        first += [part[0] for part in parts.values() if part[0] is not group[0]]
        rest += [part[1:] for part in parts.values()]
    return chain(first, (schedule for turn in zip_longest(*rest) for schedule in turn if schedule is not None))


def _is_repaired(schedule: Schedule, last: Collection[int]) -> bool:
    (fault,) = schedule.faults
    return fault.kind in OF_WRITES and fault.at not in last


def _is_of_pods(schedule: Schedule, sites: Mapping[Schedule, Sequence[str]]) -> bool:
    """Returns whether the fault disturbs a write by which a pod runs twice, too early or not at all."""
    (fault,) = schedule.faults
    return fault.kind in OF_WRITES and " pods" in sites[schedule.with_faults(())][fault.at - 1]


def aim(base: Outcome, fault: Fault) -> tuple[str, ...]:
    """Returns what a fault disturbs: a write site of a world, the events of one side of a scenario, or a scenario as a whole."""
    world, scenario = base.schedule.world, base.schedule.scenario
    if fault.kind in OF_WRITES:
        return world, base.sites[fault.at - 1], fault.kind.value, str(fault.value)
    length = "" if fault.kind in OF_EVENTS else str(fault.value)
    return world, scenario, fault.side, fault.kind.value, length
