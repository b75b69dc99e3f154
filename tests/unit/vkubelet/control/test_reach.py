"""Tests of vkubelet.control.reach: when the nodes of a worker are held, and when it counts as silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from vkubelet.control.contact import Outcome
from vkubelet.control.reach import Reach
from vkubelet.testing.clock import ManualClock

SERVED, UNSERVED, SILENT = Outcome.SERVED, Outcome.UNSERVED, Outcome.SILENT
EVERY = 10.0
TAKES = 5.0


@asynccontextmanager
async def watched(clock: ManualClock, *, lost_after: float = 40.0) -> AsyncIterator[tuple[Reach, list[bool]]]:
    flips: list[bool] = []
    reach = Reach(clock, "worker cluster", lost_after=lost_after, ask_every=EVERY)
    reach.on_flip(lambda: flips.append(reach.lost))
    task = asyncio.get_running_loop().create_task(reach.watch())
    await clock.settle()
    yield reach, flips
    task.cancel()


async def ask(clock: ManualClock, reach: Reach, outcome: Outcome, *, takes: float = TAKES, problem: str = "x") -> None:
    """One attempt, and the pause after it."""
    began = reach.now()
    await clock.advance(takes)
    reach.record(began, outcome, problem)
    await clock.advance(EVERY)


async def test_a_worker_is_lost_after_forty_seconds_without_service_and_not_before() -> None:
    clock = ManualClock()
    async with watched(clock) as (reach, flips):
        await clock.advance(30)
        reach.record(reach.now(), SERVED)
        await clock.advance(39)
        reach.record(reach.now(), SILENT, "no route")
        assert flips == []
        await clock.advance(1)
        assert flips == [True]


async def test_a_lost_worker_is_back_with_its_first_answer() -> None:
    clock = ManualClock()
    async with watched(clock) as (reach, flips):
        await clock.advance(100)
        reach.record(reach.now(), SERVED)
        assert flips == [True, False]
        await clock.advance(41)
        assert flips == [True, False, True]


async def test_a_worker_that_refuses_or_fails_is_held_but_never_silent() -> None:
    for answers in ([UNSERVED], [UNSERVED, SILENT]):
        clock = ManualClock()
        async with watched(clock) as (reach, flips):
            for outcome in answers * 60:
                await ask(clock, reach, outcome)
                assert reach.silent_for == 0.0
            assert flips == [True]


async def test_one_attempt_that_fails_after_a_long_pause_is_no_silence() -> None:
    clock = ManualClock()
    async with watched(clock) as (reach, _):
        reach.record(reach.now(), SERVED)
        await clock.advance(600)
        reach.record(reach.now(), SILENT)
        assert reach.silent_for == 0.0


async def test_process_that_stands_still_now_and_then_never_finds_the_worker_silent() -> None:
    clock = ManualClock()
    async with watched(clock) as (reach, flips):
        for _ in range(20):
            began = reach.now()
            await clock.advance(1)
            clock.stand_still(61)
            reach.record(began, SILENT, "timed out while the process was stopped")
            assert reach.silent_for == 0.0
            await clock.advance(1)
            reach.record(reach.now(), SERVED)
        assert flips == []


async def test_a_standstill_amid_silence_starts_the_count_again() -> None:
    clock = ManualClock()
    async with watched(clock) as (reach, _):
        for _ in range(3):
            await ask(clock, reach, SILENT)
        assert reach.silent_for == 2 * (EVERY + TAKES) + TAKES
        clock.stand_still(30)
        assert reach.silent_for == 0.0
        await clock.advance(1)
        await ask(clock, reach, SILENT)
        await ask(clock, reach, SILENT)
        assert reach.silent_for == EVERY + 2 * TAKES


async def test_another_way_to_the_worker_starts_the_count_again() -> None:
    clock = ManualClock()
    async with watched(clock) as (reach, _):
        await ask(clock, reach, SILENT)
        await ask(clock, reach, SILENT)
        reach.restart()
        assert reach.silent_for == 0.0


async def test_a_changed_problem_is_reported_once() -> None:
    clock = ManualClock()
    async with watched(clock) as (reach, _):
        seen: list[str] = []
        reach.on_problem(lambda: seen.append(reach.problem))
        for problem in ("down", "down", "refused", "refused"):
            await ask(clock, reach, UNSERVED, problem=problem)
        assert seen == ["down", "refused"]
