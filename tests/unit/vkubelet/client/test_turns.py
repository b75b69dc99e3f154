"""How many tasks pass in one turn of the event loop."""

import asyncio
from collections import Counter

from vkubelet.client.turns import Turns


async def _passed(turns: Turns, order: list[tuple[int, int]], *, tasks: int, times: int, cancelled: frozenset[int] = frozenset()) -> None:
    turn = 0

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def work(number: int) -> None:
        for _ in range(times):
            await turns.take()
            order.append((turn, number))

    async with asyncio.TaskGroup() as group:
        counting = group.create_task(count())
        working = [group.create_task(work(number)) for number in range(tasks)]
        await asyncio.sleep(0)
        for number in cancelled:
            working[number].cancel()
        await asyncio.wait(working)
        counting.cancel()


async def test_no_turn_has_more_than_its_size_and_none_is_left_unused() -> None:
    order = list[tuple[int, int]]()
    await _passed(Turns(3), order, tasks=20, times=5)
    assert Counter(number for _, number in order) == dict.fromkeys(range(20), 5)
    assert max(Counter(turn for turn, _ in order).values()) == 3
    assert order[-1][0] - order[0][0] <= 100 / 3 + 1


async def test_tasks_pass_in_the_order_in_which_they_came() -> None:
    order = list[tuple[int, int]]()
    await _passed(Turns(3), order, tasks=20, times=1)
    assert [number for _, number in order] == [*range(20)]


async def test_cancelled_tasks_take_no_place() -> None:
    order = list[tuple[int, int]]()
    await _passed(Turns(2), order, tasks=12, times=1, cancelled=frozenset(range(4, 12)))
    assert [number for _, number in order] == [0, 1, 2, 3]
    assert order[-1][0] - order[0][0] <= 2


async def test_a_task_passes_at_once_after_the_others() -> None:
    turns, order = Turns(2), list[tuple[int, int]]()
    await _passed(turns, order, tasks=5, times=1)
    await asyncio.sleep(0)
    taking = turns.take()
    try:
        taking.send(None)
        raise AssertionError("the task waits although the turn has place")
    except StopIteration:
        pass
