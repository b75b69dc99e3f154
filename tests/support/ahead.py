"""Tests that wait for most of their time and share nothing but clusters: they run side by side, each with its own report.

Invariant: such a test runs once, in a task of its own with function-scoped values of its own, while no other type of test runs; its turn
waits for its end and raises what it raised.

    @ahead("scene", "tmp_path")
    async def test_a_worker_joins(scene: MakeScene, peer: PeerHub) -> None: ...
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from itertools import takewhile
from typing import Any

import pytest
from attrs import field, frozen

from tests.support.beside import Beside

AT_ONCE = 4
"""Tests that run at the same time: enough to use the CPU that each leaves, few enough for limits of time on a loaded machine."""
Test = Callable[..., Awaitable[None]]
Make = Mapping[str, Callable[[], AbstractAsyncContextManager[Any]]]
"""Makes function-scoped values, by their names."""


def ahead(*own: str, group: str = "", long: bool = False) -> Callable[[Test], Test]:
    """Marks a test that may run beside others of its directory that have the same `group`. `own` names its function-scoped values, which
    the fixture `crowd` makes; its other arguments are parameters, and fixtures of a scope that all of these tests share. A `long` one is
    started before others, so that nothing has to wait for it alone."""

    def marked(test: Test) -> Test:
        async def turn(crowd: Crowd, request: pytest.FixtureRequest, **_: Any) -> None:
            await crowd.turn(request)

        given = inspect.signature(test).parameters.values()
        shared = [each for each in given if each.name not in own]
        added = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("crowd", "request")]
        turn.__name__, turn.__qualname__, turn.__doc__, turn.__module__ = test.__name__, test.__qualname__, test.__doc__, test.__module__
        turn.__signature__ = inspect.Signature([*added, *shared])  # type: ignore[attr-defined]
        turn.group, turn.long = group, long  # type: ignore[attr-defined]
        turn.ahead = partial(_run, test, own)  # type: ignore[attr-defined]
        turn.shared = [each.name for each in shared]  # type: ignore[attr-defined]
        return turn

    return marked


def group_of(item: pytest.Item) -> tuple[str, ...]:
    """Tests with equal groups, which is empty for one that runs alone, may run side by side when they follow one another."""
    function = getattr(item, "function", None)
    return (str(item.path.parent), function.group) if hasattr(function, "ahead") else ()


async def _run(test: Test, own: Sequence[str], make: Make, shared: Mapping[str, Any]) -> None:
    async with AsyncExitStack() as stack:
        values = {name: await stack.enter_async_context(make[name]()) for name in own}
        await test(**shared, **values)


@frozen
class Crowd:
    """The tests of one directory; `make` has their function-scoped values."""

    beside: Beside
    make: Make
    _runs: dict[str, concurrent.futures.Future[None]] = field(factory=dict)

    async def turn(self, request: pytest.FixtureRequest) -> None:
        """Starts this test, and all that may run beside it until the next one that may not; waits for the end of this one."""
        if request.node.nodeid not in self._runs:
            items, group = request.session.items, group_of(request.node)
            places = asyncio.Semaphore(AT_ONCE)
            beside = takewhile(lambda item: group_of(item) == group, items[items.index(request.node) :])
            for item in sorted(beside, key=_starts_last):
                values = self._shared(item, request)
                self._runs[item.nodeid] = self.beside.submit(self._start(item, values, places))
        await asyncio.wrap_future(self._runs[request.node.nodeid])

    def _shared(self, item: Any, request: pytest.FixtureRequest) -> dict[str, Any]:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        return {**{name: request.getfixturevalue(name) for name in item.function.shared if name not in parameters}, **parameters}

    async def _start(self, item: Any, values: Mapping[str, Any], places: asyncio.Semaphore) -> None:
        async with places:
            await item.function.ahead(self.make, values)


def _starts_last(item: Any) -> bool:
    return not item.function.long


def crowd_of(make: Make) -> Iterator[Crowd]:
    """The body of a fixture `crowd`."""
    with Beside() as beside:
        yield Crowd(beside, make)
