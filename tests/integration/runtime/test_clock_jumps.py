"""The machine's clock is set while the program runs."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.runtime.fleet import Body, Fleet, complaints, renewed_at
from tests.support.bound import condition
from tests.support.moments import LEASES, moments_of
from tests.support.program import Program, eventually
from tests.support.witness import watching

JUMPING = Path(__file__).with_name("jumping.py")
RENEW_EVERY = 0.5
SOON = 6.0
"""Seconds: far more than any wait of the program here, far less than the clock jumps by."""


def program(fleet: Fleet, nodes: int) -> Program:
    provider = {"node": fleet.name("n"), "nodes": nodes, "offset": str(fleet.directory / "offset")}
    return fleet.program(str(JUMPING), provider=provider, lease={"renew_every": RENEW_EVERY})


def off_by(lease: Body) -> timedelta:
    return renewed_at(lease) - datetime.now(UTC)


@pytest.mark.parametrize("hours", [[1, -1], [-1, 1]], ids=["ahead, then back", "back, then ahead"])
async def test_leases_are_renewed_as_before_when_the_clock_jumps(fleet: Fleet, hours: list[int]) -> None:
    names = [fleet.name("n-0"), fleet.name("n-1")]
    with moments_of(fleet.plane.kubeconfig, LEASES) as renewals, program(fleet, 2) as running:
        await fleet.ready(names, program=running)
        for jump in hours:
            before = {name: await fleet.lease(name) for name in names}
            fleet.tell("offset", str(jump * 3600))
            since = time.monotonic()

            def told(since: float = since) -> bool:
                return all(len(renewals.since(since, [name])) >= 8 for name in names)

            await eventually(told, f"leases are renewed after the clock jumped to {jump} h", seconds=20)
            assert renewals.longest(names, since=since, until=time.monotonic()) < SOON
            for name in names:
                lease, earlier = await fleet.lease(name), before[name]
                assert lease is not None
                assert earlier is not None
                # Only a later time is a renewal for the node controller, whatever our clock says.
                assert renewed_at(lease) > renewed_at(earlier)
                if jump > 0:
                    assert off_by(lease) > timedelta(minutes=59)
        assert [condition(node, "Ready") for node in await fleet.nodes()] == ["True", "True"]
        assert running.alive
        assert complaints(running) == []


async def test_failed_syncs_are_repeated_in_time_when_the_clock_jumps(fleet: Fleet) -> None:
    name = fleet.name("n")
    with program(fleet, 1) as running:
        await fleet.ready([name], program=running)
        with watching(fleet.plane.kubeconfig, namespace=fleet.namespace) as seen:
            await fleet.kubectl("create", "-f", "-", stdin=json.dumps(failing(name, times=5)))
            await eventually(lambda: seen.where(lambda event: bool(waiting(event.object))), "the pod waits for another try")
            fleet.tell("offset", str(-3600))
            began = time.monotonic()
            await fleet.running("p", seconds=30)
            # 0.2 + 0.4 + 0.8 + 1.6 + 3.2 s of back-off, each up to a tenth longer.
            assert time.monotonic() - began < 4 * SOON


def failing(node: str, *, times: int) -> Body:
    annotations = {"mock.vkubelet.io/sync-failures": str(times)}
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "none"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": annotations}, "spec": spec}


def waiting(pod: Body) -> str:
    """Why its container waits, as the status says."""
    statuses = pod["status"].get("containerStatuses", ())
    return next((str(status["state"]["waiting"].get("reason", "")) for status in statuses if "waiting" in status["state"]), "")
