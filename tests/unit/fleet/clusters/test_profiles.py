"""Tests of fleet.clusters.profiles: heartbeats of a member against an API server in memory."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from fleet.api import keys
from fleet.api.resources import MANAGEDCLUSTERSETBINDINGS
from fleet.clusters.hub import start
from fleet.clusters.profiles import Profiles
from fleet.clusters.registry import Registry
from fleet.core.profiles import OCM
from tests.support.memory_api import MergingApi
from tests.unit.fleet.builders import condition, hub_of
from vkubelet.client.transport import Call
from vkubelet.clock import rfc3339_micro
from vkubelet.testing.clock import ManualClock

MEMBER = "/apis/cluster.kubernetes-fleet.io/v1beta1/memberclusters/w1"
PROFILE = "/apis/multicluster.x-k8s.io/v1alpha1/namespaces/n/clusterprofiles/w1"
HEALTHY, LOST = ("True", "MemberClusterAPIServerHealthy"), ("False", "MemberAgentHeartbeatLost")


class Scene(MergingApi):
    """A hub with one joined member; also creates what is applied."""

    def __init__(self, period: int) -> None:
        super().__init__()
        self.clock, self.period, self.late = ManualClock(), period, timedelta()
        self.bindings_served = asyncio.Event()
        self.bindings_served.set()
        self.put(MEMBER, {"metadata": {"name": "w1", "uid": "m1"}, "spec": {"heartbeatPeriodSeconds": period}})
        self.beat()

    def server_now(self) -> datetime:
        return self.clock.now() - self.late

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.method == "PATCH" and call.path == PROFILE and PROFILE not in self.objects:
            body = json.loads(call.body or b"{}")
            self.put(PROFILE, {**body, "metadata": {**body["metadata"], "uid": "p1"}})
            return json.dumps(self.objects[PROFILE]).encode()
        return await super().fetch(call, timeout)

    def beat(self) -> None:
        time = rfc3339_micro(self.clock.now())
        agent = {"type": "MemberAgent", "conditions": [condition("Healthy", "True")], "lastReceivedHeartbeat": time}
        known = self.objects[MEMBER]
        self.put(MEMBER, {**known, "status": {"conditions": [condition("Joined", "True")], "agentStatus": [agent]}})

    @property
    def found(self) -> tuple[str, str]:
        (healthy,) = self.objects[PROFILE]["status"]["conditions"]
        return healthy["status"], healthy["reason"]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        hub = hub_of(self.client(), self.clock)
        registry = Registry(hub, with_members=True)
        bindings = hub.informer(MANAGEDCLUSTERSETBINDINGS)
        profiles = Profiles(hub, registry, lambda name: {}, bindings=[bindings], namespace="n", threshold=60.0)

        async def watch() -> None:
            while True:
                await registry.watching.next_break()

        async def serve() -> None:
            async with asyncio.TaskGroup() as group:
                start(group, [*registry.informers, *profiles.informers])
                group.create_task(watch())
                group.create_task(profiles.run())
                await self.bindings_served.wait()
                start(group, [bindings])

        async with asyncio.TaskGroup() as group:
            task = group.create_task(serve())
            await self.clock.settle()
            yield
            task.cancel()


async def test_f_177_a_member_is_lost_without_its_heartbeat_and_found_by_the_next_one() -> None:
    scene = Scene(60)
    async with scene.running():
        assert scene.found == HEALTHY
        for _ in range(2):
            await scene.clock.advance(67)
            assert scene.found == HEALTHY
            await scene.clock.advance(3)
            assert scene.found == LOST
            scene.beat()
            await scene.clock.settle()
            assert scene.found == HEALTHY


async def test_f_177_a_lost_member_stays_lost_when_the_time_of_the_hub_goes_back() -> None:
    scene = Scene(60)
    async with scene.running():
        await scene.clock.advance(70)
        assert scene.found == LOST
        scene.late = timedelta(seconds=30)
        profile = scene.objects[PROFILE]
        scene.put(PROFILE, {**profile, "metadata": {**profile["metadata"], "labels": {"changed": "by another client"}}})
        await scene.clock.settle()
        assert scene.found == LOST


async def test_f_177_a_member_with_a_long_period_is_not_lost_within_it() -> None:
    scene = Scene(600)
    async with scene.running():
        for _ in range(3):
            await scene.clock.advance(630)
            assert scene.found == HEALTHY
            scene.beat()
            await scene.clock.settle()
        await scene.clock.advance(637)
        assert scene.found == LOST


async def test_f_177_a_hub_that_was_away_reports_nothing_before_it_has_watched_for_as_long() -> None:
    scene = Scene(60)
    async with scene.running():
        assert scene.found == HEALTHY
    await scene.clock.advance(3600)
    async with scene.running():
        await scene.clock.advance(60)
        assert scene.found == HEALTHY
        await scene.clock.advance(10)
        assert scene.found == LOST
        scene.beat()
        await scene.clock.settle()
        assert scene.found == HEALTHY


async def test_f_175_a_hub_that_starts_deletes_no_profile_before_it_knows_the_bindings() -> None:
    scene, bound = Scene(60), PROFILE.replace("/n/", "/default/")
    scene.bindings_served.clear()
    spec = {"clusterManager": {"name": OCM}, "displayName": "w1"}
    scene.put(bound, {"metadata": {"name": "w1", "namespace": "default", "uid": "p0", "labels": {keys.CLUSTER_MANAGER: OCM}}, "spec": spec})
    async with scene.running():
        assert scene.found == HEALTHY and bound in scene.objects
        scene.bindings_served.set()
        await scene.clock.settle()
        assert bound not in scene.objects


async def test_f_501_heartbeats_in_their_period_write_nothing() -> None:
    scene = Scene(60)
    async with scene.running():
        before = len(scene.writes)
        for _ in range(60):
            await scene.clock.advance(60)
            scene.beat()
            await scene.clock.settle()
        assert scene.writes[before:] == []
