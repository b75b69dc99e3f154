"""A replica of a process whose nodes are divided into shards: one Runtime for each, of which it serves those whose Leases it holds.

Invariant: a shard stops alone: what happens to its Lease stops its Runtime, and no other. A replica that stops hands its shards over one
after the other, and acquires none any more.
"""

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from attrs import define, evolve, field, frozen
from prometheus_client import generate_latest
from prometheus_client.core import Metric

from vkubelet.api.objects import Key
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.clock import Clock, SystemClock, in_batches
from vkubelet.control.leader import PERIOD, LeaderElection
from vkubelet.control.shard_election import ShardElection
from vkubelet.control.shards import ONLY, Leases, Shard, ShardLease, other_count, to_hand_over, wanted
from vkubelet.errors import ApiError, LeadershipLost, VKubeletError, first_error
from vkubelet.health import HealthServer
from vkubelet.logformat import bind
from vkubelet.metrics import Collected
from vkubelet.provider import Provider
from vkubelet.runtime import Runtime
from vkubelet.settings import HealthSettings, Settings

log = logging.getLogger(__name__)


class _Stopped(Exception):
    """Raised inside the task group to stop it when the replica stops."""


@frozen
class Member:
    """A replica as its Runtimes see it: its name, "" for that of the process, and the Leases of all shards as it knows them."""

    leases: Callable[[], Leases | None]
    name: str = ""


class ShardRuntime(Runtime):
    """Runtime of one shard in a replica."""

    def __init__(
        self,
        provider: Provider,
        settings: Settings,
        *,
        connection: Connection,
        shard: Shard,
        member: Member,
        clock: Clock,
    ) -> None:
        self._member = member
        super().__init__(provider, settings, connection=connection, clock=clock)
        self.shard = shard
        self.election: ShardElection | None = None

    def new_identity(self) -> str:
        return f"{self._member.name}_{uuid.uuid4().hex[:8]}" if self._member.name else super().new_identity()

    def serves(self, node: str) -> bool:
        return self.shard.owns(node)

    def new_election(self, client: Client) -> LeaderElection:
        self.election = ShardElection(
            client,
            shard=self.shard,
            leader=Key(self.settings.leader.namespace, self.lease),
            identity=self.identity,
            clock=self.clock,
            leases=self._member.leases,
        )
        return self.election

    @property
    def holds(self) -> bool:
        """Whether it holds the Lease of its shard."""
        return self.election is not None and self.election.holds

    def observed(self) -> ShardLease | None:
        """Returns the Lease of its shard as it was read last; None before it was."""
        return self.election.observed() if self.election is not None else None


class WholeRuntime(ShardRuntime):
    """Runtime of all nodes: a leader, of which others are on standby. It does not lead while a replica serves a shard of them."""

    def __init__(self, provider: Provider, settings: Settings, *, connection: Connection, clock: Clock | None = None) -> None:
        super().__init__(provider, settings, connection=connection, shard=ONLY, member=Member(self._own), clock=clock or SystemClock())

    def _own(self) -> Leases | None:
        seen = self.observed()
        return {0: seen} if seen is not None else None


@define(kw_only=True, eq=False)
class ShardedReplica:
    """One replica of `count` shards; `make` returns the provider of a shard."""

    connection: Connection = field(repr=False)
    settings: Settings
    count: int
    make: Callable[[Shard], Provider]
    clock: Clock = field(factory=SystemClock)
    name: str = field(factory=lambda: f"{socket.gethostname()}_{os.getpid()}")
    """Distinguishes the replicas."""
    overdue: asyncio.Event = field(init=False, factory=asyncio.Event)
    """Set when tasks of a shard have not finished in time: no other replica acquires its Lease while this process runs."""
    _parts: dict[int, ShardRuntime] = field(init=False, factory=dict)
    _stop_requested: asyncio.Event = field(init=False, factory=asyncio.Event)

    def stop(self) -> None:
        """Starts to stop; `run` returns when everything has stopped."""
        self._stop_requested.set()

    def ready(self) -> str | None:
        """Returns None, or why the replica is not ready."""
        if self._stop_requested.is_set():
            return "stopping"
        problems = (part.ready() for part in self._parts.values())
        return next((problem for problem in problems if problem), None)

    async def run(self) -> None:
        """Runs until `stop`. Raises SettingsError, ApiError."""
        health = HealthServer(
            _OfShards(self._parts),
            clock=self.clock,
            checks={"watches": self.ready},
            health_address=self.settings.health.health_address,
            metrics_address=self.settings.health.metrics_address,
        )
        try:
            async with health, asyncio.TaskGroup() as group:
                served = [group.create_task(self._serve(index), name=f"shard {index}") for index in range(self.count)]
                group.create_task(self._share_out(), name="shares of shards")
                await self._stop_requested.wait()
                await self._stop_parts()
                await asyncio.wait(served)
                raise _Stopped
        except* _Stopped:
            log.info("stopped")
        except* VKubeletError as problems:
            raise first_error(problems) from problems

    async def _serve(self, index: int) -> None:
        """Runs the Runtime of a shard; after a hand-over, and after another replica acquired its Lease, the next one stands by."""
        with bind(shard=index):
            while not self._stop_requested.is_set():
                part = self._parts[index] = self._new(index)
                try:
                    await part.run()
                except LeadershipLost as error:
                    log.warning("the shard is served by another replica: %s", error)

    def _new(self, index: int) -> ShardRuntime:
        shard = Shard(index, self.count)
        settings = _settings_of(self.settings, shard)
        part = ShardRuntime(
            self.make(shard),
            settings,
            connection=self.connection,
            shard=shard,
            member=Member(self._leases, self.name),
            clock=self.clock,
        )
        part.overdue = self.overdue
        return part

    def _leases(self) -> Leases | None:
        seen = {index: part.observed() for index, part in self._parts.items()}
        known = {index: lease for index, lease in seen.items() if lease is not None}
        return known if len(known) == self.count else None

    async def _share_out(self) -> None:
        """Asks for shards of replicas that hold more, and hands over those that others ask for, until cancelled."""
        while True:
            await self.clock.sleep(PERIOD)
            leases = self._leases()
            if leases is None or self._stop_requested.is_set():
                continue
            if (index := to_hand_over(self.name, leases)) is not None:
                await self._hand_over(index)
                continue
            for index, lease in leases.items():
                election = self._parts[index].election
                if election is not None and election.holds and lease.wanted_by:
                    election.refuse(lease.wanted_by)
            if other_count(leases, self.count) is None and (index := wanted(self.name, leases)) is not None:
                await self._ask(index)

    async def _ask(self, index: int) -> None:
        election = self._parts[index].election
        assert election is not None, "its Lease was read"
        try:
            await election.ask()
        except ApiError as error:
            log.debug("cannot ask for shard %d: %s", index, error)

    async def _hand_over(self, index: int) -> None:
        """Stops the Runtime of a shard in order; returns when its Lease is released. Its streams continue for their grace."""
        part = self._parts[index]
        with bind(shard=index):
            log.info("handing the shard over")
        part.stop()
        if part.election is not None:
            await part.election.ended.wait()

    async def _stop_parts(self) -> None:
        """Stops those that stand by first, so that none acquires what is handed over."""
        parts = list(self._parts.items())
        for _, part in parts:
            if not part.holds:
                part.stop()
        for index, part in parts:
            if part.holds:
                await self._hand_over(index)


def _settings_of(settings: Settings, shard: Shard) -> Settings:
    """Returns the settings of the Runtime of a shard: the listeners of probes belong to the replica, and the main port to all shards."""
    directory = settings.server.certificate_directory
    directory = str(Path(directory) / f"shard-{shard.index}") if directory else ""
    return evolve(
        settings,
        health=HealthSettings(health_address="", metrics_address=""),
        server=evolve(settings.server, main_port=False, certificate_directory=directory),
    )


class _OfShards:
    """The series of all shards that a replica serves, with the label `shard`; those of the operating system's process appear once."""

    def __init__(self, parts: dict[int, ShardRuntime]) -> None:
        self._parts = parts

    async def scrape(self, clock: Clock) -> bytes:
        families: list[tuple[int, Metric]] = []
        for index, part in list(self._parts.items()):
            collected = chain(part.metrics.registry.collect(), part.metrics.provider.collect())
            families += [(index, each) async for each in in_batches(clock, collected, size=1)]
        return await asyncio.to_thread(lambda: generate_latest(Collected(_merged(families))))


def _merged(families: Sequence[tuple[int, Metric]]) -> list[Metric]:
    """Merges the families of shards by name. Runs in a thread, where the samples of thousands of nodes are computed."""
    merged: dict[str, Metric] = {}
    for index, family in families:
        is_of_process = family.name.startswith("process_")
        if is_of_process and family.name in merged:
            continue
        into = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        labels = {} if is_of_process else {"shard": str(index)}
        into.samples += [sample._replace(labels={**sample.labels, **labels}) for sample in family.samples]
    return list(merged.values())
