"""Five hundred clusters for two minutes on one `fleet hub`, both APIs on: nothing is written, and no cluster is falsely Unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from fleet.api import keys
from tests.integration.fleet.conftest import define, prepare, serving
from tests.integration.fleet.player import ACCEPTED, CLUSTERS, MEMBERS, Caller, conditions, lease, managed, rfc3339
from tests.support.audit import Audit
from tests.support.outside import Meter, Outside
from tests.support.program import Program, eventually
from vkubelet.testing.cluster import ControlPlane, Options, Site
from vkubelet.testing.fixtures import running

COUNT, PERIOD, WATCHED = 500, 60, 120
NAMES = [f"many-{number}" for number in range(COUNT)]
AVAILABLE = {"type": "ManagedClusterConditionAvailable", "status": "True", "reason": "ManagedClusterAvailable", "message": ""}
AT_ONCE = 8
JOINED_WITHIN = 240.0


async def for_each(work: object, names: list[str]) -> None:
    """Calls an asynchronous function for each name, some at a time."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> None:
        async with slots:
            await work(name)  # type: ignore[operator]

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(one(name))


@pytest.fixture
def apart(cluster_site: Site, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A hub that is removed with its thousand namespaces; no controller of Kubernetes has to fill and empty them."""
    options = Options(controllers=False, scheduler=False, aggregation=False)
    with running(ControlPlane("many", cluster_site, options=options), request) as plane:
        asyncio.run(define(plane))
        asyncio.run(prepare(plane))
        yield plane


async def report(admin: Caller, name: str) -> None:
    """Sets the condition that an agent sets."""
    found = await admin.call("GET", f"{CLUSTERS}/{name}")
    # The hub may have reported meanwhile that it is not available.
    others = [each for each in found["status"]["conditions"] if each["type"] != AVAILABLE["type"]]
    listed = [*others, {**AVAILABLE, "lastTransitionTime": rfc3339(datetime.now(UTC))[:19] + "Z"}]
    await admin.merge(f"{CLUSTERS}/{name}/status", {"status": {"conditions": listed}})


@pytest.mark.timeout(900)
async def test_f_501_five_hundred_clusters_in_steady_state(apart: ControlPlane, tmp_path: Path) -> None:
    with serving(apart, tmp_path, {}) as program:
        await stays_quiet(apart, program, Caller(apart.kubeconfig))


async def stays_quiet(plane: ControlPlane, program: Program, admin: Caller) -> None:
    async def create(name: str) -> None:
        body = managed(name)
        body["spec"]["leaseDurationSeconds"] = PERIOD
        await admin.create(CLUSTERS, body)

    async def renew(name: str) -> None:
        await admin.merge(lease(name), {"spec": {"renewTime": rfc3339(datetime.now(UTC))}})

    async def accepted() -> bool:
        listed = [each for each in await admin.items(CLUSTERS) if each["metadata"]["name"] in NAMES]
        return len(listed) == COUNT and all(conditions(each).get("HubAcceptedManagedCluster") == ACCEPTED for each in listed)

    async def mirrored() -> bool:
        listed = [each for each in await admin.items(MEMBERS) if each["metadata"]["name"] in NAMES]
        return len(listed) == COUNT and all(conditions(each).get("ReadyToJoin", ("", ""))[0] == "True" for each in listed)

    async def settled() -> bool:
        listed = [each for each in await admin.items(CLUSTERS) if each["metadata"]["name"] in NAMES]
        synced = ("True", "ManagedClusterClockSynced")
        return all(
            not each["spec"].get("taints") and conditions(each).get("ManagedClusterConditionClockSynced") == synced for each in listed
        )

    await for_each(create, NAMES)
    await eventually(accepted, "all are accepted", seconds=JOINED_WITHIN, every=2.0)
    await eventually(mirrored, "all are mirrored", seconds=JOINED_WITHIN, every=2.0)
    await for_each(renew, NAMES)
    await for_each(partial(report, admin), NAMES)
    await eventually(settled, "all are available, and have a clock", seconds=JOINED_WITHIN, every=2.0)
    await asyncio.sleep(PERIOD / 4)
    process = Outside(program.process.pid)
    audit, meter = Audit(plane, keys.HUB), Meter(process)
    ends = asyncio.get_running_loop().time() + WATCHED
    share = [NAMES[at :: PERIOD // 2] for at in range(PERIOD // 2)]
    turn = 0
    while asyncio.get_running_loop().time() < ends:
        due = asyncio.get_running_loop().time() + 2.0
        await for_each(renew, share[turn % len(share)])
        turn += 1
        await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
    meter.stop()
    print(f"{COUNT} clusters: {meter.cores:.3f} core, {process.rss_mib():.0f} MiB")
    assert [call for call in audit.writes() if call.namespace != keys.NAMESPACE] == [], "it renews the Lease of its leader alone"
    listed = [each for each in await admin.items(CLUSTERS) if each["metadata"]["name"] in NAMES]
    assert all(conditions(each)[AVAILABLE["type"]][0] == "True" for each in listed)
    assert meter.cores <= 0.15 and process.rss_mib() <= 300
