"""Tests of work in a thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from vkubelet_providers.process.threads import in_thread


async def test_a_cancellation_waits_for_the_work() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(10)
        ended.set()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(in_thread(work))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
        may_end.set()
    assert ended.is_set() and task.cancelled()


async def test_what_the_work_returns_or_raises_comes_back() -> None:
    assert await in_thread(int, "12") == 12
    with pytest.raises(ValueError):
        await in_thread(int, "twelve")


async def test_work_that_hangs_takes_no_thread_from_other_work() -> None:
    may_end = threading.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(40):
            group.create_task(in_thread(may_end.wait, 30))
        work = group.create_task(in_thread(int, "12"))
        done, _ = await asyncio.wait({work}, timeout=5)
        may_end.set()
    assert done
