"""A worker that has joined by both APIs, and what the hub reports of it while something between them, or on either side, does not work.

Invariant: every value of a condition, taint and profile is recorded by an independent watch, so that one that is wrong for a moment fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from attrs import frozen

from tests.integration.fleet.player import (
    CLUSTERS,
    CSRS,
    MEMBERS,
    Body,
    Caller,
    addon,
    addons,
    conditions,
    found,
    lease,
    profile,
    reaches,
    taints,
)
from tests.integration.fleet.together.scene import Fleet, Laptop
from tests.integration.fleet.trace import Trace, tracing
from tests.support.cable import Cable
from tests.support.program import LONG, Program, eventually, holds

Pair = tuple[str, str]

AVAILABLE, CLOCK = "ManagedClusterConditionAvailable", "ManagedClusterConditionClockSynced"
ACCEPTANCE, JOINED, HEALTHY = "HubAcceptedManagedCluster", "ManagedClusterJoined", "ControlPlaneHealthy"
UP, DOWN = ("True", "ManagedClusterAvailable"), ("False", "ManagedClusterKubeAPIServerUnavailable")
STOPPED = ("Unknown", "ManagedClusterLeaseUpdateStopped")
SYNCED, OUT_OF_SYNC = ("True", "ManagedClusterClockSynced"), ("False", "ManagedClusterClockOutOfSync")
SERVER_UP, SERVER_DOWN = ("True", "MemberClusterAPIServerHealthy"), ("False", "MemberClusterAPIServerUnhealthy")
LOST = ("False", "MemberAgentHeartbeatLost")
MINE = ("mine", "PreferNoSelect")
UNREACHABLE = ("cluster.open-cluster-management.io/unreachable", "NoSelect")
UNAVAILABLE = ("cluster.open-cluster-management.io/unavailable", "NoSelect")
BINDINGS = "/apis/cluster.open-cluster-management.io/v1beta2/namespaces/default/managedclustersetbindings"
PROFILES = "fleet-system"
GRACE = 5
"""Periods of the Lease after which a cluster counts as silent."""
SOON = 15.0
"""Seconds within which the hub notices what is due, on a loaded machine."""


@frozen(kw_only=True)
class Pace:
    """Periods of Lease and heartbeat, the age of a heartbeat that is lost, and how long an outage takes, all in seconds."""

    lease: int
    heartbeat: int
    threshold: float
    lasts: float
    without_server: float
    """Likewise of a worker's API server, which counts as unhealthy after 20 s."""

    @property
    def lost_after(self) -> float:
        """Age of a heartbeat that the profile reports; no less than one may take that is late by its jitter and on its way."""
        return max(self.threshold, 1.05 * self.heartbeat + 5)


SHORT = Pace(lease=2, heartbeat=1, threshold=8.0, lasts=18.0, without_server=30.0)
TEN_MINUTES = Pace(lease=60, heartbeat=60, threshold=60.0, lasts=600.0, without_server=600.0)
"""What the APIs have as their defaults."""


def condition_of(name: str) -> Any:
    """Reads status and reason of a condition."""
    return lambda body: conditions(body).get(name)


def _feature(body: Body) -> str:
    return str((body["metadata"].get("labels") or {}).get("feature.open-cluster-management.io/addon-tunnel", ""))


@frozen
class Traces:
    """What the hub reports of one cluster."""

    managed: Trace
    member: Trace
    published: Trace
    """Its profile as a member."""
    bound: Trace
    """Its profile as a cluster of a set."""
    addon: Trace

    def values(self) -> dict[str, list[Any]]:
        """All values of everything, in their order."""
        named = (self.managed, ""), (self.member, "member "), (self.published, "published "), (self.bound, "bound "), (self.addon, "addon ")
        return {f"{prefix}{part}": trace.values(part) for trace, prefix in named for part in trace.parts}


@asynccontextmanager
async def traced(laptop: Laptop) -> AsyncIterator[Traces]:
    """Records what the hub reports of a cluster while the block runs."""
    name = laptop.name
    own = {each: condition_of(each) for each in (ACCEPTANCE, JOINED, AVAILABLE, CLOCK)}
    healthy = {HEALTHY: condition_of(HEALTHY)}
    objects = {
        f"{CLUSTERS}/{name}": {**own, "taints": taints, "addon": _feature},
        f"{MEMBERS}/{name}": {"Joined": condition_of("Joined"), "taints": taints},
        profile(PROFILES, name): healthy,
        profile("default", name): healthy,
        addons(name, "tunnel"): {"Available": condition_of("Available")},
    }
    async with tracing(laptop.fleet.hub.kubeconfig, objects) as traces:
        yield Traces(*traces.values())


@frozen
class Joined:
    """A worker that has joined; its agent is also a member's."""

    laptop: Laptop
    agent: Program
    owner: Caller
    pace: Pace

    async def report_addon(self) -> None:
        """What the agent of the addon reports, which is not ours."""
        now = {"message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        available = {"type": "Available", "status": "True", "reason": "Works", **now}
        await self.owner.merge(f"{addons(self.laptop.name, 'tunnel')}/status", {"status": {"conditions": [available]}})

    async def is_well(self, *, seconds: float = LONG) -> None:
        """Waits for the state in which nothing is wrong with the cluster."""
        owner, name = self.owner, self.laptop.name

        async def check() -> None:
            record = await owner.call("GET", f"{CLUSTERS}/{name}")
            states = conditions(record)
            assert (states.get(AVAILABLE), states.get(CLOCK), taints(record)) == (UP, SYNCED, [MINE]), (states, taints(record))
            assert _feature(record) == "available"
            member, spaces = await owner.call("GET", f"{MEMBERS}/{name}"), (PROFILES, "default")
            assert conditions(member).get("Joined") == ("True", "MemberClusterJoined") and taints(member) == []
            profiles = [conditions(await owner.get(profile(each, name))).get(HEALTHY) for each in spaces]
            assert profiles == [SERVER_UP, UP], profiles

        try:
            await holds(check, seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.agent.tail()}\n{self.laptop.fleet.process.tail()}") from error

    async def renewed(self) -> str:
        return str((await self.owner.call("GET", lease(self.laptop.name)))["spec"].get("renewTime"))

    async def requests(self) -> int:
        """Number of certificates that the agent has requested."""
        return len(await self.owner.items(f"{CSRS}?labelSelector=open-cluster-management.io/cluster-name={self.laptop.name}"))


@asynccontextmanager
async def joined(laptop: Laptop, owner: Caller, pace: Pace, *, hub: str = "", ahead: int | None = None) -> AsyncIterator[Joined]:
    """A worker that joins and is well; `hub` is the address at which it reaches the hub, `ahead` gives it a clock of its own."""
    name = laptop.name
    await bind_default_set(owner)
    with (
        laptop.joining(**({"hub": hub} if hub else {})) as join,
        await laptop.agent(join, ahead=ahead, modules=["kubefleet"]) as agent,
    ):
        await eventually(lambda: f"fleet accept {name}" in join.text(), "a request", by=[join, agent])
        await laptop.fleet.done("accept", name, "--yes")
        await owner.merge(f"{CLUSTERS}/{name}", {"spec": {"leaseDurationSeconds": pace.lease}})
        await found(owner, f"{MEMBERS}/{name}")
        await owner.merge(f"{MEMBERS}/{name}", {"spec": {"heartbeatPeriodSeconds": pace.heartbeat}})
        await reaches(owner, f"{CLUSTERS}/{name}", AVAILABLE, UP)
        await owner.create(addons(name), addon(name, "tunnel"))
        made = Joined(laptop, agent, owner, pace)
        await made.report_addon()
        await tainted_by_owner(owner, name)
        await made.is_well()
        yield made
        if await owner.get(f"{CLUSTERS}/{name}") is not None:
            await laptop.fleet.done("leave", name, "--yes")


async def tainted_by_owner(owner: Caller, name: str) -> None:
    """A taint that is not of the hub, once the cluster has none of the hub."""

    async def untainted() -> bool:
        return taints(await owner.call("GET", f"{CLUSTERS}/{name}")) == []

    await eventually(untainted, f"{name} has no taint")
    await owner.merge(f"{CLUSTERS}/{name}", {"spec": {"taints": [{"key": MINE[0], "effect": MINE[1]}]}})


async def bind_default_set(owner: Caller) -> None:
    """Profiles of all clusters in the namespace default."""
    kind = {"apiVersion": "cluster.open-cluster-management.io/v1beta2", "kind": "ManagedClusterSetBinding"}
    made = await owner.status_of("POST", BINDINGS, {**kind, "metadata": {"name": "default"}, "spec": {"clusterSet": "default"}})
    assert made in (200, 409)


STEADY: dict[str, list[Any]] = {
    ACCEPTANCE: [("True", "HubClusterAdminAccepted")],
    JOINED: [("True", "ManagedClusterJoined")],
    AVAILABLE: [UP],
    CLOCK: [SYNCED],
    "taints": [[MINE]],
    "addon": ["available"],
    "member Joined": [("True", "MemberClusterJoined")],
    "member taints": [[]],
    f"published {HEALTHY}": [SERVER_UP],
    f"bound {HEALTHY}": [UP],
    "addon Available": [("True", "Works")],
}
"""Values of a cluster that nothing happens to."""
SILENT: dict[str, list[Any]] = {
    **STEADY,
    AVAILABLE: [UP, STOPPED, UP],
    "taints": [[MINE], [MINE, UNREACHABLE], [MINE]],
    "addon": ["available", "unreachable", "available"],
    "member taints": [[], [(UNREACHABLE[0], "NoSchedule")], []],
    f"published {HEALTHY}": [SERVER_UP, LOST, SERVER_UP],
    f"bound {HEALTHY}": [UP, STOPPED, UP],
    "addon Available": [("True", "Works"), STOPPED, ("True", "Works")],
}
"""Those of one whose agent is not heard."""
UNHEALTHY: dict[str, list[Any]] = {
    **STEADY,
    AVAILABLE: [UP, DOWN, UP],
    "taints": [[MINE], [MINE, UNAVAILABLE], [MINE]],
    "member taints": [[], [(UNAVAILABLE[0], "NoSchedule")], []],
    f"published {HEALTHY}": [SERVER_UP, SERVER_DOWN, SERVER_UP],
    f"bound {HEALTHY}": [UP, DOWN, UP],
}
"""Those of one whose API server does not answer, while its agent does."""


Step = Callable[[], Awaitable[object]]


async def unchanged(made: Joined, traces: Traces, wanted: Mapping[str, list[Any]]) -> None:
    """The recovery took no hands and no new certificate, and the hub reported exactly these values meanwhile."""
    assert await made.requests() == 1
    assert traces.values() == wanted, f"{traces.values()}\n{made.agent.tail()}\n{made.laptop.fleet.process.tail()}"


def stopped_and_started(program: Program) -> tuple[Step, Step]:
    async def stop() -> None:
        assert await asyncio.to_thread(program.terminate) == 0

    async def start() -> None:
        program.start()

    return stop, start


def _cut(line: Cable, break_: Callable[[], None]) -> tuple[Step, Step]:
    async def end() -> None:
        break_()

    async def restore() -> None:
        line.mend()

    return end, restore


async def all_ways_of_silence(fleet: Fleet, laptops: Callable[[], Laptop], owner: Caller, pace: Pace) -> None:
    """Three workers side by side: the line to the hub resets connections, it swallows what is sent, and the agent is stopped."""
    cut, silent = fleet.lines

    async def through(line: Cable, break_: Callable[[], None], what: str) -> None:
        async with joined(laptops(), owner, pace, hub=f"https://127.0.0.1:{line.port}") as made:
            print(f"line {what}: {await falls_silent(made, *_cut(line, break_))}")
            assert made.agent.alive

    async def without_agent() -> None:
        async with joined(laptops(), owner, pace) as made:
            print(f"agent stopped: {await falls_silent(made, *stopped_and_started(made.agent))}")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(through(cut, cut.cut, "cut"))
            group.create_task(through(silent, silent.silence, "silent"))
            group.create_task(without_agent())
    finally:
        for line in fleet.lines:
            line.mend()


async def falls_silent(made: Joined, break_: Step, restore: Step) -> str:
    """Nothing is heard of a cluster for the time of an outage; returns when that was noticed."""
    pace = made.pace
    async with traced(made.laptop) as traces:
        await break_()
        began = time.monotonic()
        await asyncio.sleep(pace.lasts)
        assert traces.managed.values(AVAILABLE) == [UP, STOPPED], f"{traces.values()}\n{made.laptop.fleet.process.tail()}"
        await restore()
        restored = time.monotonic()
        await eventually(lambda: traces.managed.values(AVAILABLE)[-1] == UP, "available", seconds=LONG, by=[made.agent])
        await made.report_addon()
        await made.is_well()
    await unchanged(made, traces, SILENT)
    return timed(traces, began, restored, pace=pace)


def timed(traces: Traces, began: float, restored: float, *, pace: Pace) -> str:
    """Checks when a silent cluster was noticed; returns the times for people."""
    grace = GRACE * pace.lease
    lost, stopped = traces.published.at(HEALTHY, LOST) - began, traces.managed.at(AVAILABLE, STOPPED) - began
    # The last heartbeat and renewal were up to a period, and its jitter, before.
    assert pace.lost_after - 1.05 * pace.heartbeat - 1 < lost < pace.lost_after + SOON, lost
    assert grace - 1.25 * pace.lease - 1 < stopped < grace + SOON, stopped
    back = traces.managed.seen[AVAILABLE][-1][1] - restored
    healthy = traces.published.seen[HEALTHY][-1][1] - restored
    return (
        f"heartbeat lost after {lost:.1f} s, unknown after {stopped:.1f} s; available {back:.1f} s, healthy {healthy:.1f} s after the end"
    )


async def loses_its_api_server(made: Joined) -> str:
    """The API server of a worker is stopped for the time of an outage; returns when that was noticed."""
    worker = made.laptop.worker
    async with traced(made.laptop) as traces:
        await worker.stop_apiserver()
        began = time.monotonic()
        await asyncio.sleep(made.pace.without_server)
        before = await made.renewed()
        await worker.start_apiserver()
        restored = time.monotonic()
        await made.is_well()
        assert await made.renewed() >= before
    await unchanged(made, traces, UNHEALTHY)
    noticed, back = traces.managed.at(AVAILABLE, DOWN) - began, traces.managed.seen[AVAILABLE][-1][1] - restored
    assert made.agent.alive
    return f"unavailable after {noticed:.1f} s; available {back:.1f} s after the end"


async def loses_its_hub(made: Joined, stop: Step, start: Step) -> str:
    """The hub, or its process, is stopped for the time of an outage: that is held against no cluster; returns when all renew again."""
    before = await made.renewed()
    async with traced(made.laptop) as traces:
        await stop()
        await asyncio.sleep(made.pace.lasts)
        await start()
        restored = time.monotonic()
        last = await made.renewed()

        async def renews() -> bool:
            return await made.renewed() > max(before, last)

        await eventually(renews, "the Lease is renewed", by=[made.agent])
        took = time.monotonic() - restored
        # Two watched periods are what the hub judges by.
        await asyncio.sleep(2.5 * made.pace.lease)
        await made.is_well()
    await unchanged(made, traces, STEADY)
    return f"renewed {took:.1f} s after the end"
