"""Many mock nodes of one process, seen from outside: when was each Ready, when was each Lease renewed, what does the process cost?

Invariant: the process is the program that users run; what is known of it comes from the API server and from the kernel.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from attrs import field, frozen

from tests.integration.runtime.fleet import Body, Fleet
from tests.support.bound import condition
from tests.support.load import Load, pod
from tests.support.moments import LEASES, Moments, moments_of
from tests.support.outside import Outside
from tests.support.program import Program, eventually

RENEW_EVERY = 10.0


@frozen(kw_only=True)
class Crowd:
    """`ready_after` is in seconds from the start of the process until the last of `names` was Ready."""

    fleet: Fleet
    program: Program
    names: Sequence[str]
    leases: Moments
    ready_after: float
    ready_at: float
    process: Outside = field()

    async def fill(self, each: int) -> float:
        """Bind so many pods to each node and wait until all run; how many did in a second."""
        wanted, path = each * len(self.names), f"/api/v1/namespaces/{self.fleet.namespace}/pods"
        with moments_of(self.fleet.plane.kubeconfig, path, fields="status.phase=Running") as running:
            began = time.monotonic()
            pods = (pod(f"{node}-{number}", self.fleet.namespace, node) for number in range(each) for node in self.names)
            await Load(self.fleet.plane.kubeconfig).send(pods)
            await eventually(lambda: len(running) == wanted, f"{wanted} pods run", seconds=120, every=0.05)
            return wanted / (max(map(running.first, running.times)) - began)

    def lateness(self, *, since: float, until: float) -> float:
        """By how much a renewal was late at most."""
        return max(0.0, self.leases.longest(self.names, since=since, until=until) - RENEW_EVERY)

    async def flips(self) -> list[str]:
        """The nodes that are not Ready, or that were not for a while since they first were."""
        nodes = await self.fleet.nodes()
        assert len(nodes) == len(self.names)
        return [node["metadata"]["name"] for node in nodes if not _steady(node)]


def _steady(node: Body) -> bool:
    """Every condition of a node is written for the first time by the same write."""
    since = {c["lastTransitionTime"] for c in node["status"]["conditions"] if c["type"] in ("Ready", "DiskPressure")}
    return condition(node, "Ready") == "True" and len(since) == 1


@asynccontextmanager
async def crowd(fleet: Fleet, nodes: int, *, seconds: float = 180.0, **settings: Any) -> AsyncIterator[Crowd]:
    """Start the process and wait until all its nodes are Ready."""
    names = [fleet.name(f"n-{number}") for number in range(nodes)]
    with (
        moments_of(fleet.plane.kubeconfig, LEASES) as leases,
        moments_of(fleet.plane.kubeconfig, "/api/v1/nodes", when=lambda node: condition(node, "Ready") == "True") as ready,
        fleet.program("mock", provider={"node": fleet.name("n"), "nodes": nodes, "resolve": False}, **settings) as program,
    ):
        began = time.monotonic()

        def all_ready() -> bool:
            assert program.alive, program.tail()
            return all(name in ready.times for name in names)

        await eventually(all_ready, f"{nodes} nodes Ready", seconds=seconds, every=0.05)
        at = max(map(ready.first, names))
        yield Crowd(
            fleet=fleet,
            program=program,
            names=names,
            leases=leases,
            ready_after=at - began,
            ready_at=at,
            process=Outside(program.process.pid),
        )
