"""CPU profile of the process: sampled stacks of its event loop, in the format that `go tool pprof` reads.

Invariant: a profile contains places in the source, never values.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

EVERY = 0.01
"""Seconds between two samples, as the profiler of Go takes them."""

Place = tuple[str, str, int]
"""Function, file and line."""

Stack = tuple[Place, ...]
"""The innermost place first."""


async def profile(seconds: float, monotonic: Callable[[], float]) -> Counter[Stack]:
    """Counts how often the calling thread was sampled with which stack within that many seconds; cancelling the caller stops it at once."""
    stop, thread = threading.Event(), threading.get_ident()
    try:
        return await asyncio.to_thread(_sample, thread, monotonic() + seconds, stop=stop, monotonic=monotonic)
    finally:
        stop.set()


def _sample(thread: int, end: float, *, stop: threading.Event, monotonic: Callable[[], float]) -> Counter[Stack]:
    seen: Counter[Stack] = Counter()
    while not stop.wait(EVERY) and monotonic() < end:
        frame = sys._current_frames().get(thread)
        if frame is not None:
            seen[_stack(frame)] += 1
    return seen


def _stack(innermost: FrameType) -> Stack:
    return tuple(_places(innermost))


def _places(frame: FrameType | None) -> Iterator[Place]:
    while frame is not None:
        code = frame.f_code
        yield code.co_qualname if hasattr(code, "co_qualname") else code.co_name, code.co_filename, frame.f_lineno
        frame = frame.f_back


def waiting_tasks() -> str:
    """Lists the tasks of the running loop by name, each with where it waits."""
    blocks = []
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        out = io.StringIO()
        task.print_stack(file=out)
        blocks.append(f"task {task.get_name()}:\n{out.getvalue()}")
    return f"{len(blocks)} tasks\n\n" + "\n".join(blocks)


# --- The format: protocol buffers, message perftools.profiles.Profile -------------------------------------------------------------------


def encoded(samples: Mapping[Stack, int], seconds: float) -> bytes:
    """Returns a gzipped profile with the sample types of a CPU profile of Go."""
    strings: dict[str, int] = {"": 0}
    functions: dict[tuple[str, str], int] = {}
    locations: dict[Place, int] = {}
    period = round(EVERY * 1_000_000_000)

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    def location(place: Place) -> int:
        functions.setdefault(place[:2], len(functions) + 1)
        return locations.setdefault(place, len(locations) + 1)

    def kind(name: str, unit: str) -> bytes:
        return _number(1, text(name)) + _number(2, text(unit))

    body = _bytes(1, kind("samples", "count")) + _bytes(1, kind("cpu", "nanoseconds"))
    for stack, count in samples.items():
        places = b"".join(_number(1, location(place)) for place in stack)
        body += _bytes(2, places + _number(2, count) + _number(2, count * period))
    for (name, file, line), number in locations.items():
        body += _bytes(4, _number(1, number) + _bytes(4, _number(1, functions[name, file]) + _number(2, line)))
    for (name, file), number in functions.items():
        body += _bytes(5, _number(1, number) + _number(2, text(name)) + _number(3, text(name)) + _number(4, text(file)))
    body += _number(10, round(seconds * 1_000_000_000)) + _bytes(11, kind("cpu", "nanoseconds")) + _number(12, period)
    return gzip.compress(body + b"".join(_bytes(6, value.encode()) for value in strings), mtime=0)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
