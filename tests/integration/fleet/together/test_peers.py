"""A worker agent that is not ours joins our hub: it is played by the `kubernetes` package alone."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.integration.fleet.player import (
    ACCEPTED,
    CLUSTERS,
    Caller,
    accept,
    answers,
    certified,
    conditions,
    has_condition,
    lease,
    record,
    taints,
)
from tests.integration.fleet.together.outages import (
    ACCEPTANCE,
    AVAILABLE,
    CLOCK,
    JOINED,
    STEADY,
    STOPPED,
    SYNCED,
    condition_of,
    tainted_by_owner,
)
from tests.integration.fleet.together.scene import Fleet, with_token
from tests.integration.fleet.trace import tracing
from tests.support.ahead import ahead
from tests.support.program import eventually

PERIOD = 1
RENEWALS = 10


async def stays_available(fleet: Fleet, owner: Caller, directory: Path, *, name: str, period: int, seconds: float) -> None:
    """A worker that is not ours joins, and is available for so many seconds without a break."""
    token = fleet.line[fleet.line.index("--token") + 1]
    bootstrap = Caller(with_token(fleet.hub, token, directory / "bootstrap.kubeconfig"))
    await record(bootstrap, name, seconds=period)
    agent = await certified(fleet.hub, bootstrap, owner, name)
    await accept(owner, name)
    await has_condition(owner, name, "HubAcceptedManagedCluster", ACCEPTED)
    await answers(agent, "GET", lease(name), 200)
    await agent.renew()
    await agent.report_joined()

    async def compared() -> bool:
        await agent.renew()
        return conditions(await owner.get(f"{CLUSTERS}/{name}")).get(CLOCK) == SYNCED

    await eventually(compared, "the clocks are compared", every=1.0)
    await tainted_by_owner(owner, name)
    parts = {**{each: condition_of(each) for each in (ACCEPTANCE, JOINED, AVAILABLE, CLOCK)}, "taints": taints}
    path = f"{CLUSTERS}/{name}"
    async with tracing(fleet.hub.kubeconfig, {path: parts}) as traces:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(period)
            await agent.renew()
    assert {part: traces[path].values(part) for part in parts} == {part: STEADY[part] for part in parts}


@ahead("tmp_path", group="worker stopped")
async def test_f_141_an_independent_worker_joins_our_hub_and_stays_available(fleet: Fleet, owner: Caller, tmp_path: Path) -> None:
    # F-25, F-107, F-118, F-142. Five minutes of it: tests/faults/cut/test_outages_of_fleet.py.
    name = "independent"
    await stays_available(fleet, owner, tmp_path, name=name, period=PERIOD, seconds=RENEWALS * PERIOD)
    await has_condition(owner, name, AVAILABLE, STOPPED)
    await owner.delete(f"{CLUSTERS}/{name}")
