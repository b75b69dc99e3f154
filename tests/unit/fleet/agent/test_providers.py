"""Tests of fleet.agent.providers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from fleet.agent.providers import COLLECTED, STARTED, PropertyProviders
from vkubelet.testing.clock import ManualClock


class Provider:
    """Answers with `properties` when it is not `stuck`."""

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        self.properties = dict(properties or {})
        self.stuck = asyncio.Event()
        self.stuck.set()
        self.fails = ""
        self.calls = 0

    async def start(self) -> None:
        await self._answer()

    async def collect(self) -> Mapping[str, str]:
        self.calls += 1
        await self._answer()
        return dict(self.properties)

    async def _answer(self) -> None:
        await self.stuck.wait()
        if self.fails:
            raise ValueError(self.fails)


@asynccontextmanager
async def providers(clock: ManualClock, **found: Provider) -> AsyncIterator[PropertyProviders]:
    made = PropertyProviders(clock, {name: lambda each=each: each for name, each in found.items()})  # type: ignore[misc]
    task = asyncio.ensure_future(made.run())
    await clock.settle()
    yield made
    task.cancel()


async def collected(made: PropertyProviders, clock: ManualClock) -> Mapping[str, str]:
    """After the next collection, and the limit of its calls."""
    await clock.advance(70)
    return made.properties


async def test_f_164_properties_of_all_providers_are_collected() -> None:
    clock = ManualClock()
    async with providers(clock, a=Provider({"x": "1"}), b=Provider({"y": "2", "empty": ""})) as made:
        assert await collected(made, clock) == {"x": "1", "y": "2"}
        assert (made.started, made.collected) == (STARTED, COLLECTED)


async def test_f_164_without_providers_nothing_is_reported_as_failed() -> None:
    clock = ManualClock()
    async with providers(clock) as made:
        assert await collected(made, clock) == {} and (made.started, made.collected) == (STARTED, COLLECTED)


@pytest.mark.parametrize("fails", [True, False])
async def test_f_164_a_provider_that_does_not_start_is_named_and_the_others_go_on(fails: bool) -> None:
    clock, bad = ManualClock(), Provider()
    if fails:
        bad.fails = "no licence"
    else:
        bad.stuck.clear()
    async with providers(clock, bad=bad, good=Provider({"x": "1"})) as made:
        await clock.advance(10)
        assert not made.started.holds and made.started.reason == ("FailedToStart" if fails else "TimedOut")
        assert "property provider bad" in made.started.message
        assert await collected(made, clock) == {"x": "1"}


async def test_f_164_a_provider_with_three_open_calls_is_not_asked_until_it_answers() -> None:
    clock, slow = ManualClock(), Provider({"x": "1"})
    async with providers(clock, slow=slow) as made:
        assert made.properties == {"x": "1"} and slow.calls == 1
        slow.stuck.clear()
        slow.properties = {"x": "2"}
        for _ in range(3):
            assert await collected(made, clock) == {"x": "1"}
            assert made.collected.reason == "TimedOut" and not made.collected.holds
        assert await collected(made, clock) == {"x": "1"} and made.collected.reason == "TooManyCalls" and slow.calls == 4
        slow.stuck.set()
        await clock.settle()
        assert await collected(made, clock) == {"x": "2"} and made.collected == COLLECTED


async def test_f_164_a_failed_collection_keeps_the_last_properties() -> None:
    clock, bad = ManualClock(), Provider({"x": "1"})
    async with providers(clock, bad=bad) as made:
        await collected(made, clock)
        bad.fails = "broken"
        assert await collected(made, clock) == {"x": "1"} and "broken" in made.collected.message
