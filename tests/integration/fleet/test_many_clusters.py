"""Five hundred clusters for two minutes on one `fleet hub`, both APIs on: nothing is written, and no cluster is falsely Unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.api import keys
from tests.integration.fleet.conftest import define, prepare, serving
from tests.support.audit import Audit
from tests.support.many_clusters import ManyClusters, own_writes, requests
from tests.support.outside import Meter, Outside
from vkubelet.testing.cluster import ControlPlane, Options, Site
from vkubelet.testing.fixtures import running

COUNT, WATCHED = 500, 120.0
QUIET = 5.0
MOST_REQUESTS, MOST_EVENTS = 19.0, 5.0
"""Of the hub for each cluster that joins; Events that cannot be written in time are dropped, so they count apart."""


@pytest.fixture
def apart(cluster_site: Site, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A hub that is removed with its thousand namespaces; no controller of Kubernetes has to fill and empty them."""
    options = Options(controllers=False, scheduler=False, aggregation=False)
    with running(ControlPlane("many", cluster_site, options=options), request) as plane:
        asyncio.run(define(plane))
        asyncio.run(prepare(plane))
        yield plane


# Before all others: the clusters that they start use CPU until the end.
@pytest.mark.first
@pytest.mark.timeout(900)
async def test_f_501_five_hundred_clusters_in_steady_state(apart: ControlPlane, tmp_path: Path) -> None:
    with serving(apart, tmp_path, {}) as program:
        many, audit = ManyClusters(apart, program, COUNT), Audit(apart, keys.HUB)
        await many.join()
        await many.settle(keys.HUB, seconds=QUIET)
        joins = requests(audit)
        print(f"requests of {COUNT} joins:", *joins.most_common(), sep="\n")
        events = sum(number for what, number in joins.items() if what.split()[1] == "events")
        assert (joins.total() - events) / COUNT <= MOST_REQUESTS and events / COUNT <= MOST_EVENTS
        process = Outside(program.process.pid)
        audit, meter = Audit(apart, keys.HUB), Meter(process)
        await many.live(WATCHED)
        meter.stop()
        print(f"{COUNT} clusters: {meter.cores:.3f} core, {process.rss_mib():.0f} MiB")
        assert own_writes(audit) == [], "it renews the Lease of its leader alone"
        assert await many.unavailable() == []
        assert meter.cores <= 0.15 and process.rss_mib() <= 300
