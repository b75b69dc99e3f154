"""The machine's clock is set while the program runs."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.integration.runtime.fleet import Body, Fleet, complaints, renewed_at
from tests.support.bound import condition
from tests.support.moments import LEASES, moments_of
from tests.support.program import eventually
from vkubelet.node.lease import DURATION

JUMPING = Path(__file__).with_name("jumping.py")
RENEW_EVERY = 0.5


async def test_clock_jumps_disturb_neither_leases_nor_retries(fleet: Fleet) -> None:
    name, provider = fleet.name("n"), {"offset": str(fleet.directory / "offset")}
    with (
        moments_of(fleet.plane.kubeconfig, LEASES) as renewals,
        fleet.program(str(JUMPING), provider={"node": name, **provider}, lease={"renew_every": RENEW_EVERY}) as program,
    ):
        await fleet.ready([name], program=program)
        await fleet.kubectl("create", "-f", "-", stdin=json.dumps(failing(name, times=5)))
        await fleet.until_pod("p", waiting, "it waits for another try")
        for hours in (1, -1):
            before, since = await fleet.lease(name), time.monotonic()
            fleet.tell("offset", str(hours * 3600))

            def again(since: float = since) -> bool:
                return len(renewals.since(since, [name])) >= 5

            await eventually(again, f"the Lease is renewed after the clock jumped to {hours} h")
            # Who waits for the clock waits for an hour; the cluster waits for as long as a Lease lasts.
            assert renewals.longest([name], since=since, until=time.monotonic()) < DURATION
            after = await fleet.lease(name)
            assert before is not None
            assert after is not None
            # Only a later time is a renewal for the node controller, whatever our clock says.
            assert renewed_at(after) > renewed_at(before)
            assert renewed_at(after) - datetime.now(UTC) > timedelta(minutes=59)
        # After 0.2 + 0.4 + 0.8 + 1.6 + 3.2 s of back-off, and not after an hour.
        await fleet.running("p")
        (node,) = await fleet.nodes()
        assert condition(node, "Ready") == "True"
        assert complaints(program) == []


def failing(node: str, *, times: int) -> Body:
    annotations = {"mock.vkubelet.io/sync-failures": str(times)}
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "none"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": annotations}, "spec": spec}


def waiting(pod: Body) -> bool:
    """Its container waits, as the status says."""
    return any("waiting" in status["state"] for status in pod["status"].get("containerStatuses", ()))
