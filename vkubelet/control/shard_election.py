"""Election of the holder of one shard: the election of a leader, by a Lease that replicas with several shards share out among themselves.

Invariant: a shard is served only after every Lease of the family was read, and no replica with another number of shards has one.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

from vkubelet.api.objects import LEASES, Json, Key
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.leader import PERIOD, LeaderElection, Observation, Record
from vkubelet.control.shards import COUNT, MOST_SHARDS, WANTED_BY, Leases, Shard, ShardLease, may_acquire, other_count
from vkubelet.errors import Conflict, Forbidden, NotFound


def replica_of(identity: str) -> str:
    """Returns the replica of an identity; each of its shards has another one, in each of its terms."""
    return identity.rpartition("_")[0] or identity


class ShardElection(LeaderElection):
    """Election by the Lease of `shard`, which is named after that of a `leader`.

    `leases` returns those of all shards as this replica knows them, None before each was read.
    """

    def __init__(
        self, client: Client, *, shard: Shard, leader: Key, identity: str, clock: Clock, leases: Callable[[], Leases | None]
    ) -> None:
        super().__init__(client, name=shard.lease(leader.name), namespace=leader.namespace, identity=identity, clock=clock)
        self.holds = False
        self.ended = asyncio.Event()
        """Set once the Lease was released, or acquired by another replica; open streams may continue."""
        self._shard = shard
        self._leader = leader
        self._replica = replica_of(identity)
        self._leases = leases
        self._was_read = False
        self._refused = ""
        self._others: dict[int, Observation] = {}

    async def lead(self, body: Callable[[], Awaitable[None]]) -> None:
        try:
            await super().lead(body)
        finally:
            self.holds = False
            self.ended.set()

    def observed(self) -> ShardLease | None:
        """Returns the Lease as it was read last; None before it was."""
        found, now = self._found, self._clock.monotonic()
        if found is None:
            return ShardLease(died=True) if self._was_read else None
        notes, record = found.metadata.annotations, Record.of(found)
        is_free = not self.holds and self._seen.free_for("", now)
        return ShardLease(
            holder="" if is_free else replica_of(record.holder),
            wanted_by=notes.get(WANTED_BY, ""),
            died=is_free and record.holder != "",
            free_for=now - self._seen.free_since if is_free else 0.0,
            count=_count(notes.get(COUNT, "")),
        )

    async def ask(self) -> None:
        """Asks the holder for the shard. Raises ApiError."""
        found = await self._client.get(LEASES, self._key)
        if not Record.of(found).holder or found.metadata.annotations.get(WANTED_BY):
            return
        notes = {**found.metadata.annotations, WANTED_BY: self._replica}
        metadata = {"name": self._key.name, "namespace": self._key.namespace, "annotations": notes}
        kept = {"resourceVersion": found.metadata.resource_version, "labels": found.metadata.labels}
        try:
            self._found = await self._client.replace(LEASES, {"metadata": {**metadata, **kept}, "spec": found.spec})
        except Conflict:
            return

    def refuse(self, replica: str) -> None:
        """Removes the request of a replica with the next renewal."""
        self._refused = replica

    async def _acquire(self) -> None:
        while True:
            await super()._acquire()
            if await self._attempt(self._is_alone):
                self.holds = True
                return
            self.fence.close()
            await self._release()
            await self._clock.sleep(PERIOD * random.uniform(1.0, 2.0))

    async def _take(self) -> bool:
        taken = await super()._take()
        self._was_read = True
        return taken

    def _may_take(self) -> bool:
        self._was_read = True
        leases = self._leases()
        if leases is None or other_count(leases, self._shard.count) is not None:
            return False
        return may_acquire(self._replica, leases, self._shard.index)

    async def _is_alone(self) -> bool:
        """Checks that no replica with another number of shards holds a Lease, now that it can see ours."""
        for index in range(MOST_SHARDS):
            if index == self._shard.index:
                continue
            try:
                found = await self._client.get(LEASES, Key(self._key.namespace, Shard(index, MOST_SHARDS).lease(self._leader.name)))
            except NotFound:
                if index >= self._shard.count:
                    return True
                continue
            except Forbidden:
                # Rights that name the leader Lease alone permit no shards.
                if self._shard.is_only:
                    return True
                raise
            seen, now = self._others.setdefault(index, Observation()), self._clock.monotonic()
            seen.note(Record.of(found), now)
            if not seen.free_for("", now) and _count(found.metadata.annotations.get(COUNT, "")) != self._shard.count:
                return False
        return True

    def _marked(self, metadata: Json) -> Json:
        notes = dict(metadata.get("annotations") or {})
        if not self.holds or notes.get(WANTED_BY) == self._refused:
            notes.pop(WANTED_BY, None)
            self._refused = ""
        if self._shard.is_only:
            notes.pop(COUNT, None)
        else:
            notes[COUNT] = str(self._shard.count)
        return {**metadata, "annotations": notes} if notes or "annotations" in metadata else metadata


def _count(text: str) -> int:
    """Returns the number of shards that a Lease records; 1 for a Lease without it."""
    return int(text) if text.isdecimal() else 1
