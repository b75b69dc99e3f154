"""Who is blamed when the loop stands still."""

from __future__ import annotations

import asyncio
import time
import types

from vkubelet.clock import SystemClock
from vkubelet.testing.conformance.blocking import LIMIT, BlockingWatch


def module(name: str) -> types.ModuleType:
    """A module that waits in a way it should not."""
    made = types.ModuleType(name)
    exec("def wait(call, seconds):\n    call(seconds)\n", made.__dict__)
    return made


async def watched(name: str, seconds: float) -> BlockingWatch:
    with BlockingWatch(SystemClock()) as watch:
        await asyncio.sleep(0.1)
        module(name).wait(time.sleep, seconds)
        await asyncio.sleep(0.1)
    return watch


async def test_code_of_a_provider_that_blocks_is_named() -> None:
    # This test stands in the same stack, as would everything else that is not ours.
    watch = await watched("vkubelet.some", 3 * LIMIT)
    assert [stall.where.partition(":")[0] for stall in watch.stalls] == ["test_blocking.py"]
    assert watch.stalls[0].seconds > LIMIT and watch.longest > LIMIT


async def test_many_short_calls_of_a_provider_in_one_turn_are_no_stall_of_any() -> None:
    """As where the machine has had no time for the loop, and everything comes at once."""
    with BlockingWatch(SystemClock()) as watch:
        await asyncio.sleep(0.1)
        for _ in range(60):
            asyncio.get_running_loop().call_soon(module("busy").wait, time.sleep, LIMIT / 20)
        await asyncio.sleep(0.1)
    assert watch.longest > LIMIT and not watch.stalls


def test_our_own_code_is_not_a_providers() -> None:
    async def ours() -> BlockingWatch:
        with BlockingWatch(SystemClock()) as watch:
            await asyncio.sleep(0.1)
            asyncio.get_running_loop().call_soon(time.sleep, 3 * LIMIT)
            await asyncio.sleep(0.1)
        return watch

    watch = asyncio.run(ours())
    assert not watch.stalls and watch.longest > LIMIT
