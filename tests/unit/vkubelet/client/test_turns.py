"""How long tasks pass in one turn of the event loop."""

import asyncio
from collections import Counter

from vkubelet.client.turns import LONGEST, RELEASED, Turns


class Passing:
    """Tasks that take turns, each of which works for some seconds then."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.turns = Turns(lambda: self.now)
        self.order = list[tuple[int, int]]()
        self.turn = 0

    async def _count(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    async def _work(self, number: int, times: int, urgent: bool) -> None:
        for _ in range(times):
            await self.turns.take(urgent=urgent)
            self.order.append((self.turn, number))
            self.now += self.seconds

    async def run(
        self, *, tasks: int, times: int = 1, cancelled: frozenset[int] = frozenset(), urgent: frozenset[int] = frozenset()
    ) -> None:
        async with asyncio.TaskGroup() as group:
            counting = group.create_task(self._count())
            working = [group.create_task(self._work(number, times, number in urgent)) for number in range(tasks)]
            await asyncio.sleep(0)
            for number in cancelled:
                working[number].cancel()
            await asyncio.wait(working)
            counting.cancel()

    def each_turn(self) -> list[int]:
        """How many tasks passed in each turn, in their order."""
        return list(Counter(turn for turn, _ in self.order).values())


async def test_short_tasks_pass_in_one_turn() -> None:
    passing = Passing(0.0)
    await passing.run(tasks=100)
    assert passing.each_turn() == [100]


async def test_no_task_passes_after_a_turn_has_lasted_too_long() -> None:
    passing = Passing(LONGEST * 0.4)
    await passing.run(tasks=3 + 2 * RELEASED + 1)
    assert passing.each_turn() == [3, RELEASED, RELEASED, 1], "as many as have time, then a few of those who wait in each turn"


async def test_no_turn_is_left_unused() -> None:
    passing = Passing(LONGEST)
    await passing.run(tasks=20, times=5)
    assert Counter(number for _, number in passing.order) == dict.fromkeys(range(20), 5)
    assert max(passing.each_turn()) == RELEASED
    assert passing.order[-1][0] - passing.order[0][0] <= 2 + 100 / RELEASED


async def test_tasks_pass_in_the_order_in_which_they_came() -> None:
    passing = Passing(LONGEST)
    await passing.run(tasks=20)
    assert [number for _, number in passing.order] == [*range(20)]


async def test_urgent_tasks_pass_before_those_that_wait() -> None:
    passing = Passing(LONGEST)
    await passing.run(tasks=20, urgent=frozenset((17, 19)))
    assert [number for _, number in passing.order] == [0, 17, 19, *range(1, 17), 18]


async def test_urgent_tasks_leave_a_place_in_each_turn_to_others() -> None:
    passing = Passing(LONGEST)
    await passing.run(tasks=40, urgent=frozenset(range(10, 40)))
    second = [number for turn, number in passing.order if turn == passing.order[1][0]]
    assert second == [*range(10, 10 + RELEASED - 1), 1]


async def test_cancelled_tasks_take_no_place() -> None:
    passing = Passing(LONGEST)
    await passing.run(tasks=20, cancelled=frozenset(range(1, 12)))
    assert [number for _, number in passing.order] == [0, *range(12, 20)]
    assert passing.each_turn() == [1, 8]


async def test_a_task_passes_at_once_after_the_others() -> None:
    passing = Passing(LONGEST)
    await passing.run(tasks=20)
    await asyncio.sleep(0)
    taking = passing.turns.take()
    try:
        taking.send(None)
        raise AssertionError("the task waits although the turn has time")
    except StopIteration:
        pass


async def test_all_clients_of_a_loop_share_one_gate() -> None:
    assert Turns.shared(lambda: 0.0) is Turns.shared(lambda: 1.0)
