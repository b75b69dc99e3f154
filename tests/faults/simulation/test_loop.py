"""The deterministic event loop: virtual time, the order of ready callbacks, processes that are killed or stopped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.faults.simulation.branches import Branch
from tests.faults.simulation.loop import LoopClock, SimulatedLoop, Stuck, shuffle
from tests.faults.simulation.network import LATENCIES, Network
from tests.faults.simulation.schedule import Schedule


def ran(main: Callable[[SimulatedLoop], Awaitable[object]], seed: int = 0) -> SimulatedLoop:
    loop = SimulatedLoop(random.Random(seed))
    loop.run_until_complete(main(loop))
    loop.dispose()
    return loop


def test_an_hour_of_sleep_takes_no_real_time() -> None:
    woken: list[float] = []

    async def main(loop: SimulatedLoop) -> None:
        clock = LoopClock(loop)
        await clock.sleep(3600.0)
        woken.append(clock.monotonic())

    ran(main)
    assert woken == [3600.0]


def test_callbacks_keep_the_order_that_asyncio_promises() -> None:
    order: list[int] = []

    async def main(loop: SimulatedLoop) -> None:
        for number in range(20):
            loop.call_soon(order.append, number)
        await asyncio.sleep(0)

    for seed in range(5):
        ran(main, seed)
    assert order == 5 * list(range(20))


def order_of_equal_timers(seed: int) -> list[int]:
    order: list[int] = []

    async def main(loop: SimulatedLoop) -> None:
        for number in range(20):
            loop.call_at(1.0, order.append, number)
        loop.call_at(0.5, order.append, -1)
        await asyncio.sleep(2.0)

    ran(main, seed)
    return order


def test_the_seed_decides_the_order_of_timers_due_at_once() -> None:
    orders = [order_of_equal_timers(seed) for seed in range(5)]
    assert order_of_equal_timers(3) == orders[3]
    assert len({tuple(order) for order in orders}) > 1
    assert all(order[0] == -1 and sorted(order) == list(range(-1, 20)) for order in orders)


def test_timers_are_shuffled_as_by_the_standard_library() -> None:
    ours, theirs = random.Random(7), random.Random(7)
    for length in range(40):
        mine, other = list(range(length)), list(range(length))
        shuffle(mine, ours.getrandbits)
        theirs.shuffle(other)
        assert mine == other
    assert ours.random() == theirs.random()


def test_latencies_are_chosen_as_by_the_standard_library() -> None:
    ours, theirs = random.Random(7), random.Random(7)
    network = Network(SimulatedLoop(random.Random(0)), ours, Branch([Schedule("mock", "pods", 1)]))
    assert [network.latency() for _ in range(200)] == [theirs.choice(LATENCIES) for _ in range(200)]
    assert ours.random() == theirs.random()


def test_a_killed_process_runs_no_handler_and_no_cleanup() -> None:
    seen: list[str] = []

    async def process() -> None:
        try:
            await asyncio.sleep(5.0)
            seen.append("went on")
        finally:
            seen.append("cleaned up")

    async def main(loop: SimulatedLoop) -> None:
        loop.start("victim", process())
        loop.start("other", _says(seen, "other"))
        await asyncio.sleep(1.0)
        loop.kill("victim")
        await asyncio.sleep(10.0)
        assert seen == ["other"]
        assert not loop.lives("victim") and loop.tasks_of("victim")

    ran(main)


async def _says(seen: list[str], what: str) -> None:
    await asyncio.sleep(2.0)
    seen.append(what)


def test_a_stopped_process_continues_after_its_standstill() -> None:
    seen: list[float] = []

    async def process(loop: SimulatedLoop) -> None:
        for _ in range(3):
            await asyncio.sleep(1.0)
            seen.append(loop.time())

    async def main(loop: SimulatedLoop) -> None:
        loop.start("paused", process(loop))
        await asyncio.sleep(1.5)
        loop.stall("paused", 60.0)
        await asyncio.sleep(100.0)

    ran(main)
    assert seen == [1.0, 61.5, 62.5]


def test_a_program_that_waits_for_nothing_is_reported() -> None:
    async def main(loop: SimulatedLoop) -> None:
        await loop.create_future()

    with pytest.raises(Stuck, match="every task waits"):
        ran(main)


def test_a_program_that_runs_in_circles_is_reported() -> None:
    async def main(loop: SimulatedLoop) -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="run without end"):
        ran(main)


def test_sets_of_tasks_have_the_same_order_in_every_run() -> None:
    def order() -> list[str]:
        names: list[str] = []

        async def main(loop: SimulatedLoop) -> None:
            padding = [object() for _ in range(random.randrange(1000))]
            tasks = {loop.create_task(asyncio.sleep(1.0), name=str(number)) for number in range(50)}
            names.extend(task.get_name() for task in tasks)
            assert padding is not None
            await asyncio.wait(tasks)

        ran(main)
        return names

    assert order() == order()


def test_work_for_threads_runs_inline_and_its_errors_arrive() -> None:
    def fails() -> None:
        raise ValueError("from a thread")

    async def main(loop: SimulatedLoop) -> None:
        assert await asyncio.to_thread(lambda: 7) == 7
        with pytest.raises(ValueError, match="from a thread"):
            await asyncio.to_thread(fails)

    ran(main)
