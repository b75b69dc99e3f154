"""Thousands of mock nodes in one process: how soon are they Ready, what do they cost at rest, how late is a Lease at most?"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence

from tests.benchmarks.figures import Figure
from tests.benchmarks.planes import fleet_on_new_plane
from tests.integration.runtime.crowd import Crowd, crowd
from tests.support.outside import Meter, Outside
from tests.support.witness import api_client
from vkubelet.testing.cluster import ControlPlane, Site

SETTLE = 15.0
"""Seconds after the last node was Ready until the process is called idle."""


async def rest(many: Crowd, seconds: float) -> Meter:
    """Leave the process alone; what it used meanwhile."""
    meter = Meter(many.process)
    await asyncio.sleep(seconds)
    meter.stop()
    return meter


async def renewals(many: Crowd, seconds: float) -> Sequence[Figure]:
    """Leave the process alone; what a renewal costs the servers, compared with the process."""
    plane, since = many.fleet.plane, time.monotonic()
    servers = {name: Meter(Outside(plane.processes[name].pid)) for name in ("kube-apiserver", "etcd")}
    own = await rest(many, seconds)
    for meter in servers.values():
        meter.stop()
    count = many.leases.count(since=since) / 1000
    return [
        Figure(name="runtime_renewal_cpu", value=own.cpu / count, unit="ms"),
        *(
            Figure(name=f"renewal_cpu_{name}", value=meter.cpu / count, unit="ms", ratio_to="the process", ratio=meter.cpu / own.cpu)
            for name, meter in servers.items()
        ),
    ]


def stored(plane: ControlPlane) -> Sequence[Figure]:
    """The mean size of objects in etcd, as the API server estimates it."""
    api = api_client(plane.kubeconfig)
    text = api.rest_client.pool_manager.request("GET", f"{api.configuration.host}/metrics").data.decode()
    sizes, counts = _by_resource(text, "apiserver_resource_size_estimate_bytes"), _by_resource(text, "apiserver_resource_objects")
    return [Figure(name=f"stored_{name}", value=sizes[name] / counts[name], unit="bytes") for name in ("nodes", "leases", "pods")]


def _by_resource(text: str, series: str) -> Mapping[str, float]:
    return {name: float(value) for name, value in re.findall(rf'^{series}{{.*resource="(\w+)"}} (\S+)$', text, re.MULTILINE)}


async def thousand(site: Site) -> Sequence[Figure]:
    """1,000 nodes for three minutes, then with ten pods each for one."""
    async with fleet_on_new_plane(site, "thousand") as fleet, crowd(fleet, 1000) as many:
        await asyncio.sleep(SETTLE)
        since = time.monotonic()
        idle = await rest(many, 120)
        servers = await renewals(many, 60)
        late = many.lateness(since=since, until=time.monotonic())
        rss, flipped = many.process.rss_mib(), await many.flips()
        figures = [
            Figure(name="runtime_1000_nodes_ready", value=many.ready_after, unit="s", most=30),
            Figure(name="runtime_1000_nodes_rss", value=rss, unit="MiB", most=300),
            Figure(name="runtime_1000_nodes_cpu", value=idle.cores, unit="cores", most=0.15),
            Figure(name="runtime_1000_nodes_lateness", value=late, unit="s", most=5),
            Figure(name="runtime_1000_nodes_not_ready", value=len(flipped), unit="nodes", most=1),
            *servers,
        ]
        rate = await many.fill(10)
        await asyncio.sleep(SETTLE)
        idle = await rest(many, 60)
        figures += [
            Figure(name="runtime_10000_pods_rate", value=rate, unit="pods/s"),
            Figure(name="runtime_10000_pods_rss", value=many.process.rss_mib(), unit="MiB", most=300),
            Figure(name="runtime_10000_pods_cpu", value=idle.cores, unit="cores", most=1),
            *stored(fleet.plane),
        ]
    return figures


async def five_thousand(site: Site) -> Sequence[Figure]:
    """5,000 nodes for a minute and a half."""
    async with fleet_on_new_plane(site, "fivethousand") as fleet, crowd(fleet, 5000, seconds=400) as many:
        await asyncio.sleep(SETTLE)
        since = time.monotonic()
        idle = await rest(many, 90)
        late, flipped = many.lateness(since=since, until=time.monotonic()), await many.flips()
        return [
            Figure(name="runtime_5000_nodes_ready", value=many.ready_after, unit="s"),
            Figure(name="runtime_5000_nodes_rss", value=many.process.rss_mib(), unit="MiB"),
            Figure(name="runtime_5000_nodes_cpu", value=idle.cores, unit="cores"),
            Figure(name="runtime_5000_nodes_lateness", value=late, unit="s", most=30),
            Figure(name="runtime_5000_nodes_not_ready", value=len(flipped), unit="nodes", most=1),
        ]
