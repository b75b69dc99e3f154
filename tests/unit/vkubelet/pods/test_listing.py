"""How often a provider is asked for its pods while it fails, and afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from typing import cast

import pytest

from vkubelet.client.rest import Client
from vkubelet.pods.dispatch import Dispatch, Standing
from vkubelet.pods.listing import Lister, PodSettings
from vkubelet.provider import PodReport, Provider
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.conformance.faults import Fault, Faults, faulty
from vkubelet_providers.minimal import Minimal


class Polled(Minimal):
    """Notes when it answered."""

    def __init__(self, clock: ManualClock, poll_interval: float) -> None:
        super().__init__()
        self.clock, self.poll_interval = clock, poll_interval
        self.listed: list[float] = []

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        self.listed.append(self.clock.monotonic())
        return await super().list_pods(node)


@pytest.mark.parametrize("interval", [1.0, 15.0, 300.0])
@pytest.mark.parametrize("away", [3.0, 600.0])
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.HANGS], ids=lambda fault: fault.name.lower())
async def test_polling_is_back_at_its_interval_within_one_interval(fault: Fault, away: float, interval: float) -> None:
    clock, faults = ManualClock(), Faults()
    provider = Polled(clock, interval)
    dispatch = Dispatch(cast(Client, None), clock=clock, metrics=None)
    dispatch.informer.ever_synced = True
    lister = Lister(
        cast(Provider, faulty(provider, faults)), dispatch, clock=clock, metrics=None, settings=PodSettings(list_interval=600.0)
    )
    dispatch.set("node", Standing.SYNC)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lister.controller.run())
        lister.controller.add("node")
        await clock.advance(interval)
        faults.plan("list_pods", fault=fault)
        await clock.advance(away)
        faults.clear()
        back = clock.monotonic()
        await clock.advance(10 * interval)
        running.cancel()
    after = [at for at in provider.listed if at >= back]
    assert [at - back <= interval for at in after[:1]] == [True]
    assert {round(later - earlier, 6) for earlier, later in pairwise(after)} == {interval}
