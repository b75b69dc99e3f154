"""Deduplication, delays, priorities of the workqueue."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from vkubelet.control.workqueue import Priority, Workqueue
from vkubelet.metrics import Metrics
from vkubelet.testing.clock import ManualClock


@asynccontextmanager
async def ticking(queue: Workqueue[str]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        timer = group.create_task(queue.run())
        yield
        timer.cancel()


async def drain(queue: Workqueue[str]) -> list[str]:
    """Everything that is due now, each done at once."""
    keys = []
    while True:
        try:
            async with asyncio.timeout(0):
                keys.append(await queue.get())
        except TimeoutError:
            return keys
        queue.done(keys[-1])


async def test_key_added_twice_is_given_out_once() -> None:
    queue = Workqueue[str]("q", clock=ManualClock())
    queue.add("a")
    queue.add("a")
    assert len(queue) == 1
    assert await drain(queue) == ["a"]
    assert len(queue) == 0


async def test_key_added_while_out_comes_back_only_after_done() -> None:
    queue = Workqueue[str]("q", clock=ManualClock())
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.add("a")
    assert "a" in queue
    assert await drain(queue) == []
    queue.done(key)
    assert await drain(queue) == ["a"]


async def test_key_not_added_while_out_does_not_come_back() -> None:
    queue = Workqueue[str]("q", clock=ManualClock())
    queue.add("a")
    queue.done(await queue.get())
    assert await drain(queue) == []
    assert "a" not in queue


async def test_delayed_key_comes_at_its_time_not_before() -> None:
    clock = ManualClock()
    queue = Workqueue[str]("q", clock=clock)
    async with ticking(queue), asyncio.TaskGroup() as group:
        queue.add("a", after=10)
        waiting = group.create_task(queue.get())
        await clock.advance(9.9)
        assert not waiting.done()
        await clock.advance(0.1)
        assert waiting.done()


async def test_earliest_of_several_times_holds() -> None:
    clock = ManualClock()
    queue = Workqueue[str]("q", clock=clock)
    async with ticking(queue):
        queue.add("a", after=10)
        queue.add("a", after=2)
        queue.add("a", after=60)
        await clock.advance(2)
        assert await drain(queue) == ["a"]
        await clock.advance(100)
        assert await drain(queue) == []


async def test_earliest_time_holds_for_keys_that_are_out() -> None:
    clock = ManualClock()
    queue = Workqueue[str]("q", clock=clock)
    async with ticking(queue):
        queue.add("a")
        await queue.get()
        queue.add("a", after=60)
        queue.add("a", after=5)
        queue.done("a")
        await clock.advance(4)
        assert await drain(queue) == []
        await clock.advance(1)
        assert await drain(queue) == ["a"]


async def test_many_delays_are_served_in_order_of_their_times() -> None:
    clock = ManualClock()
    queue = Workqueue[str]("q", clock=clock)
    async with ticking(queue):
        for seconds in (7, 3, 5, 1):
            queue.add(str(seconds), after=seconds)
        await clock.advance(3)
        assert await drain(queue) == ["1", "3"]
        await clock.advance(4)
        assert await drain(queue) == ["5", "7"]


async def test_delay_is_served_at_times_that_have_no_exact_binary_form() -> None:
    clock = ManualClock()
    queue = Workqueue[str]("q", clock=clock)
    async with ticking(queue):
        for number in range(1, 300):
            await clock.advance(number / 7)
            queue.add("a", after=number / 30)
            await clock.advance(number / 29)
            assert await drain(queue) == ["a"]


async def test_high_priority_overtakes_a_long_first_list() -> None:
    queue = Workqueue[str]("q", clock=ManualClock())
    for number in range(100):
        queue.add(f"old-{number}", priority=Priority.LOW)
    queue.add("delete-me")
    assert await queue.get() == "delete-me"
    assert queue.priority("delete-me") is Priority.HIGH
    assert await queue.get() == "old-0"


async def test_low_priority_key_is_raised_by_a_high_priority_add_and_not_lowered() -> None:
    queue = Workqueue[str]("q", clock=ManualClock())
    queue.add("a", priority=Priority.LOW)
    queue.add("b", priority=Priority.LOW)
    queue.add("b")
    queue.add("b", priority=Priority.LOW)
    assert await drain(queue) == ["b", "a"]


async def test_discarded_key_is_not_given_out_but_a_later_add_is() -> None:
    queue = Workqueue[str]("q", clock=ManualClock())
    queue.add("a")
    queue.discard("a")
    queue.add("b")
    assert await drain(queue) == ["b"]
    queue.add("a")
    assert await drain(queue) == ["a"]


async def test_discard_while_out_cancels_the_return() -> None:
    queue = Workqueue[str]("q", clock=ManualClock())
    queue.add("a")
    await queue.get()
    queue.add("a")
    queue.discard("a")
    queue.done("a")
    assert await drain(queue) == []


async def test_waiting_workers_get_one_key_each() -> None:
    clock = ManualClock()
    queue = Workqueue[str]("q", clock=clock)
    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(queue.get()) for _ in range(3)]
        await clock.settle()
        for key in "abc":
            queue.add(key)
    assert sorted(worker.result() for worker in workers) == ["a", "b", "c"]


async def test_key_is_not_lost_with_a_cancelled_worker() -> None:
    clock = ManualClock()
    queue = Workqueue[str]("q", clock=clock)
    async with asyncio.TaskGroup() as group:
        leaving, staying = group.create_task(queue.get()), group.create_task(queue.get())
        await clock.settle()
        queue.add("a")
        leaving.cancel()
    assert staying.result() == "a"


async def test_metrics_tell_depth_and_age_of_what_is_due() -> None:
    clock, registry = ManualClock(), CollectorRegistry()
    queue = Workqueue[str]("pods", clock=clock, metrics=Metrics(registry))

    def value(name: str) -> float | None:
        return registry.get_sample_value(name, {"queue": "pods"})

    async with ticking(queue):
        assert (value("vkubelet_queue_depth"), value("vkubelet_queue_oldest_seconds")) == (0, 0)
        queue.add("a")
        queue.add("b")
        queue.add("later", after=100)
        await clock.advance(7)
        assert (value("vkubelet_queue_depth"), value("vkubelet_queue_oldest_seconds")) == (2, 7)


async def test_delays_that_were_overtaken_take_no_memory() -> None:
    queue = Workqueue[str]("q", clock=ManualClock())
    queue.add("sooner", after=100)
    for _ in range(5000):
        queue.add("a", after=300)
        queue.add("a")
        queue.done(await queue.get())
    assert sys.getsizeof(queue._delayed) < 10_000


@pytest.mark.parametrize("after", [-5.0, 0.0])
async def test_negative_delay_is_no_delay(after: float) -> None:
    queue = Workqueue[str]("q", clock=ManualClock())
    queue.add("a", after=after)
    assert await drain(queue) == ["a"]


async def test_queue_is_idle_when_nothing_is_out_or_due_soon() -> None:
    clock = ManualClock()
    queue = Workqueue[str]("q", clock=clock)
    assert queue.is_idle(within=100)
    queue.add("later", after=10)
    assert queue.is_idle(within=9)
    assert not queue.is_idle(within=10)
    queue.add("now")
    assert not queue.is_idle()
    key = await queue.get()
    assert not queue.is_idle(), "a key that is out is work"
    queue.done(key)
    assert queue.is_idle()
