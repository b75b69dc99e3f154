"""What makes the longest turns of the event loop at 1,000 nodes with 20 pods each, played with the real reconcilers.

Invariant: nothing but the reconcilers runs in a measured turn: no other process, no API server, and not Python's garbage collector, whose
passes depend on all that the test process holds.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.metrics import SyncerMetrics
from kubeocean.nodes.fail_over import FailOver
from kubeocean.nodes.reclaim import Reclaimer
from kubeocean.service.metrics_snapshot import Connected, Sources, capture
from kubeocean.service.unbinding import Unbinding
from tests.support.stall import Stall, stall_meter
from tests.unit.kubeocean.builders import binding, scope
from tests.unit.kubeocean.world import Process, World, policy_body, process
from vkubelet.control.contact import Outcome
from vkubelet.control.reach import Reach
from vkubelet.metrics import Metrics

NODES, PODS = 1000, 20


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


async def longest_turns() -> Mapping[str, Stall]:
    """A window with forced reclaim ends; then a scrape, the loss of the worker, its return, and the end of the binding by force."""
    night = policy_body("night", timeWindows=[{"start": "08:00", "end": "09:29"}], forceReclaim=True, gracefulReclaimPeriodSeconds=600)
    world = World(nodes=NODES, pods=PODS, requests="100m", policies={"night": night})
    async with process(world) as made:
        world.write_nodes()
        with without_collector():
            with stall_meter() as closing:
                await world.clock.advance(31 * 60)
            assert len(made.reclaimer.ordered()) == NODES * PODS
            found = {"window_end": closing, "scrape": await scraped(world, made), **await failed_over(world, made)}
            return {**found, "unbinding": await abandoned(world, made)}


async def scraped(world: World, made: Process) -> Stall:
    """While all pods are due; the samples are made by another thread."""
    metrics, served = Metrics(CollectorRegistry()), BindingReconciler(world.host, "demo")
    connected = Connected(worker=made.worker, usage=made.nodes.usage, ledger=made.ledger)
    shared = scope(world.host, binding=served, virtual=made.virtual)
    sources = Sources(scope=shared, reclaimers=[made.reclaimer], connected=connected)
    SyncerMetrics(metrics.provider, binding="demo").follow(lambda: capture(sources))
    with stall_meter() as stall:
        await asyncio.sleep(0)
        text = await metrics.scrape(world.clock)
        await asyncio.sleep(0)
    assert text.count(b"\n") > NODES
    return stall


async def failed_over(world: World, made: Process) -> Mapping[str, Stall]:
    """A worker is lost, given up, and answers again."""
    reach, served = Reach(world.clock, "worker cluster", lost_after=40, ask_every=10), BindingReconciler(world.host, "demo")
    served.current = binding({"onUnreachable": {"mode": "FailOver", "afterSeconds": 60}})
    reclaimer = Reclaimer(world.host, per_second=10)
    fail_over = FailOver(scope(world.host, binding=served, virtual=made.virtual, reach=reach), reclaimer)
    for _ in range(30):
        began = reach.now()
        await world.clock.advance(4)
        reach.record(began, Outcome.SILENT, "no route")
    reach.lost = True
    async with asyncio.TaskGroup() as group:
        publishing = group.create_task(made.virtual.run())
        with stall_meter() as held:
            await asyncio.sleep(0)
            fail_over.hold()
            await world.clock.settle()
        with stall_meter() as given_up:
            await fail_over.check()
            await fail_over.check()
            await world.clock.settle()
        assert len(reclaimer.ordered()) == NODES * PODS
        reach.lost = False
        with stall_meter() as back:
            made.virtual.release()
            await fail_over.check()
            await world.clock.settle()
        publishing.cancel()
    assert not reclaimer.ordered()
    return {"hold": held, "fail_over": given_up, "worker_returns": back}


async def abandoned(world: World, made: Process) -> Stall:
    """The binding is deleted, and the worker is given up."""
    reclaimer = Reclaimer(world.host, per_second=10)
    served = BindingReconciler(world.host, "demo")
    shared = scope(world.host, binding=served, virtual=made.virtual, hub_nodes=world.hub_nodes)
    with stall_meter() as stall:
        await Unbinding(shared, reclaimer=reclaimer).give_up_nodes(since=world.clock.now())
    assert len(reclaimer.ordered()) == NODES * PODS
    return stall
