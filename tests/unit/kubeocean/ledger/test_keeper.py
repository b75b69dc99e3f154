"""When the ledger is stored, by whom, and what the next process makes of it; against an API server model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.ledger.keeper import LedgerKeeper
from kubeocean.ledger.text import parse
from kubeocean.model import keys
from kubeocean.policies.reconciler import ResourceLeasingPolicyReconciler
from tests.faults.model.refusals import Target
from tests.faults.model.server import ApiModel
from tests.faults.model.watching import Watch, WatchLine
from tests.unit.kubeocean.builders import OWNER, at, binding, node, unknown, worker_scope
from tests.unit.kubeocean.world import listed
from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.objects import Pod
from vkubelet.client.transport import Call
from vkubelet.clock import parse_rfc3339, rfc3339
from vkubelet.control.contact import Outcome
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost

MOUNT = "mnt"
PATH = f"/api/v1/namespaces/{MOUNT}/configmaps"
NOW = at("2026-01-05 10:00")


class World:
    """A worker in memory; its pods are what the watch of a process shows."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.model = ApiModel(now=self.clock.now)
        self.model.call("POST", "/api/v1/namespaces", {"metadata": {"name": MOUNT}}, user="owner")
        self.pods: dict[str, Pod] = {}
        self._version = 100

    def pod(self, name: str, *, cpu: str = "1", ended: datetime | None = None, bound: datetime | None = None) -> Pod:
        """Creates a physical pod of team-a, or changes it."""
        self._version += 1
        bound = bound or self.clock.now()
        status: dict[str, Any] = {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(bound)}]}
        if ended is not None:
            status["containerStatuses"] = [{"name": "main", "state": {"terminated": {"finishedAt": rfc3339(ended)}}}]
        marks = {
            **OWNER.annotations,
            keys.VIRTUAL_POD_NAMESPACE: "team-a",
            keys.VIRTUAL_POD_NAME: name,
            keys.VIRTUAL_POD_UID: f"v-{name}",
            keys.VIRTUAL_NODE_NAME: "vnode-demo-node-1",
        }
        meta = {"name": keys.physical_name("team-a", name), "namespace": MOUNT, "uid": name, "resourceVersion": str(self._version)}
        spec = {"nodeName": "node-1", "containers": [{"name": "main", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}
        phase = "Running" if ended is None else "Succeeded"
        body = {"metadata": {**meta, "labels": OWNER.labels, "annotations": marks}, "spec": spec, "status": {"phase": phase, **status}}
        self.pods[name] = decode_object(Pod, encode_json(body))
        return self.pods[name]

    @property
    def stored(self) -> dict[str, Any] | None:
        return self.model.get("", "v1", "configmaps", MOUNT, keys.LEDGER)

    @property
    def cpu(self) -> float:
        """Stored core-seconds."""
        ledger = parse(self.stored["data"]) if self.stored else None
        assert ledger is not None
        return sum(lent["cpu"].nanos / 1e9 for lent in ledger.total.values())

    @property
    def times(self) -> list[datetime]:
        """When the ledger was written."""
        return [change.time for change in self.model.history if change.key == (MOUNT, keys.LEDGER)]


class Process:
    def __init__(self, world: World) -> None:
        self.world = world
        host = RecordingHost(client=world.model.client("kubeocean", clock=world.clock), clock=world.clock)
        served = BindingReconciler(host, "demo")
        served.current = binding()
        listed(served.informer)
        self.scope = worker_scope(host, binding=served)
        self.informer = self.scope.worker.pods
        self.scope.worker.nodes.adopt(node(resourceVersion="1"))
        policies = ResourceLeasingPolicyReconciler(self.scope)
        self.keeper = LedgerKeeper(self.scope, policies)
        meta = {"name": "all", "uid": "all", "resourceVersion": "1"}
        self.scope.worker.policies.adopt(unknown({"metadata": meta, "spec": {"cluster": "demo"}}))
        for pod in world.pods.values():
            self.informer.adopt(pod)
        listed(self.scope.worker.nodes)
        listed(self.scope.worker.policies)
        listed(self.scope.hub_nodes)
        listed(self.informer)

    def see(self, name: str, **more: Any) -> None:
        """The watch shows a pod."""
        self.informer.adopt(self.world.pod(name, **more))

    def miss(self, name: str) -> None:
        """The watch shows that it is deleted."""
        self.informer._remove(self.world.pods.pop(name))


@asynccontextmanager
async def process(world: World) -> AsyncIterator[Process]:
    """One process; when the block ends it is killed."""
    async with asyncio.TaskGroup() as group:
        made = Process(world)
        running = group.create_task(made.keeper.run())
        await world.clock.settle()
        try:
            yield made
        finally:
            running.cancel()


async def test_a_ledger_is_stored_a_second_after_a_change_and_then_every_five_minutes() -> None:
    world = World()
    async with process(world) as made:
        await world.clock.advance(600)
        assert world.stored is None, "nothing was lent"
        made.see("one")
        await world.clock.advance(3)
        assert len(world.times) == 1
        await world.clock.advance(900)
        assert len(world.times) == 4
        made.miss("one")
        await world.clock.advance(900)
        assert len(world.times) == 5
    assert world.cpu == 903
    assert world.stored is not None and world.stored["metadata"]["labels"] == {keys.OWNER: OWNER.mark}


async def test_many_changes_are_one_write_every_half_minute() -> None:
    world = World()
    async with process(world) as made:
        for number in range(300):
            made.see(f"p{number}")
            await world.clock.advance(1)
        assert len(world.times) <= 3 + 300 / 30


async def test_a_process_that_starts_continues_where_the_one_before_has_stored() -> None:
    world = World()
    async with process(world) as made:
        made.see("stays")
        made.see("ends", cpu="2")
        await world.clock.advance(100)
    await world.clock.advance(500)
    world.pod("ends", cpu="2", bound=NOW, ended=NOW + timedelta(seconds=400))
    world.pod("short", cpu="4", bound=NOW + timedelta(seconds=200), ended=NOW + timedelta(seconds=250))
    for _ in range(3):
        async with process(world) as made:
            await world.clock.advance(60)
            summary = made.keeper.summary("all")
    assert summary is not None
    through = (parse_rfc3339(summary["through"]) - NOW).total_seconds()
    assert 775 <= through <= 780
    assert summary["lastDay"]["cpu"] == summary["total"]["cpu"] == f"{through + 2 * 400 + 4 * 50:g}"
    assert summary["namespaces"] == [{"name": "team-a", "lastDay": summary["lastDay"]}]


async def test_a_refused_write_continues_what_another_process_has_stored() -> None:
    world = World()
    async with process(world) as old, process(world) as new:
        for each in (old, new):
            each.informer.adopt(world.pod("one", bound=NOW))
        await world.clock.advance(1000)
        new.see("one", bound=NOW, ended=NOW + timedelta(seconds=1000))
        old.informer.adopt(world.pods["one"])
        await world.clock.advance(1000)
    assert world.cpu == 1000


async def test_a_ledger_without_our_mark_is_not_written() -> None:
    world = World()
    world.model.call("POST", PATH, {"metadata": {"name": keys.LEDGER}, "data": {"note": "of another client"}}, user="owner")
    async with process(world) as made:
        made.see("one")
        await world.clock.advance(601)
        assert made.keeper.lent()()[("vnode-demo-node-1", "team-a")]["cpu"].value() in range(595, 602)
    assert world.stored is not None and world.stored["data"] == {"note": "of another client"}


async def test_without_contact_nothing_is_stored_and_a_pod_counts_until_the_last_contact() -> None:
    world = World()
    async with process(world) as made:
        made.see("one")
        await world.clock.advance(100)
        made.scope.reach.record(world.clock.monotonic(), Outcome.SILENT, "the worker cluster does not respond")
        before = world.times
        await world.clock.advance(2000)
        assert world.times == before
        # The list after the outage lacks it.
        world.pods.clear()
        await _relist(made)
        made.scope.reach.record(world.clock.monotonic(), Outcome.SERVED)
        await world.clock.advance(60)
    assert 100 <= world.cpu <= 101


async def _relist(made: Process) -> None:
    """The informer lists a worker without pods."""
    made.informer._begin_list()
    await made.informer._replace("1000")


async def test_a_deleted_ledger_is_stored_again() -> None:
    world = World()
    async with process(world) as made:
        made.see("one")
        await world.clock.advance(10)
        world.model.delete(f"{PATH}/{keys.LEDGER}", user="owner")
        await world.clock.advance(330)
        assert world.stored is not None
        assert made.keeper.summary("all") is not None


class Narrowed:
    """Refuses a verb on ConfigMaps while it is set."""

    def __init__(self) -> None:
        self.verb = ""

    async def before(self, call: Call) -> None:
        if call.method == self.verb and "/configmaps" in call.path:
            raise Target("configmaps", "", "ConfigMap", keys.LEDGER).forbidden(f"cannot {call.method} it")

    async def after(self, call: Call) -> None: ...

    def event(self, watch: Watch, event: WatchLine) -> Iterable[WatchLine]:
        return [event]

    def read_version(self, call: Call) -> int | None:
        return None


async def test_a_missing_right_on_the_ledger_is_warned_of_once_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    world, rights = World(), Narrowed()
    world.model.faults = rights

    def warnings() -> list[str]:
        return [record.message for record in caplog.records if record.levelname == "WARNING"]

    rights.verb = "GET"
    async with process(world) as made:
        await world.clock.advance(300)
        assert warnings() == ["cannot read the ledger"]
        rights.verb = ""
        made.see("one")
        await world.clock.advance(120)
        assert world.stored is not None
        for times in (2, 3):
            rights.verb = "PATCH"
            made.see(f"more-{times}")
            await world.clock.advance(300)
            assert warnings() == ["cannot read the ledger", *["cannot store the ledger"] * (times - 1)]
            rights.verb = ""
            await world.clock.advance(120)
    assert len(world.times) > 2


async def test_no_amount_of_the_metric_decreases() -> None:
    world, place = World(), ("vnode-demo-node-1", "team-a")
    async with process(world) as made:
        made.see("one")
        await world.clock.advance(600)
        before = made.keeper.lent()()[place]
        made.see("one", bound=NOW, ended=NOW + timedelta(seconds=100))
        assert made.keeper.lent()()[place] == before
        await world.clock.advance(5)
    assert world.cpu == 100


async def test_a_node_that_vanished_counts_by_its_policy_until_the_last_contact() -> None:
    world = World()
    async with process(world) as made:
        made.see("one")
        await world.clock.advance(100)
        made.scope.reach.record(world.clock.monotonic(), Outcome.SILENT, "silent")
        await world.clock.advance(7200)
        nodes = made.scope.worker.nodes
        nodes._begin_list()
        await nodes._replace("1000")
        world.pods.clear()
        await _relist(made)
        made.scope.reach.record(world.clock.monotonic(), Outcome.SERVED)
        await world.clock.advance(60)
        account = made.keeper._account
        assert account is not None
        sums = {cell.policy: lent["cpu"].nanos / 1e9 for cell, lent in account.ledger.total.items()}
    assert abs(sums["all"] - 100) <= 1 and not sums.get("")


async def test_a_change_after_the_count_of_a_write_is_written_by_the_next() -> None:
    world = World()
    async with process(world) as made:
        made.see("one")
        await world.clock.advance(650)
        await made.keeper._count(at_once=True)
        made.see("two", bound=world.clock.now() - timedelta(seconds=5))
        await made.keeper._save()
        written = len(world.times)
        await world.clock.advance(100)
        assert len(world.times) > written
