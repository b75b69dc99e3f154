"""Leases that stop, clocks that differ and a hub that was away: `fleet hub` against an agent that the `kubernetes` package plays."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from tests.integration.fleet.player import (
    CLUSTERS,
    Agent,
    Body,
    Caller,
    addon,
    addons,
    conditions,
    has_condition,
    joined,
    reaches,
    taints,
)
from tests.support.ahead import ahead
from tests.support.program import Program, eventually
from vkubelet.testing.cluster import ControlPlane

AVAILABLE, CLOCK = "ManagedClusterConditionAvailable", "ManagedClusterConditionClockSynced"
STOPPED = ("Unknown", "ManagedClusterLeaseUpdateStopped")
UNREACHABLE = ("cluster.open-cluster-management.io/unreachable", "NoSelect")
PERIOD = 1
GRACE = 5 * PERIOD


@asynccontextmanager
async def renewing(agent: Agent) -> AsyncIterator[None]:
    """An agent that renews its Lease four times in a period."""

    async def renew() -> None:
        while True:
            await agent.renew()
            await asyncio.sleep(PERIOD / 4)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(renew())
        yield
        task.cancel()


def transition(record: Body) -> str:
    return next(each["lastTransitionTime"] for each in record["status"]["conditions"] if each["type"] == AVAILABLE)


async def tainted(admin: Caller, name: str, *wanted: tuple[str, str]) -> None:
    async def check() -> bool:
        return taints(await admin.call("GET", f"{CLUSTERS}/{name}")) == [*wanted]

    await eventually(check, f"the taints of {name} are {wanted}")


@pytest.mark.usefixtures("lasting_program")
@ahead(group="health")
async def test_f_141_f_142_a_silent_cluster_is_unknown_and_tainted_until_it_is_back(
    prepared: ControlPlane, bootstrap: Caller, admin: Caller
) -> None:
    agent = await joined(prepared, bootstrap, admin, "h1", seconds=PERIOD)
    await admin.create(addons("h1"), addon("h1", "tunnel"))
    async with renewing(agent):
        await tainted(admin, "h1")
    await has_condition(admin, "h1", AVAILABLE, STOPPED)
    await tainted(admin, "h1", UNREACHABLE)
    await reaches(admin, addons("h1", "tunnel"), "Available", STOPPED)

    async def labelled() -> bool:
        labels = (await admin.call("GET", f"{CLUSTERS}/h1"))["metadata"]["labels"]
        return bool(labels.get("feature.open-cluster-management.io/addon-tunnel") == "unreachable")

    await eventually(labelled, "the label of the addon (F-144)")
    await admin.merge(f"{CLUSTERS}/h1", {"spec": {"taints": [{"key": "mine", "effect": "PreferNoSelect"}]}})
    await tainted(admin, "h1", ("mine", "PreferNoSelect"), UNREACHABLE)
    # An agent that reports before it renews its Lease is still not heard of.
    await agent.renew()
    async with renewing(agent):
        await agent.report_joined()
        await tainted(admin, "h1", ("mine", "PreferNoSelect"))
        await agent.report((AVAILABLE, "False", "ManagedClusterKubeAPIServerUnavailable"))
        await tainted(admin, "h1", ("mine", "PreferNoSelect"), ("cluster.open-cluster-management.io/unavailable", "NoSelect"))


@pytest.mark.usefixtures("lasting_program")
@ahead(group="health")
async def test_f_143_a_clock_an_hour_off_is_reported_and_harms_nothing_else(
    prepared: ControlPlane, bootstrap: Caller, admin: Caller
) -> None:
    agent = await joined(prepared, bootstrap, admin, "h2", seconds=60)

    async def renewed(ahead: timedelta, wanted: tuple[str, str]) -> bool:
        await agent.renew(ahead=ahead)
        return conditions(await admin.get(f"{CLUSTERS}/h2")).get(CLOCK) == wanted

    differs, equal = ("False", "ManagedClusterClockOutOfSync"), ("True", "ManagedClusterClockSynced")
    for skew, wanted in ((timedelta(), equal), (timedelta(hours=1), differs), (timedelta(), equal), (-timedelta(hours=1), differs)):
        await eventually(lambda skew=skew, wanted=wanted: renewed(skew, wanted), f"clock {skew} ahead", every=0.3)  # type: ignore[misc]
    assert conditions(await admin.get(f"{CLUSTERS}/h2"))[AVAILABLE] == ("True", "ManagedClusterAvailable")
    skip = {"registration.open-cluster-management.io/skip-clock-sync-check": "true"}
    await admin.merge(f"{CLUSTERS}/h2", {"metadata": {"annotations": skip}})
    await has_condition(admin, "h2", CLOCK, equal)


async def test_f_141_a_hub_that_was_away_makes_no_cluster_unknown(
    prepared: ControlPlane, bootstrap: Caller, admin: Caller, program: Program
) -> None:
    agent = await joined(prepared, bootstrap, admin, "h3", seconds=PERIOD)
    async with renewing(agent):
        await tainted(admin, "h3")
        since = transition(await admin.call("GET", f"{CLUSTERS}/h3"))
        program.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(GRACE + PERIOD)
        program.process.send_signal(signal.SIGCONT)
        # Another cluster shows that the hub judges again.
        other = await joined(prepared, bootstrap, admin, "h4", seconds=PERIOD)
        async with renewing(other):
            await tainted(admin, "h4")
        await has_condition(admin, "h4", AVAILABLE, STOPPED)
        program.kill()
        await asyncio.sleep(GRACE + PERIOD)
        program.start()
        await asyncio.sleep(3 * PERIOD)
    record = await admin.call("GET", f"{CLUSTERS}/h3")
    assert conditions(record)[AVAILABLE] == ("True", "ManagedClusterAvailable") and transition(record) == since
