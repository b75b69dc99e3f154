"""What a replica of several shards does with their Leases, without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from attrs import evolve

from tests.support.memory_api import MemoryApi
from tests.unit.vkubelet.idle import Idle
from vkubelet.api.names import INSTANCE
from vkubelet.cli import run_shards
from vkubelet.clock import SystemClock
from vkubelet.control.leader import DURATION, PERIOD
from vkubelet.control.shards import Shard, shard_of
from vkubelet.errors import SettingsError
from vkubelet.process import TASKS_FINISH_WITHIN
from vkubelet.provider import Host
from vkubelet.server import ServerSettings
from vkubelet.settings import HealthSettings, LeaderSettings, Settings
from vkubelet.sharding import ShardedReplica, ShardRuntime, WholeRuntime, _OfShards
from vkubelet.testing.clock import ManualClock

COUNT = 4
QUIET = HealthSettings(health_address="", metrics_address="")
ELECTED = Settings(
    leader=LeaderSettings(enabled=True), health=QUIET, server=ServerSettings(bind_address="127.0.0.1", certificate="self-signed")
)
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


class Replica(ShardedReplica):
    """One of several in this process, under a name of its own."""

    def __init__(self, api: MemoryApi, clock: ManualClock, name: str) -> None:
        self.api, self.terms = api, 0
        super().__init__(connection=api.connection, settings=ELECTED, count=COUNT, make=lambda shard: Idle(), clock=clock, name=name)

    def _new(self, index: int) -> ShardRuntime:
        made = super()._new(index)
        self.api.lend_to(made.client)
        self.terms += 1
        return made

    @property
    def holds(self) -> set[int]:
        return {index for index, part in self._parts.items() if part.holds}


class World:
    def __init__(self) -> None:
        self.api, self.clock = MemoryApi(), ManualClock()

    @asynccontextmanager
    async def replica(self, name: str) -> AsyncIterator[Replica]:
        made = Replica(self.api, self.clock, name)
        task = asyncio.ensure_future(made.run())
        try:
            yield made
        finally:
            if not task.done():
                made.stop()
                await self.clock.advance(60.0)
            assert task.done()
            task.result()

    def take(self, index: int, holder: str) -> None:
        """Acquires the Lease of a shard for another holder."""
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 9, "renewTime": "2026-01-01T00:00:00.000000Z"}
        marks = {"annotations": {"vkubelet.io/shards": str(COUNT)}}
        name = Shard(index, COUNT).lease("vkubelet-default")
        self.api.put(f"{LEASES}/{name}", {"metadata": {"name": name, "namespace": "default", **marks}, "spec": spec})

    def holder(self, index: int) -> str:
        spec = self.api.objects[f"{LEASES}/{Shard(index, COUNT).lease('vkubelet-default')}"]["spec"]
        return str(spec["holderIdentity"]).rpartition("_")[0]


async def test_shards_are_shared_out_when_a_replica_starts_and_when_one_stops() -> None:
    world = World()
    async with world.replica("a") as one:
        await world.clock.advance(3 * PERIOD)
        assert one.holds == {0, 1, 2, 3}
        async with world.replica("b") as two:
            await world.clock.advance(30 * PERIOD)
            assert len(one.holds) == len(two.holds) == COUNT / 2 and one.holds | two.holds == {0, 1, 2, 3}
            async with world.replica("c") as three:
                await world.clock.advance(30 * PERIOD)
                assert sorted(map(len, (one.holds, two.holds, three.holds))) in ([0, 2, 2], [1, 1, 2])
            await world.clock.advance(10 * PERIOD)
            assert one.holds | two.holds == {0, 1, 2, 3}
        assert [world.holder(index) for index in range(COUNT)].count("b") == 0
        await world.clock.advance(10 * PERIOD)
        assert one.holds == {0, 1, 2, 3}
    assert {world.holder(index) for index in range(COUNT)} == {""}, "a replica that stops releases every Lease"


async def test_replica_hands_its_shards_over_one_after_the_other() -> None:
    world = World()
    async with world.replica("a") as one:
        await world.clock.advance(3 * PERIOD)
        held, counts = one.holds, list[int]()
        one.stop()
        for _ in range(2000):
            await asyncio.sleep(0)
            if one.holds != held:
                counts.append(len(one.holds))
                held = one.holds
        assert counts == [3, 2, 1, 0]


async def test_a_shard_that_does_not_stop_makes_the_replica_overdue() -> None:
    answers = asyncio.Event()

    class Deaf(Idle):
        async def run(self, host: Host) -> None:
            while not answers.is_set():
                with suppress(asyncio.CancelledError):
                    await answers.wait()

    world = World()
    async with world.replica("a") as one:
        one.make = lambda shard: Deaf() if shard.index == 2 else Idle()
        await world.clock.advance(3 * PERIOD)
        world.take(2, "z_1")
        await world.clock.advance(2 * PERIOD + TASKS_FINISH_WITHIN)
        overdue = one.overdue.is_set()
        answers.set()
        await world.clock.advance(1.0)
        assert overdue


async def test_another_holder_of_one_lease_ends_that_shard_alone() -> None:
    world = World()
    async with world.replica("a") as one:
        await world.clock.advance(3 * PERIOD)
        terms, parts = one.terms, dict(one._parts)
        world.take(2, "z_1")
        await world.clock.advance(2 * PERIOD)
        assert one.holds == {0, 1, 3} and one.terms == terms + 1
        assert {index for index, part in one._parts.items() if part is parts[index]} == {0, 1, 3}
        await world.clock.advance(DURATION + 2 * PERIOD)
        assert one.holds == {0, 1, 2, 3}, "that holder is dead"


async def test_runtime_of_a_shard_knows_only_nodes_of_its_own() -> None:
    world = World()
    names = [f"node-{number}" for number in range(12)]
    for name in names:
        body = {"metadata": {"name": name, "uid": name, "labels": {INSTANCE: "default"}}, "spec": {}, "status": {}}
        world.api.put(f"/api/v1/nodes/{name}", body)
    for index in range(COUNT):
        # Held by another replica, so that this one stands by.
        name = Shard(index, COUNT).lease("vkubelet-default")
        spec = {"holderIdentity": "z_1", "leaseDurationSeconds": 3600, "renewTime": "2026-01-01T00:00:00.000000Z"}
        world.api.put(f"{LEASES}/{name}", {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
    async with world.replica("a") as one:
        await world.clock.advance(PERIOD)
        assert not one.holds and one.ready() is None
        for index, part in one._parts.items():
            assert set(part.nodes.names()) == {name for name in names if shard_of(name, COUNT) == index}
        assert not world.api.writes, "a leader of all nodes is not asked for a shard"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (Settings(), "leader.enabled"),
        (Settings(leader=LeaderSettings(enabled=True), server=ServerSettings(listening="shared")), "server.listening"),
    ],
)
def test_several_shards_need_an_election_and_ports_of_each_node(settings: Settings, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        run_shards(lambda shard: Idle(), settings, None, count=2, read=lambda: (settings, None))


async def test_series_of_all_shards_are_exposed_once_with_the_number_of_the_shard() -> None:
    world = World()
    async with world.replica("a") as one:
        await world.clock.advance(3 * PERIOD)
        for index, part in one._parts.items():
            part.metrics.api_seconds.labels("get", "leases", "200").observe(index)
        text = (await _OfShards(one._parts).scrape(SystemClock())).decode()
        assert text.count("# TYPE vkubelet_api_seconds histogram") == 1
        for index in range(COUNT):
            assert f'vkubelet_api_seconds_count{{code="200",resource="leases",shard="{index}",verb="get"}} 1.0' in text
        assert text.count("\nprocess_cpu_seconds_total ") == 1


async def test_a_process_of_all_nodes_leads_stops_and_marks_nothing_in_its_lease() -> None:
    api, clock = MemoryApi(), ManualClock()
    settings = evolve(ELECTED, server=evolve(ELECTED.server, main_port=False))
    made = WholeRuntime(Idle(), settings, connection=api.connection, clock=clock)
    api.lend_to(made.client)
    task = asyncio.ensure_future(made.run())
    await clock.advance(3 * PERIOD)
    assert made.leads and made.holds
    made.stop()
    await clock.advance(30.0)
    await task
    (lease,) = (body for path, body in api.objects.items() if "/leases/" in path)
    assert lease["spec"]["holderIdentity"] == "" and not lease["metadata"].get("annotations")
