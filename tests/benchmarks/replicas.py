"""Replicas of one binding with shards, seen from outside: who holds which shard, who writes about which node, which logs are answered.

Invariant: nothing is asked of the replicas but whether they are ready. A replica is known by its user in the hub's audit log and by its
process id in the Leases.
"""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from attrs import define, evolve, field, frozen
from kubernetes.client import ApiClient
from urllib3.exceptions import HTTPError

from tests.benchmarks.leased import Lease, account, make_account
from tests.support.audit import Audit, Call
from tests.support.bound import SYSTEM
from tests.support.kubectl import Kubectl
from tests.support.load import Load
from tests.support.moments import moments_of
from tests.support.program import Program, eventually
from tests.support.witness import api_client
from vkubelet.control.shards import Shard, shard_of

SHARDS = 4
TALKS_EVERY = 0.2
"""Seconds between two lines of the log."""
ANSWER_WITHIN = 5.0
ASKED_AT_ONCE = 8
"""Requests for logs."""
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"


@frozen
class Replica:
    """One of several processes; `health` is the address of its probes."""

    program: Program
    audit: Audit
    health: str

    @property
    def name(self) -> str:
        """The replica as Leases name it, but for the host."""
        return str(self.program.process.pid)

    async def ready(self) -> bool:
        """Whether it is ready, as a kubelet would ask."""
        return await asyncio.to_thread(self._ready)

    def _ready(self) -> bool:
        assert self.program.alive, self.program.tail()
        try:
            with urllib.request.urlopen(f"http://{self.health}/readyz", timeout=ANSWER_WITHIN) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except (OSError, urllib.error.HTTPError):
            return False


async def new_replica(lease: Lease, name: str) -> Replica:
    """Not started; it has a user in the hub that no other one has."""
    bound = lease.bound
    user, health = f"{bound.user}-{name}", f"127.0.0.1:{bound.hub.site.free_port()}"
    await make_account(bound.hub, user)
    settings = {
        **bound.settings,
        "leader": {"enabled": True, "namespace": SYSTEM},
        "provider": {"shards": SHARDS},
        "health": {"health_address": health, "metrics_address": "127.0.0.1:0"},
    }
    made = evolve(bound, way=lambda plane, _: account(plane, user), directory=bound.directory / name, settings=settings)
    return Replica(made.program(), Audit(bound.hub, f"system:serviceaccount:default:{user}"), health)


@define
class Holders:
    """Who held each shard, by a watch: the moment (monotonic) of each change of a holder, "" for a free one."""

    binding: str
    changes: Mapping[int, list[tuple[float, str]]] = field(factory=lambda: {index: [] for index in range(SHARDS)})

    def note(self, body: Mapping[str, Any]) -> bool:
        holder = str(body["spec"].get("holderIdentity") or "").rpartition("_")[0].rpartition("_")[2]
        for index, changes in self.changes.items():
            is_its = body["metadata"]["name"] == Shard(index, SHARDS).lease(f"vkubelet-{self.binding}")
            if is_its and (not changes or changes[-1][1] != holder):
                changes.append((time.monotonic(), holder))
        return True

    def now(self) -> Sequence[str]:
        return [changes[-1][1] if changes else "" for changes in self.changes.values()]

    def are_shared_by(self, replicas: Collection[Replica]) -> bool:
        """Whether these replicas, and no other one, hold one shard each, or at most one more than others."""
        counts = [self.now().count(each.name) for each in replicas]
        return sum(counts) == SHARDS and max(counts) - min(counts) <= 1

    def terms(self, shard: int, *, since: float = 0.0) -> Sequence[str]:
        """The replicas that held a shard, one after the other, the one that held it at first included."""
        before = [holder for at, holder in self.changes[shard] if at < since and holder][-1:]
        return _runs([*before, *(holder for at, holder in self.changes[shard] if at >= since and holder)])

    def lost(self, shard: int, *, since: float) -> Sequence[float]:
        """When a shard was released, or acquired from a holder that died."""
        changes, found = self.changes[shard], []
        for (_, before), (at, _) in zip(changes, changes[1:], strict=False):
            if before and at >= since:
                found.append(at)
        return found


@contextmanager
def holders_of(lease: Lease) -> Iterator[Holders]:
    """Note the holders of the shards while the block runs, which begins before the first replica."""
    found = Holders(lease.bound.name)
    with moments_of(lease.bound.hub.kubeconfig, LEASES, when=found.note):
        yield found


def _runs(names: Sequence[str]) -> list[str]:
    """Leaves out what follows itself."""
    return [name for number, name in enumerate(names) if not number or names[number - 1] != name]


def extra_owners(replicas: Sequence[Replica], holders: Holders, *, nodes: Sequence[str], since: float) -> list[str]:
    """The nodes that other replicas, or more often others, wrote to than held their shard: two had them at a time."""
    wanted = set(nodes)
    moment = datetime.fromtimestamp(time.time() - time.monotonic() + since, UTC)
    writes = [(call.at, each.name, call) for each in replicas for call in each.audit.writes() if call.at >= moment and call.code < 300]
    by: dict[str, list[str]] = {}
    for _, name, call in sorted(writes, key=lambda each: each[0]):
        if call.name in wanted and call.what in ("leases", "nodes", "nodes/status"):
            by.setdefault(call.name, []).append(name)
    assert by.keys() == wanted, "every node is written to"
    terms = {index: holders.terms(index, since=since) for index in range(SHARDS)}
    held = {node: terms[shard_of(node, SHARDS)] for node in by}
    return [f"{node}: {_runs(writers)}, held by {held[node]}" for node, writers in by.items() if not has_one_owner(writers, held[node])]


def has_one_owner(writers: Sequence[str], terms: Sequence[str]) -> bool:
    """Whether those who wrote about a node are the holders of its shard in their order, of whom some may have written nothing."""
    left = iter(terms)
    return all(writer in left for writer in _runs(writers))


def failed(calls: Sequence[Call], *, apart_from: Collection[str] = ()) -> list[str]:
    """Requests that were refused, but for those about objects of these names."""
    return [str(call) for call in calls if call.code >= HTTPStatus.BAD_REQUEST and call.name not in apart_from]


@define
class Logs:
    """Reads logs through the hub's API server, as kubectl does."""

    lease: Lease
    namespace: str
    _api: ApiClient = field(init=False)

    def __attrs_post_init__(self) -> None:
        configuration = api_client(self.lease.bound.hub.kubeconfig).configuration
        configuration.connection_pool_maxsize = 2 * ASKED_AT_ONCE
        self._api = ApiClient(configuration)

    async def all_answered(self, names: Sequence[str]) -> Sequence[float]:
        """Asks for each of these logs until it is answered; when each was (monotonic)."""
        turns, answered = asyncio.Semaphore(ASKED_AT_ONCE), []

        async def ask(name: str) -> None:
            async def once() -> bool:
                async with turns:
                    return await self.answered(name)

            await eventually(once, f"the logs of {name} are answered", seconds=120, every=0.5)
            answered.append(time.monotonic())

        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(ask(name))
        return sorted(answered)

    async def answered(self, name: str) -> bool:
        return await asyncio.to_thread(self._answered, name)

    def _answered(self, name: str) -> bool:
        api = self._api
        url = f"{api.configuration.host}/api/v1/namespaces/{self.namespace}/pods/{name}/log?tailLines=1"
        try:
            answer = api.rest_client.pool_manager.request("GET", url, timeout=ANSWER_WITHIN, retries=False)
        except HTTPError:
            return False
        return bool(answer.status == HTTPStatus.OK and answer.data)


@define
class Follower:
    """`kubectl logs --follow` of one pod, started again whenever it ends."""

    kubectl: Kubectl
    pod: str
    lines: int = 0
    last: float = 0.0
    """When a line came."""
    ends: list[tuple[float, float]] = field(factory=list)
    """When a stream ended, and when its last line had come."""

    async def run(self) -> None:
        while True:
            lines = self.lines
            async with self.kubectl.kubectl("logs", "--follow", "--tail=1", self.pod) as process:
                assert process.stdout is not None
                while await process.stdout.readline():
                    self.lines, self.last = self.lines + 1, time.monotonic()
                await process.wait()
                complaint = (await process.stderr.read()).decode().strip() if process.stderr is not None else ""
            if self.lines > lines:
                self.ends.append((time.monotonic(), self.last))
            print(
                f"      {datetime.now(UTC):%H:%M:%S} the log of {self.pod} ended after {self.lines - lines} lines: {complaint}", flush=True
            )
            await asyncio.sleep(1)


@asynccontextmanager
async def beside(*works: Callable[[], Any]) -> AsyncIterator[None]:
    """Run these until the block ends."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work()) for work in works]
        yield
        for task in tasks:
            task.cancel()


@define
class Probe:
    """Asks for the log of one pod, again and again."""

    logs: Logs
    pod: str
    answers: list[tuple[float, bool]] = field(factory=list)
    """When each question was asked, and whether it was answered."""

    async def run(self) -> None:
        while True:
            at = time.monotonic()
            self.answers.append((at, await self.logs.answered(self.pod)))
            await asyncio.sleep(0.5)

    def refused(self, *, since: float) -> int:
        return sum(not answered for at, answered in self.answers if at >= since)

    def gap(self) -> float:
        """The longest time from a question that was not answered to the next one that was, in seconds."""
        longest, began = 0.0, None
        for at, answered in self.answers:
            if answered:
                longest, began = max(longest, at - began if began is not None else 0.0), None
            elif began is None:
                began = at
        return longest if began is None else float("inf")


async def talk(file: Path) -> None:
    """Writes a line to the log of all containers, again and again."""
    number = 0
    with file.open("a", buffering=1) as out:
        while True:
            out.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ} stdout F line {number}\n")
            number += 1
            await asyncio.sleep(TALKS_EVERY)


async def ready_nodes(lease: Lease) -> int:
    """How many Nodes of the hub are Ready."""
    nodes = await Load(lease.bound.hub.kubeconfig).get("/api/v1/nodes?resourceVersion=0")
    return sum(is_ready(node) for node in nodes["items"])


def is_ready(node: Mapping[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions") or ())
