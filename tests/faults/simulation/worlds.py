"""All simulated worlds by name, one run of a schedule, and one run of many that begin alike.

Invariant: what is found in a schedule does not depend on the schedules that are run with it.
"""

from __future__ import annotations

import gc
import math
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from multiprocessing import Lock, Pipe
from multiprocessing.connection import Connection

from attrs import frozen

from tests.faults.simulation.branches import Branch, Slots, join_pages
from tests.faults.simulation.fleet_world import FleetWorld
from tests.faults.simulation.history import History
from tests.faults.simulation.kinds_world import KindsWorld
from tests.faults.simulation.mock_world import MockWorld
from tests.faults.simulation.oracles import Violation, judge
from tests.faults.simulation.schedule import Schedule
from tests.faults.simulation.shards_world import ShardsWorld
from tests.faults.simulation.world import World

WORLDS: Mapping[str, type[World]] = {world.name: world for world in (MockWorld, KindsWorld, FleetWorld, ShardsWorld)}
_BESIDES = {FleetWorld.name, ShardsWorld.name}
"""Worlds that take part in a campaign only when a scenario of theirs is named: tests/faults/test_fleet.py and
test_shards.py go through their crashes."""
_COLLECTED_EVERY = 10
_MANY = 16
"""Schedules from which it takes less time to prepare the memory for the forks than these save."""
_runs = count(1)


@frozen
class Outcome:
    """One schedule, what it injected and what the oracles found; small enough to be sent between processes."""

    schedule: Schedule
    violations: tuple[Violation, ...]
    injected: tuple[tuple[str, str], ...]
    writes: int
    events: Mapping[str, int]
    sites: tuple[str, ...]
    last_writes: frozenset[int]
    """Numbers of the writes that were the last of their site to their object."""
    virtual_seconds: float
    digest: str
    """Of the whole history, which is the same whenever the schedule is run."""


def scenarios(only: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Returns scenarios as world and name: those that `only` names as `world/scenario`, or all of a default campaign."""
    known = [(world.name, scenario) for world in WORLDS.values() for scenario in world.scenarios]
    return [each for each in known if ("/".join(each) in only if only else each[0] not in _BESIDES)]


def play(schedule: Schedule) -> History:
    """Runs a schedule. Raises KeyError for a world or scenario that does not exist."""
    return WORLDS[schedule.world](Branch([schedule])).run()


def judged(schedule: Schedule) -> Outcome:
    """Runs a schedule and judges it."""
    with _uncollected():
        return _outcome(schedule, play(schedule))


@contextmanager
def _uncollected() -> Iterator[None]:
    # A run leaves tens of thousands of objects in cycles: collecting them between runs is cheaper than looking at them during runs.
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if next(_runs) % _COLLECTED_EVERY == 0:
            gc.collect()
        if collects:
            gc.enable()


def start(schedules: Sequence[Schedule], *, slots: Slots | None = None, until: float = math.inf) -> tuple[int, Connection]:
    """Runs schedules of one scenario and seed in a new process; returns its id, and what receives each `Outcome` until it is closed.

    Each part that schedules have in common is run once. Further processes use `slots`, and begin before `until`.
    """
    receiver, sender = Pipe(duplex=False)
    writes = Lock()
    process = os.fork()
    # Its copies are in its group, by which `end` reaches them; whichever of the two comes first makes it.
    os.setpgid(process, process)
    if process:
        sender.close()
        return process, receiver
    # This process and its copies never return to the caller.
    status = 1
    try:
        gc.disable()
        if len(schedules) >= _MANY:
            join_pages()
        world = WORLDS[schedules[0].world](Branch(schedules, slots=slots, until=until))
        history = world.run(disposes=False)
        for schedule in world.branch.schedules:
            outcome = _outcome(schedule, history)
            with writes:
                sender.send(outcome)
        world.branch.end()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _outcome(schedule: Schedule, history: History) -> Outcome:
    return Outcome(
        schedule=schedule,
        violations=tuple(judge(history, schedule)),
        injected=tuple(history.injected),
        writes=len(history.sent),
        events=history.events,
        sites=tuple(sent.site for sent in history.sent),
        last_writes=frozenset({(sent.site, sent.target): sent.number for sent in history.sent}.values()),
        virtual_seconds=history.ended,
        digest=history.digest(),
    )
