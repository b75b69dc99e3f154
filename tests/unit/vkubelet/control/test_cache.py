"""Answers are held for their time and shared while they are looked up."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from vkubelet.control.cache import Answer, SharedCache
from vkubelet.errors import Unreachable
from vkubelet.testing.clock import ManualClock


class Lookup:
    """Counts calls, and answers when told to."""

    def __init__(self, lifetime: float = 10.0) -> None:
        self.calls = 0
        self.lifetime = lifetime
        self.go = asyncio.Event()
        self.error: Unreachable | None = None

    async def __call__(self) -> Answer[str]:
        self.calls += 1
        await self.go.wait()
        if self.error:
            raise self.error
        return Answer(f"answer {self.calls}", self.lifetime)


async def test_an_answer_is_held_for_its_lifetime_and_no_longer() -> None:
    clock, look_up = ManualClock(), Lookup()
    cache: SharedCache[str, str] = SharedCache(clock)
    look_up.go.set()
    assert await cache.get("a", look_up) == "answer 1"
    await clock.advance(9.9)
    assert await cache.get("a", look_up) == "answer 1"
    await clock.advance(0.2)
    assert await cache.get("a", look_up) == "answer 2"


async def test_those_who_ask_at_the_same_time_share_one_lookup_even_if_it_is_not_held() -> None:
    look_up = Lookup(lifetime=0)
    cache: SharedCache[str, str] = SharedCache(ManualClock())
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(cache.get("a", look_up)) for _ in range(5)]
        other = group.create_task(cache.get("b", look_up))
        while look_up.calls < 2:
            await asyncio.sleep(0)
        look_up.go.set()
    assert {task.result() for task in tasks} == {other.result()}
    assert look_up.calls == 2
    await cache.get("a", look_up)
    assert look_up.calls == 3


async def test_a_failure_is_shared_and_not_held() -> None:
    look_up = Lookup()
    look_up.error = Unreachable("ask", "no answer")
    cache: SharedCache[str, str] = SharedCache(ManualClock())
    waiting = [asyncio.ensure_future(cache.get("a", look_up)) for _ in range(3)]
    await asyncio.sleep(0)
    look_up.go.set()
    for each in waiting:
        with pytest.raises(Unreachable):
            await each
    assert look_up.calls == 1
    look_up.error = None
    assert await cache.get("a", look_up) == "answer 2"


async def test_a_caller_who_leaves_takes_nobody_elses_answer_away() -> None:
    look_up = Lookup()
    cache: SharedCache[str, str] = SharedCache(ManualClock())
    first, second, third = (asyncio.ensure_future(cache.get("a", look_up)) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    look_up.go.set()
    assert await second == await third == "answer 2"
    assert look_up.calls == 2


async def test_the_oldest_answer_goes_when_there_are_too_many() -> None:
    look_up = Lookup()
    look_up.go.set()
    cache: SharedCache[str, str] = SharedCache(ManualClock(), size=2)
    for key in ("a", "b", "c"):
        await cache.get(key, look_up)
    assert await cache.get("c", look_up) == "answer 3"
    assert await cache.get("b", look_up) == "answer 2"
    assert await cache.get("a", look_up) == "answer 4"


async def test_answers_that_nobody_will_get_any_more_take_no_memory() -> None:
    clock = ManualClock()
    cache: SharedCache[str, object] = SharedCache(clock)

    class Page:
        """Can be referred to weakly."""

    async def look_up() -> Answer[object]:
        return Answer(Page(), 1.0)

    old = weakref.ref(await cache.get("a", look_up))
    await clock.advance(2.0)
    gc.collect()
    assert old() is not None
    await cache.get("b", look_up)
    gc.collect()
    assert old() is None
