"""What attempts to reach the worker prove: when its nodes are held, and when it counts as silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.worker.reach import Attempt, Contact, Outcome, Reach, outcome_of, problem_of
from vkubelet.errors import ApiError, Forbidden, NotFound, ServerError, TooManyRequests, Unauthorized, Unreachable, VKubeletError
from vkubelet.testing.clock import ManualClock

SERVED, UNSERVED, SILENT = Outcome.SERVED, Outcome.UNSERVED, Outcome.SILENT
EVERY = 10.0
TAKES = 5.0
GAP = 2 * EVERY + 5.0


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, SERVED),
        (Forbidden("get /readyz", "no right", status=403), SERVED),
        (NotFound("get /readyz", "no such path", status=404), SERVED),
        (TooManyRequests("get /readyz", "slow down", status=429), SERVED),
        (Unauthorized("get /readyz", "Unauthorized", status=401), UNSERVED),
        (ServerError("get /readyz", "readyz check failed", status=500), UNSERVED),
        (ServerError("get /readyz", "bad gateway", status=502), UNSERVED),
        (Unreachable("get /readyz", "no answer in time"), UNSERVED),
        (VKubeletError("anything else"), UNSERVED),
        (Unreachable("get /readyz", "connection refused", silent=True), SILENT),
    ],
    ids=lambda value: str(getattr(value, "status", "") or value),
)
def test_only_a_connection_that_never_came_about_is_silence(error: VKubeletError | None, outcome: Outcome) -> None:
    assert outcome_of(error) is outcome
    assert bool(problem_of(error)) is (outcome is not SERVED)


def test_problems_name_the_remedy_and_do_not_change_with_each_attempt() -> None:
    refused: list[ApiError] = [Unauthorized("get /readyz", text, status=401) for text in ("expired", "invalid bearer token")]
    failing: list[ApiError] = [ServerError("get /readyz", text, status=500) for text in ("etcd failed", "informer-sync failed")]
    assert len({problem_of(error) for error in refused}) == len({problem_of(error) for error in failing}) == 1
    assert "spec.secretRef" in problem_of(refused[0]) and "readyz" in problem_of(failing[0])


def told(outcomes: Sequence[Outcome]) -> tuple[Contact, list[Attempt]]:
    attempts = [Attempt(at * (EVERY + TAKES), at * (EVERY + TAKES) + TAKES, outcome) for at, outcome in enumerate(outcomes)]
    contact = Contact(0.0, GAP)
    for attempt in attempts:
        contact = contact.after(attempt)
    return contact, attempts


def test_silence_is_the_last_unbroken_series_for_every_sequence_of_answers() -> None:
    for length in range(1, 9):
        for outcomes in product(Outcome, repeat=length):
            contact, attempts = told(outcomes)
            series: list[Attempt] = []
            for attempt in reversed(attempts):
                if attempt.outcome is not SILENT:
                    break
                series.append(attempt)
            expected = series[0].ended - series[-1].began if len(series) > 1 else 0.0
            assert contact.silence == expected, outcomes


steps = st.lists(st.tuples(st.sampled_from(["served", "unserved", "silent", "wait", "still"]), st.integers(0, 90)), max_size=30)


def unbroken(attempts: Sequence[Attempt], broken_at: float) -> list[Attempt]:
    """The latest silent attempts since then without a gap between them, counted from the end."""
    series: list[Attempt] = []
    for attempt in reversed(attempts):
        if attempt.began < broken_at or series and series[0].began - attempt.ended > GAP:
            break
        series.insert(0, attempt)
    return series


@given(steps)
def test_silence_holds_no_answer_no_standstill_and_no_time_without_attempts(history: list[tuple[str, int]]) -> None:
    contact, now, broken_at, served = Contact(0.0, GAP), 0.0, 0.0, 0.0
    asked: list[Attempt] = []
    for what, seconds in history:
        start, now = now, now + seconds
        if what == "still":
            contact, broken_at, served = contact.stood_still(start, now), now, served + seconds
        elif what != "wait":
            attempt = Attempt(start, now, Outcome(what))
            contact = contact.after(attempt)
            asked, broken_at = ([*asked, attempt], broken_at) if what == "silent" else ([], broken_at)
            served = now if what == "served" else served
    series = unbroken(asked, broken_at)
    assert contact.served_at == served
    assert contact.silence == (series[-1].ended - series[0].began if len(series) > 1 else 0.0)


def test_an_attempt_that_a_standstill_interrupted_proves_nothing() -> None:
    contact, _ = told([SILENT, SILENT])
    frozen = contact.stood_still(22.0, 300.0)
    assert frozen.after(Attempt(21.0, 301.0, SILENT)).silence == 0.0
    assert frozen.after(Attempt(21.0, 301.0, SILENT)).after(Attempt(310.0, 315.0, SILENT)).silence == 0.0


@asynccontextmanager
async def watched(clock: ManualClock, *, lost_after: float = 40.0) -> AsyncIterator[tuple[Reach, list[bool]]]:
    flips: list[bool] = []
    reach = Reach(clock, lost_after=lost_after, ask_every=EVERY)
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


async def test_a_process_that_stands_still_now_and_then_never_finds_the_worker_silent_or_lost() -> None:
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
