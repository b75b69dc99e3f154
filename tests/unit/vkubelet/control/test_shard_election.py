"""How replicas share out the Leases of shards: who acquires, asks, hands over, and what two numbers of shards do to one another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from attrs import define, field

from tests.support.memory_api import MemoryApi
from vkubelet.api.objects import Key
from vkubelet.client.transport import Call
from vkubelet.control.leader import DURATION, PERIOD, LeaderElection
from vkubelet.control.shard_election import ShardElection, replica_of
from vkubelet.control.shards import COUNT, RESERVED, Leases, Shard, to_hand_over, wanted
from vkubelet.errors import Forbidden
from vkubelet.testing.clock import ManualClock

LEASES = "/apis/coordination.k8s.io/v1/namespaces/d/leases"


@define(eq=False)
class Replica:
    """Competes for all Leases of `count` shards; `serving` are those whose work runs."""

    api: MemoryApi
    clock: ManualClock
    name: str
    count: int
    serving: set[int] = field(factory=set, init=False)
    elections: dict[int, ShardElection] = field(factory=dict, init=False)
    stops: dict[int, asyncio.Event] = field(factory=dict, init=False)

    def leases(self) -> Leases | None:
        known = {index: seen for index, each in self.elections.items() if (seen := each.observed()) is not None}
        return known if len(known) == self.count else None

    def contend(self, group: asyncio.TaskGroup, index: int) -> None:
        self.elections[index] = ShardElection(
            self.api.client(),
            shard=Shard(index, self.count),
            leader=Key("d", "leader"),
            identity=f"{self.name}_{index}",
            clock=self.clock,
            leases=self.leases,
        )
        self.stops[index] = asyncio.Event()
        group.create_task(self._lead(index))

    async def _lead(self, index: int) -> None:
        async def body() -> None:
            self.serving.add(index)
            await self.stops[index].wait()
            self.serving.discard(index)

        await self.elections[index].lead(body)


class World:
    def __init__(self) -> None:
        self.api, self.clock = MemoryApi(), ManualClock()
        self._groups: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def replica(self, name: str, count: int) -> AsyncIterator[Replica]:
        """Contends for every shard until the block ends, or it is killed."""
        made = Replica(self.api, self.clock, name, count)

        async def run() -> None:
            async with asyncio.TaskGroup() as group:
                for index in range(count):
                    made.contend(group, index)

        task = self._groups[name] = asyncio.ensure_future(run())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def kill(self, replica: Replica) -> None:
        task = self._groups[replica.name]
        task.cancel()
        await asyncio.wait({task})
        replica.serving.clear()

    def notes(self, index: int) -> Mapping[str, str]:
        """The annotations of the Lease of a shard."""
        metadata = self.api.objects[f"{LEASES}/{Shard(index, 16).lease('leader')}"]["metadata"]
        return metadata.get("annotations") or {}


def test_replica_of_an_identity_has_neither_shard_nor_term() -> None:
    assert replica_of("host_12_ab34") == "host_12"
    assert replica_of("odd") == "odd"


async def test_one_replica_serves_every_shard_and_records_their_number() -> None:
    world = World()
    async with world.replica("a", 4) as one:
        await world.clock.advance(3 * PERIOD)
        assert one.serving == {0, 1, 2, 3}
        assert [world.notes(index) for index in range(4)] == [{COUNT: "4"}] * 4


async def test_shards_of_a_dead_replica_are_served_once_their_leases_expire() -> None:
    world = World()
    async with world.replica("a", 2) as one:
        await world.clock.advance(3 * PERIOD)
        async with world.replica("b", 2) as other:
            await world.clock.advance(2 * PERIOD)
            assert one.serving == {0, 1} and not other.serving
            await world.kill(one)
            await world.clock.advance(DURATION - PERIOD - 1)
            assert not other.serving, "the Leases have not expired"
            # The last renewal is seen up to a period after it, and the expired Lease tried up to another one later, each with its jitter.
            await world.clock.advance(1 + 4 * PERIOD)
            assert other.serving == {0, 1}


async def test_shard_that_is_asked_for_goes_to_the_one_that_asked() -> None:
    world = World()
    async with world.replica("a", 2) as one, world.replica("b", 2) as two, world.replica("c", 2) as three:
        await world.clock.advance(3 * PERIOD)
        # All start at once, so that each may have acquired some.
        holder = next(each for each in (one, two, three) if each.serving)
        asker = next(each for each in (one, two, three) if not each.serving)
        index = min(holder.serving)
        await asker.elections[index].ask()
        await world.clock.advance(2 * PERIOD)
        seen = holder.elections[index].observed()
        assert seen is not None and seen.wanted_by == asker.name and seen.holder == holder.name
        holder.stops[index].set()
        await world.clock.advance(2 * PERIOD)
        assert index in asker.serving and index not in holder.serving
        assert world.notes(index) == {COUNT: "2"}, "the request is fulfilled"


async def test_released_shard_is_served_by_any_replica_when_the_one_that_asked_is_gone() -> None:
    world = World()
    async with world.replica("a", 1) as one, world.replica("b", 1) as two:
        await world.clock.advance(3 * PERIOD)
        holder, other = (one, two) if one.serving else (two, one)
        async with world.replica("c", 1) as third:
            await world.clock.advance(PERIOD)
            await third.elections[0].ask()
        await world.clock.advance(2 * PERIOD)
        holder.stops[0].set()
        await world.clock.advance(RESERVED - 2)
        assert not other.serving
        await world.clock.advance(2 * PERIOD + 2)
        assert other.serving == {0}


async def test_request_that_is_refused_disappears_from_the_lease() -> None:
    world = World()
    async with world.replica("a", 2) as one:
        await world.clock.advance(3 * PERIOD)
        async with world.replica("b", 2) as other:
            await world.clock.advance(2 * PERIOD)
            await other.elections[1].ask()
            await world.clock.advance(2 * PERIOD)
            one.elections[1].refuse("b")
            await world.clock.advance(2 * PERIOD)
            assert world.notes(1) == {COUNT: "2"}
            assert one.serving == {0, 1}


async def test_a_new_replica_is_given_its_share() -> None:
    world = World()
    async with world.replica("a", 4) as one:
        await world.clock.advance(3 * PERIOD)
        async with world.replica("b", 4) as two:
            await world.clock.advance(2 * PERIOD)
            for _ in range(20):
                leases, seen = two.leases(), one.leases()
                assert leases is not None and seen is not None
                if (index := wanted("b", leases)) is not None:
                    await two.elections[index].ask()
                if (index := to_hand_over("a", seen)) is not None:
                    one.stops[index].set()
                await world.clock.advance(PERIOD)
            assert len(one.serving) == len(two.serving) == 2
            assert one.serving | two.serving == {0, 1, 2, 3}


# --- two numbers of shards ---


async def test_replicas_with_another_number_of_shards_wait_until_the_last_one_has_stopped() -> None:
    world = World()
    async with world.replica("old", 2) as old:
        await world.clock.advance(3 * PERIOD)
        async with world.replica("new", 4) as new:
            await world.clock.advance(3 * PERIOD)
            assert old.serving == {0, 1} and not new.serving
            old.stops[0].set()
            await world.clock.advance(20 * PERIOD)
            assert old.serving == {1} and not new.serving, "shard 1 of 2 has nodes of every shard of 4"
            old.stops[1].set()
            await world.clock.advance(20 * PERIOD)
            assert new.serving == {0, 1, 2, 3}


async def test_fewer_shards_wait_for_a_shard_that_they_do_not_have() -> None:
    world = World()
    async with world.replica("old", 4) as old:
        await world.clock.advance(3 * PERIOD)
        async with world.replica("new", 2) as new:
            for index in (0, 1, 2):
                old.stops[index].set()
            await world.clock.advance(20 * PERIOD)
            assert old.serving == {3} and not new.serving
            old.stops[3].set()
            await world.clock.advance(30 * PERIOD)
            assert new.serving == {0, 1}


async def test_shards_wait_for_a_leader_that_knows_of_no_shards() -> None:
    world = World()
    spec = {"holderIdentity": "leader_1", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    path = f"{LEASES}/leader"
    async with world.replica("new", 2) as new:
        for second in range(40):
            renewed = {**spec, "renewTime": f"2026-01-01T00:00:{second:02}.000000Z"}
            world.api.put(path, {"metadata": {"name": "leader", "namespace": "d"}, "spec": renewed})
            await world.clock.advance(1.0)
            assert not new.serving or second == 0


async def test_a_leader_of_all_names_waits_for_shards_and_marks_nothing() -> None:
    world = World()
    async with world.replica("old", 2) as old:
        await world.clock.advance(3 * PERIOD)
        async with world.replica("new", 1) as new:
            old.stops[0].set()
            await world.clock.advance(20 * PERIOD)
            assert old.serving == {1} and not new.serving
            old.stops[1].set()
            await world.clock.advance(20 * PERIOD)
            assert new.serving == {0}
            assert not world.notes(0)


async def test_the_only_shard_writes_what_a_leader_writes_and_reads_one_lease_more() -> None:
    bodies = []
    for sharded in (False, True):
        world = World()
        if sharded:
            async with world.replica("a", 1):
                await world.clock.advance(3 * PERIOD)
        else:
            election = LeaderElection(world.api.client(), name="leader", namespace="d", identity="a_0", clock=world.clock)
            task = asyncio.ensure_future(election.lead(asyncio.Event().wait))  # type: ignore[arg-type]
            await world.clock.advance(3 * PERIOD)
            task.cancel()
            await asyncio.wait({task})
        bodies.append([(each.method, each.path, each.body) for each in world.api.writes])
    assert bodies[0] == bodies[1]


async def test_rights_that_name_the_leader_lease_alone_are_enough_to_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    fetch = world.api.fetch

    async def narrow(call: Call, timeout: float) -> bytes:
        if call.path.endswith(".shard-1"):
            raise Forbidden(call.attempt, "forbidden", status=403)
        return await fetch(call, timeout)

    monkeypatch.setattr(world.api, "fetch", narrow)
    async with world.replica("a", 1) as one:
        await world.clock.advance(3 * PERIOD)
        assert one.serving == {0}
