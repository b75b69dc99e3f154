"""A profile is taken of the thread that asks, and encoded so that it can be read back."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator

from vkubelet.clock import SystemClock
from vkubelet.server.profiling import EVERY, encoded, profile, waiting_tasks


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of one protocol buffer message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            length = varint()
            at += length
            yield key >> 3, data[at - length : at]


def inside(message: list[tuple[int, int | bytes]], number: int) -> list[dict[int, int | bytes]]:
    return [dict(fields(value)) for field, value in message if field == number and isinstance(value, bytes)]


def test_encoded_samples_lead_back_to_functions_files_and_lines() -> None:
    inner, outer = ("work", "/a.py", 7), ("main", "/b.py", 300)
    message = list(fields(gzip.decompress(encoded({(inner, outer): 3, (outer,): 1}, 2.0))))
    strings = [value.decode() for field, value in message if field == 6 and isinstance(value, bytes)]
    assert strings[0] == ""
    functions = {f[1]: (strings[int(f[2])], strings[int(f[4])]) for f in inside(message, 5)}
    places = {}
    for location in inside(message, 4):
        assert isinstance(location[4], bytes)
        line = dict(fields(location[4]))
        places[location[1]] = (*functions[line[1]], line[2])
    samples = []
    for field, value in message:
        if field == 2 and isinstance(value, bytes):
            stack = [places[n] for kind, n in fields(value) if kind == 1]
            samples.append((stack, [n for kind, n in fields(value) if kind == 2]))
    period = round(EVERY * 1e9)
    assert samples == [([inner, outer], [3, 3 * period]), ([outer], [1, period])]
    kinds = [(strings[int(kind[1])], strings[int(kind[2])]) for kind in inside(message, 1)]
    assert kinds == [("samples", "count"), ("cpu", "nanoseconds")]
    assert dict(message)[10] == 2_000_000_000


async def test_a_profile_shows_the_function_that_keeps_the_loop_busy() -> None:
    clock = SystemClock()

    def spin() -> None:
        end = clock.monotonic() + 0.3
        while clock.monotonic() < end:
            pass

    asyncio.get_running_loop().call_soon(spin)
    samples = await profile(0.4, clock.monotonic)
    assert any("spin" in function for stack in samples for function, _, _ in stack)


async def test_a_cancelled_profile_ends_at_once() -> None:
    clock = SystemClock()
    began = clock.monotonic()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(profile(60.0, clock.monotonic))
        await clock.sleep(0.05)
        task.cancel()
    assert clock.monotonic() - began < 30


async def test_tasks_are_listed_by_name_with_their_place() -> None:
    async with asyncio.TaskGroup() as group:
        waiter = group.create_task(asyncio.Event().wait(), name="a patient one")
        await asyncio.sleep(0)
        text = waiting_tasks()
        waiter.cancel()
    assert "task a patient one:" in text
    assert "in wait" in text
