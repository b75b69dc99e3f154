"""A worker agent that is not ours joins our hub: it is played by the `kubernetes` package alone."""

from __future__ import annotations

import asyncio
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
from tests.integration.fleet.together.scene import Fleet, with_token

AVAILABLE = "ManagedClusterConditionAvailable"
PERIOD = 1
RENEWALS = 10


async def test_f_141_an_independent_worker_joins_our_hub_and_stays_available(fleet: Fleet, owner: Caller, tmp_path: Path) -> None:
    # F-25, F-107, F-118, F-142
    name = "independent"
    token = fleet.line[fleet.line.index("--token") + 1]
    bootstrap = Caller(with_token(fleet.hub, token, tmp_path / "bootstrap.kubeconfig"))
    await record(bootstrap, name, seconds=PERIOD)
    agent = await certified(fleet.hub, bootstrap, owner, name)
    await accept(owner, name)
    await has_condition(owner, name, "HubAcceptedManagedCluster", ACCEPTED)
    await answers(agent, "GET", lease(name), 200)
    await agent.renew()
    await agent.report_joined()
    for _ in range(RENEWALS):
        await asyncio.sleep(PERIOD)
        await agent.renew()
        found = await owner.call("GET", f"{CLUSTERS}/{name}")
        assert conditions(found)[AVAILABLE] == ("True", "ManagedClusterAvailable"), found
    assert taints(found) == [] and "ManagedClusterConditionClockSynced" in conditions(found)
    await has_condition(owner, name, AVAILABLE, ("Unknown", "ManagedClusterLeaseUpdateStopped"))
    await owner.delete(f"{CLUSTERS}/{name}")
