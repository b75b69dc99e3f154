"""2,000 nodes of one binding in four shards, each served by another process: one is killed, or all are replaced one after the other.

Invariant: the processes are the real ones, between two real API servers; nodes, pods, Leases, requests and logs are judged by watches,
audit logs and clients of their own from before the first kill on.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from attrs import define, field

from tests.benchmarks.edges import ON_TIME
from tests.benchmarks.figures import Figure
from tests.benchmarks.kubeocean import versions
from tests.benchmarks.leased import Lease, calm, leased
from tests.benchmarks.replicas import (
    SHARDS,
    Follower,
    Holders,
    Logs,
    Probe,
    Replica,
    beside,
    extra_owners,
    failed,
    holders_of,
    is_ready,
    new_replica,
    ready_nodes,
    talk,
)
from tests.support.audit import Audit
from tests.support.kubectl import Kubectl
from tests.support.load import Load, pod
from tests.support.moments import LEASES, Moments, moments_of
from tests.support.outside import Meter, Outside
from tests.support.program import eventually
from vkubelet.control.shards import Shard, shard_of
from vkubelet.server.ports import STREAMS_END
from vkubelet.testing.cluster import Site

NODES = 2000
KILLED_PODS, UPGRADED_PODS, FOLLOWERS = 400, 200, 20
STEADY = 30.0
"""Seconds before the kill whose requests are compared with those after it."""
JUDGED = 75.0
"""Seconds after the last move in which a node that is not renewed would stop being Ready."""
ANSWERED_WITHIN = 20.0
EXPIRES = 40.0
"""Seconds after which the Lease of a node expires."""
FLOWS = 3.0
"""Seconds between a line of a log that is written five times a second and the next one, at most."""


async def killed(site: Site, *, nodes: int = NODES) -> Sequence[Figure]:
    """kill -9 of one of four replicas with a shard each: nodes, pods, the other shards, and logs."""
    async with scene(site, "killed", nodes=nodes, pods=KILLED_PODS) as stage:
        one, shard, others = stage.replicas[0], stage.holders.now().index(stage.replicas[0].name), stage.replicas[1:]
        lost, kept = stage.nodes_of(shard), [node for node in stage.lease.vnodes if shard_of(node, SHARDS) != shard]
        probes = [Probe(stage.logs, stage.pods_on(stage.nodes_of(each))[0]) for each in range(SHARDS) if each != shard]
        async with stage.undisturbed() as judged:
            async with beside(*(probe.run for probe in probes)):
                calm_since = time.monotonic()
                await asyncio.sleep(STEADY)
                began = time.monotonic()
                one.program.kill()
                answered = [at - began for at in await stage.logs.all_answered(stage.pods_on(lost))]
                acquired = stage.holders.lost(shard, since=began)[0] - began
                print(
                    f"    acquired after {acquired:.1f} s, logs of {len(answered)} pods {answered[0]:.1f} to {answered[-1]:.1f} s",
                    flush=True,
                )
                await asyncio.sleep(max(0.0, began + JUDGED - time.monotonic()))
            ended = time.monotonic()
            changed = await judged.changed_pods()
        about = {*lost, *stage.pods_on(lost), *stage.lease_names(shard)}
        refused = stage.refused(others, began=calm_since, killed=began, apart_from=about)
        return [
            *stage.figures(),
            *judged.figures("shards_killed", changed),
            Figure(name="shards_killed_acquired", value=acquired, unit="s"),
            Figure(name="shards_killed_logs_first", value=answered[0], unit="s"),
            Figure(name="shards_killed_logs", value=answered[-1], unit="s", most=ANSWERED_WITHIN),
            Figure(name="shards_killed_logs_refused_by_others", value=sum(p.refused(since=began) for p in probes), unit="requests", most=1),
            Figure(name="shards_killed_requests_refused", value=len(refused), unit="requests", most=1),
            Figure(name="shards_killed_lease_pause", value=judged.renewals.longest(lost, since=began, until=ended), unit="s", most=EXPIRES),
            Figure(
                name="shards_killed_lease_pause_others",
                value=judged.renewals.longest(kept, since=began, until=ended),
                unit="s",
                most=ON_TIME,
                ratio_to="before the kill",
                ratio=judged.renewals.longest(kept, since=began, until=ended)
                / judged.renewals.longest(kept, since=calm_since, until=began),
            ),
            Figure(name="shards_killed_moves_of_others", value=stage.moves(since=began) - 1, unit="moves", most=1),
            stage.two_owners("shards_killed", since=began),
        ]


async def upgraded(site: Site, *, nodes: int = NODES) -> Sequence[Figure]:
    """Four replicas with a shard each are replaced one after the other, under 200 pods and 20 `kubectl logs -f`."""
    async with scene(site, "upgrade", nodes=nodes, pods=UPGRADED_PODS) as stage:
        pods = {index: stage.pods_on(stage.nodes_of(index)) for index in range(SHARDS)}
        kubectl = Kubectl(stage.lease.bound.hub, stage.logs.namespace)
        followers = {index: [Follower(kubectl, name) for name in pods[index][: FOLLOWERS // SHARDS]] for index in pods}
        probes = [Probe(stage.logs, names[-1]) for names in pods.values()]
        flat = [each for some in followers.values() for each in some]
        async with stage.undisturbed() as judged:
            async with beside(*(each.run for each in (*flat, *probes))):
                await eventually(lambda: all(each.lines > 1 for each in flat), "every log is followed")
                began = time.monotonic()
                for number in range(SHARDS):
                    await stage.replace(number)
                took = time.monotonic() - began
                await asyncio.sleep(JUDGED)
                quiet = [each.pod for each in flat if time.monotonic() - each.last > FLOWS]
            changed = await judged.changed_pods()
        ends = Ends.of(followers, stage.holders, since=began)
        print(f"    moves: {stage.moves(since=began)}, ends of streams: {len(ends.grace)}, without a move: {ends.stray}", flush=True)
        return [
            *stage.figures(),
            *judged.figures("shards_upgrade", changed),
            Figure(name="shards_upgrade_took", value=took, unit="s"),
            Figure(name="shards_upgrade_moves", value=stage.moves(since=began), unit="moves", most=SHARDS + 0.5),
            Figure(name="shards_upgrade_streams_ended_by_others", value=len(ends.stray), unit="streams", most=1),
            Figure(name="shards_upgrade_streams_ended_before", value=ends.early, unit="streams"),
            Figure(name="shards_upgrade_streams_not_ended", value=ends.missing, unit="streams", most=1),
            Figure(name="shards_upgrade_stream_grace", value=min(ends.grace), unit="s", least=STREAMS_END - 1),
            Figure(name="shards_upgrade_stream_grace_longest", value=max(ends.grace), unit="s", most=STREAMS_END + 3),
            Figure(name="shards_upgrade_stream_silence", value=ends.silence, unit="s", most=FLOWS),
            Figure(name="shards_upgrade_streams_quiet", value=len(quiet), unit="streams", most=1),
            Figure(name="shards_upgrade_logs_gap", value=max(probe.gap() for probe in probes), unit="s", most=ANSWERED_WITHIN),
            stage.two_owners("shards_upgrade", since=began),
        ]


@define
class Stage:
    """A binding whose nodes are served by replicas that hold one shard each."""

    lease: Lease
    replicas: list[Replica]
    holders: Holders
    logs: Logs
    pods: Mapping[str, str]
    """The node of each pod."""
    worker: Audit
    stack: AsyncExitStack
    ready_after: float
    cores: float
    """CPU of all replicas at rest."""
    gone: list[Replica] = field(factory=list)

    def nodes_of(self, shard: int) -> list[str]:
        return [node for node in self.lease.vnodes if shard_of(node, SHARDS) == shard]

    def pods_on(self, nodes: Sequence[str]) -> list[str]:
        wanted = set(nodes)
        return [name for name, node in self.pods.items() if node in wanted]

    def lease_names(self, shard: int) -> list[str]:
        """The Leases about which a replica that acquires a shard asks: its own, and that of a shard more, which does not exist."""
        return [Shard(each, SHARDS).lease(f"vkubelet-{self.lease.bound.name}") for each in (shard, SHARDS)]

    def moves(self, *, since: float) -> int:
        return sum(len(self.holders.lost(index, since=since)) for index in range(SHARDS))

    async def replace(self, number: int) -> None:
        """As a Deployment does: the next replica is ready before the old one is asked to stop."""
        old, new = self.replicas[number], await new_replica(self.lease, f"new-{number}")
        self.stack.enter_context(ended(new))
        await eventually(new.ready, "the new replica is ready", seconds=300, every=0.5)
        began = time.monotonic()
        old.program.process.terminate()
        assert await asyncio.to_thread(old.program.process.wait, 120) == 0, old.program.tail()
        self.replicas[number] = new
        self.gone.append(old)
        await eventually(lambda: self.holders.are_shared_by(self.replicas), "the shards are shared out", seconds=120)
        print(f"    replica {number + 1} was replaced, and stopped within {time.monotonic() - began:.1f} s", flush=True)

    @asynccontextmanager
    async def undisturbed(self) -> AsyncIterator[Judged]:
        """Watch what must not happen while the block runs."""
        bound = self.lease.bound
        hub, worker = bound.hub.kubeconfig, bound.worker.kubeconfig
        with (
            moments_of(hub, "/api/v1/nodes", when=lambda node: not is_ready(node)) as nodes,
            moments_of(hub, f"/api/v1/namespaces/{self.logs.namespace}/pods") as virtual,
            moments_of(worker, f"/api/v1/namespaces/{bound.mount}/pods") as physical,
            moments_of(hub, LEASES) as renewals,
        ):
            yield Judged(self, nodes, virtual, physical, renewals, await versions(self.lease, self.logs.namespace))

    def refused(self, others: Sequence[Replica], *, began: float, killed: float, apart_from: set[str]) -> list[str]:
        """Requests of the other replicas that were refused after the kill; prints those before it too, and those about what was taken."""
        moment = time.time() - time.monotonic() + killed
        calls = [call for each in others for call in each.audit.calls()] + self.worker.calls()
        before = [call for call in calls if moment - (killed - began) <= call.at.timestamp() < moment]
        after = [call for call in calls if call.at.timestamp() >= moment]
        out = failed(after, apart_from=apart_from)
        print(f"    refused before the kill: {Counter(failed(before))}", flush=True)
        print(f"    refused after it, all: {Counter(failed(after))}", flush=True)
        print(f"    refused after it, about others: {Counter(out)}", flush=True)
        return out

    def two_owners(self, name: str, *, since: float) -> Figure:
        found = extra_owners([*self.replicas, *self.gone], self.holders, nodes=self.lease.vnodes, since=since)
        print(*(f"      {line}" for line in found[:5]), sep="\n", end="", flush=True)
        return Figure(name=f"{name}_two_owners", value=len(found), unit="nodes", most=1)

    def figures(self) -> Sequence[Figure]:
        living = [Outside(each.program.process.pid) for each in self.replicas if each.program.alive]
        return [
            Figure(name="shards_ready", value=self.ready_after, unit="s"),
            Figure(name="shards_cpu", value=self.cores, unit="cores"),
            Figure(name="shards_rss", value=max(each.rss_mib() for each in living), unit="MiB"),
        ]


@define
class Judged:
    """What watches saw: nodes that were not Ready, events of pods, renewals of Leases."""

    stage: Stage
    nodes: Moments
    virtual: Moments
    physical: Moments
    renewals: Moments
    before: Mapping[str, str]
    """The resourceVersions of all pods, and of what was made for them in the worker."""

    async def changed_pods(self) -> int:
        """Pods that were changed or deleted, in the hub or in the worker."""
        seen = [{*side.times, *side.gone} for side in (self.virtual, self.physical)]
        now = await versions(self.stage.lease, self.stage.logs.namespace)
        # The watches miss nothing, or fail; that what they did not see is unchanged is read once more.
        differ = {name for name, version in now.items() if self.before.get(name) != version} | (self.before.keys() - now.keys())
        print(f"    changed: {sorted(differ)[:5]}", flush=True)
        return max(sum(map(len, seen)), len(differ))

    def figures(self, name: str, changed: int) -> Sequence[Figure]:
        not_ready = {*self.nodes.times, *self.nodes.gone}
        assert all(each.program.alive for each in self.stage.replicas[1:]), "a replica stopped"
        return [
            Figure(name=f"{name}_not_ready", value=len(not_ready), unit="nodes", most=1),
            Figure(name=f"{name}_pods_changed", value=changed, unit="pods", most=1),
        ]


@define
class Ends:
    """How streams ended: seconds after their shard moved, and which ended without that."""

    grace: list[float] = field(factory=list)
    stray: list[str] = field(factory=list)
    early: int = 0
    """Streams that ended before the first replica was replaced."""
    missing: int = 0
    """Moves that a stream survived."""
    silence: float = 0.0
    """The longest time from a last line until its stream ended."""

    @classmethod
    def of(cls, followers: Mapping[int, Sequence[Follower]], holders: Holders, *, since: float) -> Ends:
        found = cls()
        for index, some in followers.items():
            for each in some:
                found._add(each, list(holders.lost(index, since=since)), since)
        return found

    def _add(self, follower: Follower, moves: list[float], since: float) -> None:
        for at, last in follower.ends:
            if at < since:
                self.early += 1
                continue
            self.silence = max(self.silence, at - last)
            if moves and moves[0] < at:
                self.grace.append(at - moves.pop(0))
            else:
                self.stray.append(follower.pod)
        self.missing += len(moves)


@contextmanager
def ended(replica: Replica) -> Iterator[None]:
    """Started; killed at the end, as nothing follows any more for which it would have to hand over."""
    with replica.program:
        try:
            yield
        finally:
            if replica.program.alive:
                replica.program.kill()


@asynccontextmanager
async def scene(site: Site, name: str, *, nodes: int, pods: int) -> AsyncIterator[Stage]:
    """Four replicas that hold a shard each, with all nodes Ready and all pods running, at rest."""
    file = Path(site.directory, f"{name}-log", "0.log")
    file.parent.mkdir()
    file.touch()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(beside(lambda: talk(file)))
        lease = await stack.enter_async_context(leased(site, name, nodes=nodes, audited=True, logs=file))
        worker = Audit(lease.bound.worker, lease.user)
        holders = stack.enter_context(holders_of(lease))
        replicas = [await new_replica(lease, f"r-{number}") for number in range(SHARDS)]
        began = time.monotonic()
        for replica in replicas:
            stack.enter_context(ended(replica))
        await _settled(lease, replicas, holders)
        ready_after = time.monotonic() - began
        print(f"    {nodes} nodes are Ready, and every replica holds a shard, after {ready_after:.0f} s", flush=True)
        namespace = await lease.bound.hub.namespace("shards")
        where = await _filled(lease, namespace, pods)
        for replica in replicas:
            await calm(replica.program, seconds=600)
        cores = await _at_rest(replicas)
        logs = Logs(lease, namespace)
        yield Stage(lease, replicas, holders, logs, where, worker, stack, ready_after, cores)


async def _settled(lease: Lease, replicas: Sequence[Replica], holders: Holders) -> None:
    async def settled() -> bool:
        assert all(each.program.alive for each in replicas), "\n".join(each.program.tail() for each in replicas)
        return holders.are_shared_by(replicas) and await ready_nodes(lease) == len(lease.nodes)

    await eventually(settled, "all nodes are Ready", seconds=900, every=2, by=[each.program for each in replicas])


async def _filled(lease: Lease, namespace: str, pods: int) -> Mapping[str, str]:
    """Pods on nodes that are as far apart as possible, running; the node of each."""
    hub, nodes = lease.bound.hub.kubeconfig, lease.vnodes
    where = {f"p-{number}": nodes[number * len(nodes) // pods] for number in range(pods)}
    with moments_of(hub, f"/api/v1/namespaces/{namespace}/pods", fields="status.phase=Running") as running:
        await Load(hub).send(pod(name, namespace, node) for name, node in where.items())
        await eventually(lambda: len(running) == pods, f"{pods} pods run", seconds=300, every=0.2)
    return where


async def _at_rest(replicas: Sequence[Replica]) -> float:
    meters = [Meter(Outside(each.program.process.pid)) for each in replicas]
    await asyncio.sleep(STEADY)
    return sum(meter.cores for meter in meters)
