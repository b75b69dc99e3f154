"""An idle process writes what rule `tokens-without-storms` allows for three minutes, and nothing else; judged by both audit logs.

Begun with the first test of this module and looked at after all others, so that the minutes cost little of the run.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from attrs import frozen

from tests.integration.kubeocean.conftest import Scene, lasting_scene
from tests.support.audit import Audit, Call
from tests.support.bound import get
from tests.support.program import PATIENCE, eventually
from tests.support.stage import Stage
from vkubelet.testing.cluster import ControlPlane

IDLE = timedelta(minutes=3)
QUIET = timedelta(seconds=5)
"""Without any write but leases: what the pods' creation caused has ended."""
LEASE_EVERY, LEASE_LASTS = timedelta(seconds=10), timedelta(seconds=40)
BEATS = 3
"""More than the writes of the status of a node that are allowed."""


@frozen
class Idle:
    """A scene, and what our user has done on both sides since; it is left alone from `since` on."""

    scene: Scene
    home: Audit
    there: Audit
    since: datetime

    def writes(self, audit: Audit) -> list[Call]:
        return [call for call in audit.writes() if self.since <= call.at < self.since + IDLE]


@pytest.fixture(scope="session")
def idle(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Idle]:
    """Two nodes, six pods with tokens, a ConfigMap and a Secret."""
    with lasting_scene(hub, worker, tmp_path_factory.mktemp("idle"), nodes=2) as scene, closing(asyncio.new_event_loop()) as loop:
        yield loop.run_until_complete(settle(scene))


async def settle(scene: Scene) -> Idle:
    """Fill the scene, wait until nothing more follows from that, and let the kubelets of the worker speak without news."""
    home, there = Audit(scene.bound.hub, scene.bound.user), Audit(scene.bound.worker, scene.bound.user)
    stage = await Stage.of(scene.bound, scene.nodes)
    metadata = {"name": "shared", "namespace": stage.namespace}
    await stage.home.create("configmaps", {"metadata": metadata, "data": {"colour": "blue"}})
    await stage.home.create("secrets", {"metadata": metadata, "data": {"word": "cGFzcw=="}})
    volumes = [{"name": "c", "configMap": {"name": "shared"}}, {"name": "s", "secret": {"secretName": "shared"}}]
    for number in range(6):
        body = stage.body(f"p{number}", volumes=volumes)
        body["spec"]["nodeName"] = scene.vnodes[number % 2]
        await stage.home.create("pods", body)
    for number in range(6):
        await stage.running(f"p{number}")

    def quiet() -> bool:
        writes = [call.at for call in (*home.writes(), *there.writes()) if call.what != "leases"]
        return datetime.now(UTC) - max(writes) > QUIET

    await eventually(quiet, "nothing but leases is written", seconds=60, every=0.5)
    idle = Idle(scene, home, there, datetime.now(UTC))
    for _ in range(BEATS):
        await beat(scene)
    return idle


async def beat(scene: Scene) -> None:
    """What kubelets write of nodes on which nothing has changed."""
    began, worker = datetime.now(UTC), scene.bound.worker
    stamp = f"{began:%Y-%m-%dT%H:%M:%SZ}"
    for node in scene.nodes:
        conditions = [{**each, "lastHeartbeatTime": stamp} for each in (await get(worker, "node", node))["status"]["conditions"]]
        change = json.dumps({"status": {"conditions": conditions}})
        await worker.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", change)
    # Times of Kubernetes count whole seconds.
    await eventually(lambda: datetime.now(UTC) - began > timedelta(seconds=1.1), "a second has passed")


async def test_what_is_to_be_idle_was_busy_before(idle: Idle) -> None:
    """The audit logs do show the writes of our user."""
    home = {call.what for call in idle.home.writes() if call.at < idle.since}
    there = {call.what for call in idle.there.writes() if call.at < idle.since}
    assert {"pods/status", "serviceaccounts/token"} <= home
    assert {"pods", "secrets", "configmaps"} <= there
    await idle.scene.ready()


@pytest.mark.last
async def test_idle_for_three_minutes_only_leases_and_the_status_of_nodes_are_written(idle: Idle) -> None:
    end = idle.since + IDLE
    await eventually(
        lambda: [call for call in idle.home.writes() if call.what == "leases" and call.at >= end],
        "a lease is renewed after the three minutes",
        seconds=IDLE.total_seconds() + PATIENCE,
        every=1,
    )
    there = Counter((call.verb, call.what) for call in idle.writes(idle.there))
    # Every five minutes while pods run, so at most once in three.
    for ledger in ("configmaps", "resourceleasingpolicies/status"):
        assert there.pop(("patch", ledger), 0) <= 1
    assert not there, there
    home = Counter((call.verb, call.what, call.name) for call in idle.writes(idle.home))
    print(f"{len(idle.home.calls())} calls at home, {len(idle.there.calls())} in the worker since the start; idle: {dict(home)}")
    for node in idle.scene.vnodes:
        renewals = home.pop(("update", "leases", node), 0)
        # Few enough to be no other rhythm, and as many as it takes to keep a node alive: a machine that stands still renews later.
        assert IDLE / LEASE_LASTS < renewals <= IDLE / LEASE_EVERY * 1.25, renewals
        # Every six minutes, so at most once in three.
        assert home.pop(("patch", "nodes/status", node), 0) <= 1
    assert not home, home
