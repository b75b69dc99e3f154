"""Five hundred clusters for two minutes on one `fleet hub`, both APIs on: nothing is written, and no cluster is falsely Unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.api import keys
from tests.integration.fleet.conftest import define, prepare, serving
from tests.support.audit import Audit, Call
from tests.support.many_clusters import ManyClusters
from tests.support.outside import Meter, Outside
from tests.support.program import LONG, eventually
from vkubelet.testing.cluster import ControlPlane, Options, Site
from vkubelet.testing.fixtures import running

COUNT, WATCHED = 500, 120.0
QUIET = 5.0


@pytest.fixture
def apart(cluster_site: Site, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A hub that is removed with its thousand namespaces; no controller of Kubernetes has to fill and empty them."""
    options = Options(controllers=False, scheduler=False, aggregation=False)
    with running(ControlPlane("many", cluster_site, options=options), request) as plane:
        asyncio.run(define(plane))
        asyncio.run(prepare(plane))
        yield plane


async def settled(hub: ControlPlane, many: ManyClusters) -> None:
    """Lets the clusters live until the hub has written what their joins need; its Events come last."""

    async def quiet() -> bool:
        audit = Audit(hub, keys.HUB)
        await many.live(QUIET)
        return not written(audit)

    await eventually(quiet, f"nothing is written\n{many.program.tail()}", seconds=LONG)


def written(audit: Audit) -> list[Call]:
    """Writes to anything but the Lease of the leader."""
    return [call for call in audit.writes() if call.namespace != keys.NAMESPACE]


# Before all others: the clusters that they start use CPU until the end.
@pytest.mark.first
@pytest.mark.timeout(900)
async def test_f_501_five_hundred_clusters_in_steady_state(apart: ControlPlane, tmp_path: Path) -> None:
    with serving(apart, tmp_path, {}) as program:
        many = ManyClusters(apart, program, COUNT)
        await many.join()
        await settled(apart, many)
        process = Outside(program.process.pid)
        audit, meter = Audit(apart, keys.HUB), Meter(process)
        await many.live(WATCHED)
        meter.stop()
        print(f"{COUNT} clusters: {meter.cores:.3f} core, {process.rss_mib():.0f} MiB")
        assert written(audit) == [], "it renews the Lease of its leader alone"
        assert await many.unavailable() == []
        assert meter.cores <= 0.15 and process.rss_mib() <= 300
