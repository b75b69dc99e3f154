"""Calls that answer, fail, hang or are cancelled, with a limit of time."""

from __future__ import annotations

import asyncio

import pytest

from vkubelet.control.answered import LIMIT, answered
from vkubelet.errors import Unavailable
from vkubelet.testing.clock import ManualClock


async def test_answer_and_error_of_the_call_pass_unchanged() -> None:
    async def fail(error: Exception) -> None:
        raise error

    clock = ManualClock()
    assert await answered(asyncio.sleep(0, "answer"), "call", clock=clock) == "answer"
    for error in (KeyError("key"), TimeoutError("its own"), ExceptionGroup("two", [ValueError(), OSError()])):
        with pytest.raises(type(error)) as raised:
            await answered(fail(error), "call", clock=clock)
        assert raised.value is error
    assert clock.sleepers == 0


async def test_call_that_hangs_is_cancelled_and_unavailable() -> None:
    ended: list[float] = []
    clock = ManualClock(autojump=True)

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(clock.monotonic())

    with pytest.raises(Unavailable, match="^stop_container did not answer within 30 s$"):
        await answered(hang(), "stop_container", clock=clock)
    assert ended == [LIMIT]


async def test_cancellation_from_outside_ends_the_call_and_stays_one() -> None:
    clock, hung = ManualClock(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(answered(hung.wait(), "call", clock=clock))
        await clock.settle()
        task.cancel()
    assert task.cancelled()
    assert clock.sleepers == 0
