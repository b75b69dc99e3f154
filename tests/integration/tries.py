"""Promises of speed, on a machine that has other things to do: that one try is late says nothing, that most of them are does.

Invariant: what is late each time is told, however busy the machine is; no more tries are made than are needed to know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

TRIES = 5
"""At most, so that the median is the third."""


async def median_within(limit: float, once: Callable[[], Awaitable[float]], what: str) -> Sequence[float]:
    """The seconds of all tries that were made. AssertionError unless their median is below `limit`."""
    most, seen = TRIES // 2 + 1, list[float]()
    while True:
        seen.append(await once())
        late = sum(seconds >= limit for seconds in seen)
        assert late < most, f"{what} takes longer than {limit:g} s: {seen}"
        if len(seen) - late >= most:
            print(f"{what}: {', '.join(f'{seconds:.2f}' for seconds in seen)} s")
            return seen
