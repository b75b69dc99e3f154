"""Bindings to simulated worker nodes, each with its own process, so that a test may do to it what it likes.

Invariant: what a test starts ends with the test.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.support.bound import Body, Bound, delete, vacate
from tests.support.cable import Cable
from tests.support.program import Program
from tests.support.simulated import all_ready, names, simulated_nodes
from tests.support.stage import Stage
from vkubelet.testing.cluster import ControlPlane

_numbers = itertools.count(1)

STARTS_WITHIN = 90.0
"""Seconds until a program that was just started has done its first work: on a loaded machine its imports alone take 15."""


@frozen(kw_only=True)
class Scene:
    """A binding `bound` with `nodes` of the worker, served by `program`; each node has a kubelet of its own if it was made `apart`."""

    bound: Bound
    nodes: list[str]
    program: Program
    kubelets: list[Program]

    @property
    def kubelet(self) -> Program:
        """The only one."""
        (kubelet,) = self.kubelets
        return kubelet

    @property
    def vnodes(self) -> list[str]:
        return [self.bound.vnode(node) for node in self.nodes]

    async def ready(self, *, seconds: float = STARTS_WITHIN) -> None:
        try:
            await all_ready(self.bound.hub, self.vnodes, seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.program.tail(60)}") from None


MakeScene = Callable[..., Awaitable[Scene]]
FROM_WORKER = {
    "podLabels": ["worker.example.com/*", "from-the-worker"],
    "podAnnotations": ["worker.example.com/cost", "worker.example.com/there"],
}


def scenes(stack: AsyncExitStack, hub: ControlPlane, worker: ControlPlane, directory: Path) -> MakeScene:
    """Makes scenes that are undone with `stack`."""

    async def make(
        *, nodes: int = 1, apart: bool = False, start: bool = True, policies: Callable[[Bound], list[Body]] | None = None, **more: Any
    ) -> Scene:
        name = f"s{next(_numbers)}"
        physical, label = names(f"sim-{name}", nodes), f"sim-{name}"
        kubelets = [
            stack.enter_context(simulated_nodes(worker, each, nodes=count, directory=directory, label=label))
            for each, count in ([(node, 1) for node in physical] if apart else [(label, nodes)])
        ]
        stack.push_async_callback(worker.kubectl, "delete", "node", *physical, "--ignore-not-found", "--wait=false")
        spec = {"nodeSelector": only_simulated(f"sim-{name}"), "metadataFromWorker": FROM_WORKER, **more.pop("spec", {})}
        bound = Bound(hub=hub, worker=worker, name=name, directory=directory, spec=spec, **more)
        stack.push_async_callback(undo, bound)
        await bound.install(*(policies(bound) if policies else []))
        await all_ready(worker, physical, seconds=STARTS_WITHIN)
        program = bound.program()
        stack.push(program)
        if start:
            program.start()
        made = Scene(bound=bound, nodes=physical, program=program, kubelets=kubelets)
        if start:
            await made.ready()
        return made

    return make


def only_simulated(name: str) -> Body:
    """The nodeSelector of a binding for the nodes of one simulated kubelet."""
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": "simulated", "operator": "In", "values": [name]}]}]}


@pytest.fixture
async def scene(hub: ControlPlane, worker: ControlPlane, tmp_path: Path) -> AsyncIterator[MakeScene]:
    """`await scene(nodes=2, policies=..., spec=..., start=True)` makes one; all are undone afterwards."""
    async with AsyncExitStack() as stack:
        yield scenes(stack, hub, worker, tmp_path)


@contextmanager
def lasting_scene(hub: ControlPlane, worker: ControlPlane, directory: Path, **more: Any) -> Iterator[Scene]:
    """A scene for a fixture that outlives a test, and so the event loop of a test. Programs die with the thread that started them."""
    stack = AsyncExitStack()
    with closing(asyncio.new_event_loop()) as loop:
        try:
            yield loop.run_until_complete(scenes(stack, hub, worker, directory)(**more))
        finally:
            loop.run_until_complete(stack.aclose())


@pytest.fixture(scope="session")
def common(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One scene for the tests that leave it as they found it; its process may be restarted. Metrics are on a port that stays."""
    health = {"health_address": "127.0.0.1:0", "metrics_address": f"127.0.0.1:{hub.site.free_port()}"}
    settings = {"health": health, "provider": {"unused_copy_after": 2.0}}
    with lasting_scene(hub, worker, tmp_path_factory.mktemp("common"), settings=settings) as made:
        yield made


@pytest.fixture
async def stage(common: Scene) -> AsyncIterator[Stage]:
    """A fresh namespace of the hub over the common scene; what runs in it ends with the test, so the next has the scene to itself."""
    made = await Stage.of(common.bound, common.nodes)
    yield made
    await delete(common.bound.hub, "daemonsets,deployments,pods", "--all", "-n", made.namespace, "--wait=false")


@pytest.fixture
def cable(worker: ControlPlane) -> Iterator[Cable]:
    """A line to the worker's API server; ask for it before `scene`, and hand its port to it: `scene(through=cable.port)`."""
    with Cable(worker.port) as line:
        yield line


async def undo(bound: Bound) -> None:
    """Take a binding out of both clusters."""
    labels = f"kubeocean.io/cluster-binding={bound.name}"
    await asyncio.gather(
        bound.remove(),
        delete(bound.hub, "nodes", "-l", labels, "--wait=false"),
        vacate(bound.worker, bound.mount),
    )
