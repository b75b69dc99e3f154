"""The clock that tests move by hand."""

import asyncio

import pytest

from vkubelet.clock import Clock
from vkubelet.testing.clock import ManualClock


async def test_time_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock()
    before = clock.now()
    await clock.advance(90.5)
    assert clock.monotonic() == 90.5
    assert (clock.now() - before).total_seconds() == 90.5


async def test_sleepers_wake_in_order_each_at_its_own_time() -> None:
    clock, woken = ManualClock(), list[tuple[str, float]]()

    async def sleep(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("late", 3.0), ("early", 1.0), ("middle", 2.0), ("never", 9.0)):
            task = group.create_task(sleep(name, seconds))
        await clock.advance(5)
        assert woken == [("early", 1.0), ("middle", 2.0), ("late", 3.0)]
        assert clock.sleepers == 1
        task.cancel()


async def test_sleeper_that_sleeps_again_wakes_within_the_same_advance() -> None:
    clock, ticks = ManualClock(), list[float]()

    async def tick() -> None:
        while True:
            await clock.sleep(10)
            ticks.append(clock.monotonic())

    async with asyncio.TaskGroup() as group:
        task = group.create_task(tick())
        await clock.advance(35)
        task.cancel()
    assert ticks == [10, 20, 30]


async def test_tasks_that_hand_work_to_each_other_are_quiet_before_time_moves() -> None:
    clock, queue, seen = ManualClock(), asyncio.Queue[int](), list[tuple[int, float]]()

    async def pass_on() -> None:
        while True:
            number = await queue.get()
            seen.append((number, clock.monotonic()))
            if number:
                queue.put_nowait(number - 1)

    async def start() -> None:
        await clock.sleep(1)
        queue.put_nowait(50)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(pass_on()), group.create_task(start()), group.create_task(clock.sleep(2))]
        await clock.advance(2)
        for task in tasks:
            task.cancel()
    assert seen == [(number, 1.0) for number in range(50, -1, -1)]


async def test_zero_only_lets_others_run() -> None:
    clock = ManualClock()
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.monotonic() == 0


async def test_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await clock.sleep(5)
    assert clock.sleepers == 0
    await clock.advance(10)


async def test_autojump_makes_an_hour_pass_while_everybody_waits() -> None:
    clock, order = ManualClock(autojump=True), list[str]()

    async def worker(name: str, seconds: float, times: int) -> None:
        for _ in range(times):
            await clock.sleep(seconds)
            order.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(worker("hour", 3600, 1))
        group.create_task(worker("third", 1300, 2))
    assert order == ["third", "third", "hour"]
    assert clock.monotonic() == 3600


async def test_autojump_does_not_jump_while_a_task_can_go_on() -> None:
    clock = ManualClock(autojump=True)

    async def busy() -> float:
        for _ in range(200):
            await asyncio.sleep(0)
        return clock.monotonic()

    async with asyncio.TaskGroup() as group:
        group.create_task(clock.sleep(10))
        finished = group.create_task(busy())
    assert finished.result() == 0


async def test_task_that_never_waits_is_an_error_not_a_hang() -> None:
    clock = ManualClock()

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(spin())
        with pytest.raises(RuntimeError, match="without ever waiting"):
            await clock.advance(1)
        task.cancel()


def test_it_is_a_clock() -> None:
    clock: Clock = ManualClock()
    assert clock.now().tzinfo is not None


async def test_sleep_too_short_to_be_added_still_takes_time() -> None:
    clock = ManualClock(autojump=True)
    await clock.advance(1e9)
    before = clock.monotonic()
    await clock.sleep(1e-30)
    assert clock.monotonic() > before
