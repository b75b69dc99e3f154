"""Tests of fleet.agent.lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fleet.agent.lease import HubLease
from tests.support.memory_api import Body, MemoryApi
from vkubelet.errors import LeadershipLost
from vkubelet.testing.clock import ManualClock

PATH = "/apis/coordination.k8s.io/v1/namespaces/w1/leases/managed-cluster-lease"
OWNER = {"apiVersion": "v1", "kind": "Namespace", "name": "w1", "uid": "u1"}


def put(api: MemoryApi, **spec: object) -> None:
    metadata = {"name": "managed-cluster-lease", "namespace": "w1", "ownerReferences": [OWNER]}
    api.put(PATH, {"metadata": metadata, "spec": {"leaseDurationSeconds": 60, **spec}, "extra": "kept"})


def renewals(api: MemoryApi) -> int:
    return sum(write.method == "PUT" for write in api.writes)


@asynccontextmanager
async def renewed(api: MemoryApi, clock: ManualClock, *, leads: bool = True, seconds: int = 60) -> AsyncIterator[asyncio.Future[None]]:
    async def ready() -> int:
        return seconds

    lease = HubLease(api.client(), "w1", holder="me", may_lead=lambda: leads, clock=clock)
    task = asyncio.ensure_future(lease.run(ready))
    await clock.settle()
    yield task
    task.cancel()


def live(api: MemoryApi) -> Body:
    return api.objects[PATH]


async def test_f_131_the_lease_is_renewed_once_in_each_period() -> None:
    api, clock = MemoryApi(), ManualClock()
    put(api)
    async with renewed(api, clock):
        assert renewals(api) == 1 and live(api)["spec"]["renewTime"] == "2026-01-01T00:00:00.000000Z"
        await clock.advance(600)
        assert 9 <= renewals(api) <= 11


async def test_f_131_fields_of_the_hub_survive_a_renewal() -> None:
    api, clock = MemoryApi(), ManualClock()
    put(api, preferredHolder="x")
    async with renewed(api, clock):
        assert live(api)["metadata"]["ownerReferences"] == [OWNER] and live(api)["extra"] == "kept"
        assert live(api)["spec"].keys() == {"leaseDurationSeconds", "preferredHolder", "holderIdentity", "renewTime"}


async def test_f_131_after_a_conflict_the_lease_is_read_again() -> None:
    api, clock = MemoryApi(), ManualClock()
    put(api)
    async with renewed(api, clock):
        put(api, leaseDurationSeconds=60, holderIdentity="me", changed="by the hub")
        await clock.advance(76)
        assert renewals(api) >= 3 and live(api)["spec"]["changed"] == "by the hub" and live(api)["spec"]["renewTime"]


async def test_f_131_a_missing_lease_is_not_created_and_is_renewed_when_it_is_back() -> None:
    api, clock = MemoryApi(), ManualClock()
    async with renewed(api, clock):
        await clock.advance(120)
        assert api.writes == []
        put(api)
        await clock.advance(31)
        assert renewals(api) == 1


async def test_f_54_a_process_that_was_replaced_stops_at_the_renewal_of_the_other() -> None:
    api, clock = MemoryApi(), ManualClock()
    put(api)
    async with renewed(api, clock, leads=False) as task:
        put(api, holderIdentity="other", renewTime="2026-01-01T00:00:30.000000Z")
        await clock.advance(80)
        assert task.done()
        with pytest.raises(LeadershipLost):
            task.result()
        assert live(api)["spec"]["holderIdentity"] == "other"


async def test_f_54_the_leader_adopts_the_lease_of_the_process_before_it() -> None:
    api, clock = MemoryApi(), ManualClock()
    put(api, holderIdentity="before")
    async with renewed(api, clock):
        assert live(api)["spec"]["holderIdentity"] == "me"


async def test_f_131_the_return_of_a_hub_is_noticed_by_the_first_renewal() -> None:
    api, clock = MemoryApi(), ManualClock()

    async def ready() -> int:
        return 2

    lease = HubLease(api.client(), "w1", holder="me", may_lead=lambda: True, clock=clock)
    task = asyncio.ensure_future(lease.run(ready))
    await clock.advance(60)
    assert lease.problem and not lease.returned.is_set()
    put(api)
    await clock.advance(2)
    assert renewals(api) == 1 and lease.returned.is_set() and not lease.problem
    lease.returned.clear()
    await clock.advance(10)
    assert renewals(api) >= 4 and not lease.returned.is_set()
    task.cancel()
