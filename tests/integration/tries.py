"""Promises of speed, on a machine that has other things to do: that one try is late says nothing, that most of them are does.

Invariant: what is late each time is told, however busy the machine is; no more tries are made than are needed to know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

TRIES = 5
"""At most, so that the median is the third."""
FEW_TRIES = 3
"""At most, of what takes so long that only the best counts."""


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


async def best_within(limit: float, once: Callable[[], Awaitable[float]], what: str) -> None:
    """AssertionError unless one of a few tries takes less than `limit` seconds."""
    seen = [await once()]
    while min(seen) >= limit and len(seen) < FEW_TRIES:
        seen.append(await once())
    print(f"{what}: {', '.join(f'{seconds:.2f}' for seconds in seen)} s")
    assert min(seen) < limit, f"{what} takes longer than {limit:g} s: {seen}"
