"""How long the pages hold up the event loop at 1,000 nodes with 20 pods each: the manager renews its Lease in the same loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from kubeocean.commands.calendar import MOST_DAYS
from kubeocean.commands.reading import Snapshot, empty_worker, lease_of
from kubeocean.dashboard.access import TokenAccess, TokenPath
from kubeocean.dashboard.fleet import Reading, fleet_of
from kubeocean.dashboard.history import sample_of
from kubeocean.dashboard.observer import Observer
from kubeocean.dashboard.server import Dashboard, listening
from kubeocean.dashboard.source import Source
from kubeocean.model import keys
from tests.support.stall import MOST, stall_meter
from tests.unit.kubeocean.builders import OWNER, binding, limit, node, pod, policy
from tests.unit.kubeocean.dashboard.test_views import large
from tests.unit.kubeocean.stalls import without_collector
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.clock import SystemClock
from vkubelet.commands.clusters import Choice
from vkubelet.control.cache import Answer

NODES, PODS = 1000, 20
CLOCK = SystemClock()
REQUESTS = {"containers": [{"name": "m", "image": "i", "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}}}]}
NIGHT = policy("night", {"timeWindows": [{"start": "18:00", "end": "08:00"}], "resourceLimits": [limit("cpu", percent=50)]})
DAY = policy("day", {"timeWindows": [{"start": "08:01", "end": "17:59"}], "priority": -1}, uid="d")


async def snapshot(client: Client) -> Snapshot:
    """A binding whose nodes change twice a day; the worker has as many pods of its own."""
    owned, worker = binding(), empty_worker(client, binding(), OWNER)
    capacity = {"allocatable": {"cpu": "32", "memory": "128Gi", "pods": "110"}}
    for number in range(NODES):
        worker.nodes.adopt(node(status=capacity, name=f"n{number}", uid=f"n{number}", resourceVersion="5"))
    for number in range(NODES * PODS):
        worker.pods.adopt(pod({**REQUESTS, "nodeName": f"n{number % NODES}"}, name=f"w{number}", uid=f"w{number}", resourceVersion="5"))
    virtual = [keys.vnode_name(owned.cluster_id, f"n{number}") for number in range(NODES)]
    pods = [pod({**REQUESTS, "nodeName": name}, name=f"{name}-{at}", uid=f"{name}-{at}") for name in virtual for at in range(PODS)]
    with without_collector(), stall_meter() as stall:
        lease = await lease_of(owned, worker=worker, policies=[NIGHT, DAY], virtual={}, pods=pods)
        await asyncio.sleep(0)
    assert len(lease.nodes) == NODES and sum(len(each.pods) for each in lease.nodes) == NODES * PODS
    assert stall.longest < MOST, stall
    return Snapshot(binding=owned, lease=lease, worker=worker, virtual={}, policies=[NIGHT, DAY])


@asynccontextmanager
async def served(reading: Reading) -> AsyncIterator[str]:
    """The dashboard as it is after a reading of the hub and of the worker; the address of its first page."""
    async with Client(Connection("https://hub.invalid")) as client:
        source = Source(client, Choice("computing cluster", "--context"), CLOCK)
        seen = await snapshot(client)

        async def look_up() -> Answer[Snapshot]:
            return Answer(seen, 3600.0)

        await source._snapshots.get(seen.binding.name, look_up)
        source.show([each for each in reading.bindings or () if each.metadata.name == seen.binding.name])
        fleet = await fleet_of(reading, CLOCK)
        observer = Observer(source, CLOCK, 3600.0, reading=reading, fleet=fleet, read_at=CLOCK.monotonic())
        observer.history.samples = [sample_of(fleet)] * 300
        path = TokenPath()
        async with listening(Dashboard(TokenAccess(observer, path), CLOCK).application(), "127.0.0.1", 0) as path.port:
            yield path.address


async def test_no_turn_of_the_loop_takes_longer_than_a_twentieth_of_a_second() -> None:
    took: dict[str, float] = {}
    async with served(large(NODES, pods=PODS, names=("demo", "b1", "b2", "b3"))) as address, aiohttp.ClientSession() as session:
        for path, count in (("", NODES), ("nodes", NODES), ("problems", 0), ("ledger", 0), (f"calendar?days={MOST_DAYS}", 0)):
            with without_collector(), stall_meter() as stall:
                async with session.get(address + path) as answer:
                    text = await answer.text()
            assert answer.status == 200 and text.count("/nodes/v") == count, text[:2000]
            took[path] = stall.longest
    assert "night" in text and "replaces day" in text, text[:8000]
    print(took)
    assert max(took.values()) < MOST, took
