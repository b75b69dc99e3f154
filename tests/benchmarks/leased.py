"""A hub and a worker with simulated nodes, bound to each other, and bursts of pods through the binding or through the ideal programs.

Invariant: both get the same pods on the same clusters from the same 16 connections, one after the other and never at once.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import define, evolve, field, frozen

from tests.benchmarks import ideal, ideal_deleter
from tests.benchmarks.bare import beside
from tests.benchmarks.ideal import MOUNT
from tests.benchmarks.planes import NO_AUDIT
from tests.support.bound import Bound
from tests.support.load import Load, Request, pod, remove_pods
from tests.support.moments import Moments, moments_of
from tests.support.outside import Meter, Outside
from tests.support.program import Program, eventually
from tests.support.simulated import all_ready
from vkubelet.testing.cluster import ControlPlane, Options, SimulatedNodes, Site
from vkubelet.testing.cluster.pki import write_kubeconfig

WORKER_LEASE = 400
"""Seconds of the Leases of the worker's nodes."""
SETTLE = 3.0
"""Seconds after the removal of a burst's pods until the next one."""


def account(plane: ControlPlane, user: str) -> Path:
    """The kubeconfig that `make_account` writes: with a token, as in a cluster, where no client certificate has to be verified."""
    return plane.directory / "clients" / f"{user}-token.kubeconfig"


async def make_account(plane: ControlPlane, user: str) -> None:
    """Creates a ServiceAccount with all rights, and its kubeconfig."""
    await plane.kubectl("create", "serviceaccount", user, "-n", "default")
    await plane.kubectl("create", "clusterrolebinding", user, "--clusterrole=cluster-admin", f"--serviceaccount=default:{user}")
    token = (await plane.kubectl("create", "token", user, "-n", "default", "--duration=10h")).strip()
    file = account(plane, user)
    file.parent.mkdir(exist_ok=True)
    write_kubeconfig(file, plane.name, server=plane.url, ca=plane.ca.read_bytes(), client=token)


@frozen(kw_only=True)
class Lease:
    """A binding with `nodes` of the worker, which are simulated by KWOK."""

    bound: Bound
    nodes: Sequence[str]
    simulator: int
    """The process id of KWOK."""

    @property
    def user(self) -> str:
        """Who the process is in either cluster."""
        return f"system:serviceaccount:default:{self.bound.user}"

    @property
    def vnodes(self) -> Sequence[str]:
        return [self.bound.vnode(node) for node in self.nodes]

    @asynccontextmanager
    async def kubeocean(self, made: Program | None = None, *, seconds: float = 120.0) -> AsyncIterator[Program]:
        """The process, or the one that was `made` for it, with all virtual nodes Ready."""
        with made or self.bound.program() as program:
            try:
                await all_ready(self.bound.hub, list(self.vnodes), seconds=seconds)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{program.tail()}") from None
            yield program

    def ideal(self, namespace: str) -> AbstractAsyncContextManager[int]:
        """The ideal pipeline for one namespace; its process id."""
        return self._beside(ideal.__name__, namespace)

    def ideal_deleter(self, namespace: str) -> AbstractAsyncContextManager[int]:
        """The ideal deleter of the pods that the ideal pipeline made; its process id."""
        return self._beside(ideal_deleter.__name__, namespace)

    @asynccontextmanager
    async def _beside(self, module: str, namespace: str) -> AsyncIterator[int]:
        bound = self.bound
        arguments = (str(account(bound.hub, bound.user)), str(account(bound.worker, bound.user)), namespace)
        async with beside(module, *arguments) as pid:
            yield pid


@asynccontextmanager
async def leased(
    site: Site,
    name: str,
    *,
    nodes: int,
    audited: bool = False,
    logs: Path | None = None,
    worker_port: Callable[[int], int] = lambda port: port,
    **spec: Any,
) -> AsyncIterator[Lease]:
    """On clusters of their own, which are gone afterwards.

    `worker_port` may put a line of its own before the port of the worker's API server; `spec` is laid over that of the binding; `logs` is
    the log of all containers.
    """
    audit = {} if audited else {"audit_policy": NO_AUDIT}
    # The ideal pipeline has no Nodes at home, and pods of Nodes that are missing for 40 s would be collected in the midst of a burst.
    keeps = ["--controllers=*,-pod-garbage-collector-controller"]
    # Renewals of the worker's own Leases are not measured; at 1,000 nodes they take as much CPU as those of the virtual nodes.
    patient = [f"--node-monitor-grace-period={2 * WORKER_LEASE}s"]
    async with (
        ControlPlane(f"{name}-hub", site, options=Options(scheduler=False, verify_kubelets=False, controller_flags=keeps, **audit)) as hub,
        ControlPlane(f"{name}-worker", site, options=Options(verify_kubelets=False, controller_flags=patient, **audit)) as worker,
        SimulatedNodes(worker, nodes, lease_seconds=WORKER_LEASE, logs=logs) as simulated,
    ):
        settings = {
            "server": {"node_address": hub.host_address, "main_port": 0, "certificate": "self-signed"},
            "log": {"level": "INFO"},
        }
        directory = Path(site.directory, f"{name}-bound")
        bound = Bound(hub=hub, worker=worker, name="bench", directory=directory, settings=settings, way=account, spec=spec)
        bound = evolve(bound, through=worker_port(worker.port))
        for plane in (hub, worker):
            await make_account(plane, bound.user)
        await worker.kubectl("create", "namespace", MOUNT)
        await bound.install()
        yield Lease(bound=bound, nodes=simulated.names, simulator=simulated.pid)


@frozen
class Removal:
    """What the deletion of all pods of a burst gave."""

    rate: float
    """Pods a second that were gone in the hub and in the worker, from the first call on."""
    cpu: float
    """Seconds of CPU of the process per pod."""


@frozen
class Round:
    """What one burst gave."""

    rate: float
    latencies: Sequence[float]
    """Seconds from the answer to each creation until the pod was told to run at home, in order."""
    cpu: float
    """Seconds of CPU of the process per pod."""
    removal: Removal | None = None

    @property
    def p99(self) -> float:
        return self.latencies[int(0.99 * len(self.latencies))]


@define
class Bursts:
    """Bursts of `pods` pods."""

    lease: Lease
    pods: int = 500
    ours: list[Round] = field(factory=list)
    ideal: list[Round] = field(factory=list)

    async def round(self) -> None:
        """One of each."""
        self.ideal.append(await self.by_ideal())
        self.ours.append(await self.by_kubeocean())

    async def by_ideal(self) -> Round:
        hub, worker = self.lease.bound.hub, self.lease.bound.worker
        namespace = await hub.namespace("ideal")
        async with self.lease.ideal(namespace) as pid:
            found = await self.burst(namespace, [f"ideal-{node}" for node in self.lease.nodes], pid)
        async with self.lease.ideal_deleter(namespace) as pid:
            found = evolve(found, removal=await self.removal(namespace, MOUNT, pid))
        secrets = f"/api/v1/namespaces/{MOUNT}/secrets"
        await Load(worker.kubeconfig).send([Request("DELETE", secrets, {"apiVersion": "v1", "kind": "DeleteOptions"})])
        await asyncio.sleep(SETTLE)
        return found

    async def by_kubeocean(self) -> Round:
        async with self.lease.kubeocean(self.program()) as program:
            namespace = await self.lease.bound.hub.namespace("leased")
            await self._warm(namespace)
            found = await self.burst(namespace, self.lease.vnodes, program.process.pid)
            found = evolve(found, removal=await self.removal(namespace, self.lease.bound.mount, program.process.pid))
            await self.clear(namespace)
        await asyncio.sleep(SETTLE)
        return found

    def program(self) -> Program:
        """The program that is measured, not started."""
        return self.lease.bound.program()

    async def _warm(self, namespace: str) -> None:
        """What the pods of a namespace share is made for the first of them."""
        hub = self.lease.bound.hub.kubeconfig
        path = f"/api/v1/namespaces/{namespace}/pods"
        with moments_of(hub, path, fields="status.phase=Running") as running:
            await Load(hub).send([pod("first", namespace, self.lease.vnodes[0])])
            await eventually(lambda: len(running) == 1, "the first pod runs", seconds=60)

    async def burst(self, namespace: str, nodes: Sequence[str], pid: int = 0) -> Round:
        """All pods are created as fast as they can be, and run; `pid` is whose CPU is measured."""
        hub = self.lease.bound.hub.kubeconfig
        path = f"/api/v1/namespaces/{namespace}/pods"
        bodies = [pod(f"p-{number}", namespace, nodes[number % len(nodes)]) for number in range(self.pods)]
        with moments_of(hub, path, fields="status.phase=Running") as running:
            meter, began = Meter(Outside(pid or os.getpid())), time.monotonic()
            before = len(running)
            answered = await Load(hub).send(bodies)
            await eventually(lambda: len(running) - before >= self.pods, f"{self.pods} pods run", seconds=120, every=0.05)
            meter.stop()
        last = max(running.first(f"p-{number}") for number in range(self.pods))
        return Round(self.pods / (last - began), latencies(running, answered), meter.cpu / self.pods)

    async def removal(self, namespace: str, mount: str, pid: int) -> Removal:
        """Delete each pod of the burst with its own grace, as fast as the calls are answered, until all are gone on both sides."""
        hub, worker = self.lease.bound.hub.kubeconfig, self.lease.bound.worker.kubeconfig
        calls = [Request("DELETE", f"/api/v1/namespaces/{namespace}/pods/p-{number}", {}) for number in range(self.pods)]
        at_home, in_worker = f"/api/v1/namespaces/{namespace}/pods", f"/api/v1/namespaces/{mount}/pods"
        with moments_of(hub, at_home) as home, moments_of(worker, in_worker) as there:
            meter, began = Meter(Outside(pid)), time.monotonic()
            await Load(hub).send(calls)
            await eventually(lambda: min(len(home.gone), len(there.gone)) >= self.pods, "the pods are gone", seconds=120, every=0.05)
            meter.stop()
        last = max(*home.gone.values(), *there.gone.values())
        return Removal(self.pods / (last - began), meter.cpu / self.pods)

    async def clear(self, namespace: str) -> None:
        """Remove what a burst made, and wait until the worker has nothing of it."""
        bound = self.lease.bound
        await remove_pods(bound.hub.kubeconfig, namespace)
        await until_empty(bound.worker, bound.mount)


def latencies(running: Moments, answered: Sequence[float]) -> Sequence[float]:
    return sorted(running.first(f"p-{number}") - at for number, at in enumerate(answered))


async def calm(program: Program, *, cores: float = 0.3, seconds: float = 180.0) -> None:
    """Wait until the process uses less than that of the CPU."""

    async def little() -> bool:
        meter = Meter(Outside(program.process.pid))
        await asyncio.sleep(2)
        return meter.cores < cores

    await eventually(little, "the process has little to do", seconds=seconds, every=0.1)


async def until_empty(worker: ControlPlane, mount: str, *, seconds: float = 180.0) -> None:
    """No pod is left in the mount namespace."""
    load = Load(worker.kubeconfig)

    async def empty() -> bool:
        return not (await load.get(f"/api/v1/namespaces/{mount}/pods?limit=1"))["items"]

    await eventually(empty, "the worker has no pod left", seconds=seconds, every=0.3)
