"""Tests of fleet.ocm.health: an hour of Leases against an API server in memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from fleet.clusters.hub import Hub, start
from fleet.clusters.registry import Registry
from fleet.ocm.health import Health, addon_labels
from tests.support.memory_api import MemoryApi, Write
from tests.unit.fleet.builders import SINCE, condition, unknown
from vkubelet.api.objects import apply_merge
from vkubelet.client.transport import Call
from vkubelet.clock import rfc3339_micro
from vkubelet.control.recorder import Recorder
from vkubelet.metrics import Metrics
from vkubelet.testing.clock import ManualClock

CLUSTER = "/apis/cluster.open-cluster-management.io/v1/managedclusters/w1"
MEMBER = "/apis/cluster.kubernetes-fleet.io/v1beta1/memberclusters/w1"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/w1/leases/managed-cluster-lease"
AVAILABLE = "ManagedClusterConditionAvailable"
STOPPED = ("Unknown", "ManagedClusterLeaseUpdateStopped")
PERIOD = 60


class MergingApi(MemoryApi):
    """Also merges patches, and has a clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock

    def server_now(self) -> datetime:
        return self.clock.now()

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.method != "PATCH":
            return await super().fetch(call, timeout)
        path = call.path.removesuffix("/status")
        body = {**json.loads(call.body or b"{}")}
        body.get("metadata", {}).pop("resourceVersion", None)
        self.writes.append(Write(call.method, call.path, body))
        self.put(path, apply_merge(self.objects[path], body))
        return json.dumps(self.objects[path]).encode()


class Scene:
    """One accepted cluster and its hub."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.api = MergingApi(self.clock)
        accepted = condition("HubAcceptedManagedCluster", "True", "HubClusterAdminAccepted")
        conditions = [accepted, condition(AVAILABLE, "True", "ManagedClusterAvailable")]
        spec = {"hubAcceptsClient": True, "leaseDurationSeconds": PERIOD}
        self.api.put(CLUSTER, {"metadata": {"name": "w1", "uid": "u1"}, "spec": spec, "status": {"conditions": conditions}})
        self.renew()

    def renew(self, *, ahead: float = 0.0) -> None:
        written = rfc3339_micro(self.clock.now() + timedelta(seconds=ahead))
        labels = {"open-cluster-management.io/cluster-name": "w1"}
        metadata = {"name": "managed-cluster-lease", "namespace": "w1", "uid": "l1", "labels": labels}
        self.api.put(LEASE, {"metadata": metadata, "spec": {"renewTime": written}})

    async def live(self, seconds: float, *, ahead: float = 0.0) -> None:
        """Lets the cluster renew its Lease for so long."""
        for _ in range(int(seconds / PERIOD)):
            await self.clock.advance(PERIOD)
            self.renew(ahead=ahead)
            await self.clock.settle()

    def found(self, type_: str = AVAILABLE) -> tuple[str, str]:
        listed = self.api.objects[CLUSTER]["status"]["conditions"]
        return next(((each["status"], each["reason"]) for each in listed if each["type"] == type_), ("", ""))

    @property
    def taints(self) -> list[str]:
        return [each["key"].rpartition("/")[2] for each in self.api.objects[CLUSTER]["spec"].get("taints") or ()]


@asynccontextmanager
async def running(scene: Scene, *, with_members: bool = False) -> AsyncIterator[None]:
    """Runs the hub of a scene, and ends it with the test."""
    client, metrics = scene.api.client(), Metrics()
    hub = Hub(client, Recorder(client, "tests", clock=scene.clock), scene.clock, metrics)
    registry = Registry(hub, with_members=with_members)
    health = Health(hub, registry)

    async def serve() -> None:
        async with asyncio.TaskGroup() as group:
            start(group, [*registry.informers, *health.informers])
            group.create_task(health.watch(), name="watch")
            group.create_task(health.run(), name="health")

    async with asyncio.TaskGroup() as group:
        task = group.create_task(serve())
        await scene.clock.settle()
        yield
        task.cancel()


async def test_f_141_a_cluster_is_unknown_five_periods_after_its_last_renewal() -> None:
    scene = Scene()
    async with running(scene):
        await scene.live(600)
        assert scene.found() == ("True", "ManagedClusterAvailable") and scene.taints == []
        await scene.clock.advance(299)
        assert scene.found() == ("True", "ManagedClusterAvailable")
        await scene.clock.advance(2)
        assert scene.found() == STOPPED and scene.taints == ["unreachable"]


async def test_f_141_a_renewal_that_no_event_has_shown_counts() -> None:
    scene = Scene()
    async with running(scene):
        await scene.live(600)
        await scene.clock.advance(240)
        lease = scene.api.objects[LEASE]
        metadata = {**lease["metadata"], "resourceVersion": str(int(lease["metadata"]["resourceVersion"]) + 1)}
        scene.api.objects[LEASE] = {"metadata": metadata, "spec": {"renewTime": rfc3339_micro(scene.clock.now())}}
        await scene.clock.advance(62)
        assert scene.found() == ("True", "ManagedClusterAvailable")
        await scene.clock.advance(300)
        assert scene.found() == STOPPED


async def test_f_141_a_lease_that_was_restored_and_not_renewed_since_is_judged() -> None:
    scene = Scene()
    async with running(scene):
        await scene.live(600)
        scene.api.delete(LEASE)
        await scene.clock.advance(400)
        assert scene.found() == ("True", "ManagedClusterAvailable")
        scene.renew()
        await scene.clock.advance(310)
        assert scene.found() == STOPPED


async def test_f_141_the_addons_of_a_silent_cluster_are_unknown() -> None:
    scene = Scene()
    addon = "/apis/addon.open-cluster-management.io/v1alpha1/namespaces/w1/managedclusteraddons/tunnel"
    scene.api.put(addon, {"metadata": {"name": "tunnel", "namespace": "w1", "uid": "a1"}, "spec": {}})
    async with running(scene):
        await scene.live(600)
        assert "status" not in scene.api.objects[addon]
        await scene.clock.advance(301)
    (found,) = scene.api.objects[addon]["status"]["conditions"]
    assert (found["type"], found["status"], found["reason"]) == ("Available", *STOPPED)


async def test_f_141_in_steady_state_nothing_is_written() -> None:
    scene = Scene()
    async with running(scene):
        await scene.live(300)
        before = len(scene.api.writes)
        await scene.live(3600)
        assert scene.api.writes[before:] == []


async def test_f_141_a_process_that_was_suspended_for_an_hour_judges_nothing_at_once() -> None:
    scene = Scene()
    async with running(scene):
        await scene.live(300)
        # All timers are late at once, as after SIGCONT; what the watch missed arrives afterwards.
        scene.clock.stand_still(3600)
        await scene.clock.advance(2)
        assert scene.found() == ("True", "ManagedClusterAvailable")
        scene.renew()
        await scene.live(600)
        assert scene.found() == ("True", "ManagedClusterAvailable")


async def test_f_143_a_clock_that_differs_is_reported_and_makes_no_cluster_unknown() -> None:
    scene = Scene()
    async with running(scene):
        await scene.live(300)
        assert scene.found("ManagedClusterConditionClockSynced") == ("True", "ManagedClusterClockSynced")
        for ahead in (3600.0, -3600.0):
            await scene.live(600, ahead=ahead)
            assert scene.found("ManagedClusterConditionClockSynced") == ("False", "ManagedClusterClockOutOfSync")
            assert scene.found() == ("True", "ManagedClusterAvailable")
        await scene.live(120)
        assert scene.found("ManagedClusterConditionClockSynced") == ("True", "ManagedClusterClockSynced")


async def test_f_143_a_renewal_that_the_line_held_back_shows_no_clock() -> None:
    scene, clock = Scene(), "ManagedClusterConditionClockSynced"
    async with running(scene):
        await scene.live(300)
        await scene.clock.advance(600)
        assert scene.found() == STOPPED
        scene.renew(ahead=-590)
        await scene.clock.settle()
        assert scene.found(clock) == ("True", "ManagedClusterClockSynced")
        # The next one arrives in time, so that what it contains is the clock of the cluster.
        await scene.live(60, ahead=-600)
        assert scene.found(clock) == ("False", "ManagedClusterClockOutOfSync")


CLOCK = "ManagedClusterConditionClockSynced"
ACCEPTED = "HubAcceptedManagedCluster"


TAINT = {"key": "cluster.open-cluster-management.io/unreachable", "effect": "NoSelect", "timeAdded": SINCE}


class JoiningScene(Scene):
    """A cluster that renews its Lease, is then accepted in its second generation, and has reported nothing."""

    def __init__(self) -> None:
        super().__init__()
        record = self.api.objects[CLUSTER]
        record["metadata"]["generation"], record["spec"]["taints"], record["status"] = 2, [TAINT], {"conditions": []}

    def change(self, *, generation: int = 2, accepts: bool = True, listed: Sequence[Any] = ()) -> None:
        """Adds conditions, in another generation of the record."""
        record = self.api.objects[CLUSTER]
        conditions = [*record["status"]["conditions"], *listed]
        metadata, spec = {**record["metadata"], "generation": generation}, {**record["spec"], "hubAcceptsClient": accepts}
        self.api.put(CLUSTER, {**record, "metadata": metadata, "spec": spec, "status": {"conditions": conditions}})

    async def accept(self, *, ahead: float = 0.0) -> None:
        """Accepts it after two minutes, in which its agent has renewed the Lease."""
        await self.live(120, ahead=ahead)
        accepted = condition(ACCEPTED, "True", "HubClusterAdminAccepted", observedGeneration=2)
        self.change(listed=[{**accepted, "lastTransitionTime": rfc3339_micro(self.clock.now())}])
        await self.clock.settle()

    def generation(self, type_: str) -> int:
        return next(each["observedGeneration"] for each in self.api.objects[CLUSTER]["status"]["conditions"] if each["type"] == type_)


async def test_f_143_clock_and_acceptance_are_written_with_the_first_report() -> None:
    scene = JoiningScene()
    async with running(scene):
        await scene.accept()
        await scene.clock.advance(10)
        assert scene.api.writes == []
        # A change of taints, as of this write, increases the generation.
        scene.change(generation=3, listed=[condition(AVAILABLE, "True", "ManagedClusterAvailable")])
        await scene.clock.settle()
        assert scene.taints == [] and scene.found(CLOCK) == ("True", "ManagedClusterClockSynced")
        assert (scene.generation(ACCEPTED), scene.generation(CLOCK)) == (3, 3)
        assert [each.path for each in scene.api.writes] == [CLUSTER, f"{CLUSTER}/status"]


async def test_f_143_the_clock_of_a_cluster_that_reports_nothing_is_reported() -> None:
    scene = JoiningScene()
    async with running(scene):
        await scene.accept()
        assert scene.found(CLOCK) == ("", "")
        await scene.clock.advance(16)
        assert scene.found(CLOCK) == ("True", "ManagedClusterClockSynced") and scene.found() == ("", "")


async def test_f_143_a_clock_that_differs_is_reported_before_the_first_report() -> None:
    scene = JoiningScene()
    async with running(scene):
        await scene.live(60)
        await scene.accept(ahead=3600.0)
        assert scene.found(CLOCK) == ("False", "ManagedClusterClockOutOfSync") and scene.found() == ("", "")


async def test_f_143_the_first_renewal_after_the_hub_starts_shows_a_clock_that_differs() -> None:
    scene = JoiningScene()
    # As the hub creates it.
    del scene.api.objects[LEASE]["spec"]["renewTime"]
    async with running(scene):
        await scene.clock.advance(1)
        scene.change(listed=[condition(ACCEPTED, "True", "HubClusterAdminAccepted", observedGeneration=2)])
        scene.renew(ahead=3600.0)
        await scene.clock.settle()
        assert scene.found(CLOCK) == ("False", "ManagedClusterClockOutOfSync")


async def test_f_143_a_renewal_of_before_the_hub_was_suspended_shows_no_clock() -> None:
    scene = JoiningScene()
    del scene.api.objects[LEASE]["spec"]["renewTime"]
    async with running(scene):
        await scene.clock.advance(1)
        scene.clock.stand_still(3600)
        await scene.clock.advance(2)
        scene.change(listed=[condition(ACCEPTED, "True", "HubClusterAdminAccepted", observedGeneration=2)])
        scene.renew(ahead=-3600.0)
        await scene.clock.settle()
        assert scene.found(CLOCK)[0] != "False"


async def test_f_145_an_acceptance_that_is_withdrawn_is_not_reported_again() -> None:
    scene = JoiningScene()
    async with running(scene):
        await scene.accept()
        scene.change(generation=3, accepts=False)
        await scene.clock.advance(60)
        assert scene.generation(ACCEPTED) == 2
        scene.change(generation=4)
        await scene.clock.settle()
        assert scene.generation(ACCEPTED) == 4


class MirrorScene(Scene):
    """A member of KubeFleet whose agent knows nothing of the Lease of the ManagedCluster that mirrors it."""

    def __init__(self) -> None:
        super().__init__()
        mirror = self.api.objects[CLUSTER]
        mirror["metadata"]["annotations"] = {"fleet.vkubelet.io/origin": "MemberCluster"}
        mirror["status"]["conditions"].pop()
        self.api.objects[LEASE]["spec"] = {}
        self.beat()

    def renew(self, *, ahead: float = 0.0) -> None:
        if MEMBER in self.api.objects:
            self.beat()
        else:
            super().renew(ahead=ahead)

    def beat(self, healthy: str = "True") -> None:
        """What the hub has copied of the last heartbeat."""
        agent = {
            "type": "MemberAgent",
            "conditions": [condition("Healthy", healthy)],
            "lastReceivedHeartbeat": rfc3339_micro(self.clock.now()),
        }
        spec = {"identity": {"kind": "User", "name": "agent"}, "heartbeatPeriodSeconds": PERIOD}
        self.api.put(MEMBER, {"metadata": {"name": "w1", "uid": "m1"}, "spec": spec, "status": {"agentStatus": [agent]}})


async def test_f_142_a_mirror_is_tainted_by_the_heartbeats_of_its_member() -> None:
    scene = MirrorScene()
    async with running(scene, with_members=True):
        await scene.live(600)
        assert scene.taints == [] and scene.found() == ("", "")
        scene.beat("False")
        await scene.clock.settle()
        assert scene.taints == ["unavailable"]
        scene.beat()
        await scene.clock.settle()
        assert scene.taints == []
        await scene.clock.advance(299)
        assert scene.taints == []
        await scene.clock.advance(2)
        assert scene.taints == ["unreachable"] and scene.found() == ("", "")
        await scene.live(60)
        assert scene.taints == []


async def test_f_142_a_mirror_whose_lease_is_renewed_is_judged_by_it() -> None:
    scene = MirrorScene()
    async with running(scene, with_members=True):
        Scene.renew(scene)
        await scene.live(600)
        assert scene.found() == STOPPED and scene.taints == ["unreachable"]


def test_f_144_labels_show_the_state_of_each_addon() -> None:
    def addon(name: str, *conditions: Any) -> Any:
        return unknown({"metadata": {"name": name, "namespace": "w1"}, "status": {"conditions": list(conditions)}})

    listed = [addon("a", condition("Available", "True")), addon("b", condition("Available", "False")), addon("c")]
    prefix = "feature.open-cluster-management.io/addon-"
    assert addon_labels(listed) == {f"{prefix}a": "available", f"{prefix}b": "unhealthy", f"{prefix}c": "unreachable"}
