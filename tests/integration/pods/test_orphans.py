"""Workloads that the cluster does not know, and pods that a polled backend does not show any more."""

from __future__ import annotations

import pytest

from tests.integration.pods.conftest import Scripted, World
from tests.integration.pods.test_lifecycle import events
from tests.support.program import eventually
from vkubelet.api.objects import PodRef
from vkubelet.clock import SystemClock
from vkubelet.errors import Unavailable
from vkubelet.pods.decisions import ORPHAN_GRACE
from vkubelet.provider import ContainerReport, PodReport, Running


@pytest.fixture(autouse=True)
def short_sweeps(world: World) -> None:
    """A minute becomes half a second."""
    world.list_interval = 0.5


def stranger(world: World, node: str, number: int) -> PodReport:
    ref = PodRef(world.namespace, f"stranger-{number}", f"uid-{number}", node)
    return PodReport(ref, [ContainerReport("main", Running())])


async def test_orphan_is_ended_after_two_sweeps_and_known_pods_are_not(world: World) -> None:
    provider = Scripted("sweep-1")
    orphan = stranger(world, "sweep-1", 1)
    async with world.side(provider):
        await world.create("web", "sweep-1")
        await world.running("web")
        provider.held[orphan.pod.uid] = orphan
        await eventually(lambda: provider.graces("stranger-1"), "orphan ended")
        # What is left of it when a busy machine tells it.
        assert ORPHAN_GRACE / 2 < provider.graces("stranger-1")[0] <= ORPHAN_GRACE
        await SystemClock().sleep(1.5)
        assert len(provider.graces("stranger-1")) == 1 and provider.verbs("web") == ["sync"]


async def test_workload_of_an_older_uid_of_a_living_name_is_an_orphan(world: World) -> None:
    provider = Scripted("sweep-2")
    async with world.side(provider):
        await world.create("web", "sweep-2")
        await world.running("web")
        old = PodReport(PodRef(world.namespace, "web", "older", "sweep-2"))
        provider.held["older"] = old
        await eventually(lambda: provider.graces("web"), "older one ended")
        assert "older" not in provider.held and len(provider.held) == 1


async def test_too_many_orphans_are_an_alarm_and_none_is_ended(world: World) -> None:
    provider = Scripted("sweep-3")
    for number in range(6):
        report = stranger(world, "sweep-3", number)
        provider.held[report.pod.uid] = report
    async with world.side(provider):
        found = world.witness.list_namespaced_event
        await eventually(lambda: found("default", field_selector="reason=TooManyOrphans,involvedObject.name=sweep-3").items, "event")
        await SystemClock().sleep(1.0)
        assert provider.calls == []
        provider.held.popitem()
        await eventually(lambda: len(provider.calls) == 5, "five are ended")


async def test_incomplete_list_makes_nothing_an_orphan(world: World) -> None:
    provider = Scripted("sweep-4")
    orphan = stranger(world, "sweep-4", 1)

    def fail() -> list[PodReport]:
        raise Unavailable("half of it is missing")

    provider.listed = fail
    async with world.side(provider) as pods:
        pods.retire("sweep-4")
        await SystemClock().sleep(2.0)
        assert provider.calls == [] and not pods.empty("sweep-4")
        provider.held[orphan.pod.uid] = orphan
        provider.listed = None
        await eventually(lambda: provider.graces("stranger-1"), "orphan ended")


async def test_retiring_node_is_empty_when_its_pods_and_its_orphans_are_gone(world: World) -> None:
    provider = Scripted("sweep-5")
    empty: list[str] = []
    async with world.side(provider) as pods:
        pods.on_empty(empty.append)
        await world.create("web", "sweep-5")
        await world.running("web")
        orphan = stranger(world, "sweep-5", 1)
        provider.held[orphan.pod.uid] = orphan
        pods.retire("sweep-5")
        assert not pods.empty("sweep-5")
        await world.delete("web")
        await world.absent("web")
        await eventually(lambda: empty, "empty")
        assert pods.empty("sweep-5") and provider.graces("stranger-1")
        pods.disable("sweep-5")
        assert pods.store.on_node("sweep-5") == []


async def test_held_node_waits_with_deletions_until_it_is_declared(world: World) -> None:
    provider = Scripted("elsewhere")
    async with world.side(provider) as pods:
        pods.hold("sweep-6")
        await world.create("web", "sweep-6")
        await eventually(lambda: pods.store.by_name(world.namespace, "web"), "seen")
        await world.delete("web", grace=30)
        await SystemClock().sleep(1.0)
        assert provider.calls == [] and await world.read("web") is not None
        pods.retire("sweep-6")
        await world.absent("web")


class Polled(Scripted):
    """A provider that says nothing by itself."""

    poll_interval = 0.3


async def test_polled_provider_gets_statuses_deletions_and_losses_from_its_lists(world: World) -> None:
    provider = Polled("sweep-7", reports=False, gone_after_delete=False)
    async with world.side(provider):
        created = await world.create("web", "sweep-7")
        await world.running("web")
        await world.delete("web", grace=60)
        await eventually(lambda: provider.graces("web"), "told")
        del provider.held[created.metadata.uid]
        await world.absent("web")
        lost = await world.create("lost", "sweep-7")
        await world.running("lost")
        del provider.held[lost.metadata.uid]
        pod = await world.until("lost", lambda pod: pod["status"]["phase"] == "Failed", "Failed")
        assert pod["status"]["reason"] == "ProviderLost"
        assert await eventually(lambda: events(world, "ProviderLost"), "event")
