"""Calls to a provider that fail: what is reported, and when they are repeated."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from tests.support.memory_api import Body, MemoryApi
from tests.unit.vkubelet.pods.running import pods_of
from vkubelet.api.objects import Pod, PodRef
from vkubelet.client.transport import Call
from vkubelet.errors import Conflict, NoSuchPod, TooManyRequests, Unavailable
from vkubelet.pods.lifecycle import TERMINATE_AGAIN
from vkubelet.provider import Host, PodReport
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordedEvents

PATH = "/api/v1/namespaces/d/pods/web"


class Failing:
    """A provider that runs pods and fails to delete them."""

    admits_pods = True

    def __init__(self, clock: ManualClock, error: Exception) -> None:
        self.clock, self.error = clock, error
        self.deletions: list[float] = []

    async def run(self, host: Host) -> None: ...

    async def sync_pod(self, pod: Pod) -> None: ...

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        self.deletions.append(self.clock.monotonic())
        raise self.error

    async def list_pods(self, node: str) -> list[PodReport]:
        return []


def body(**metadata: object) -> Body:
    meta = {"name": "web", "namespace": "d", "uid": "uid-web", "generation": 1, **metadata}
    return {"metadata": meta, "spec": {"nodeName": "n", "containers": [{"name": "c"}]}, "status": {"phase": "Pending"}}


class Refusing(MemoryApi):
    """An API server that refuses the first deletion with a conflict, and carries out the next."""

    refused = False

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.method == "DELETE" and not self.refused:
            self.refused = True
            raise Conflict(call.attempt, "Operation cannot be fulfilled: please try again")
        return await super().fetch(call, timeout)


async def deletions_of(
    error: Exception, *, seconds: float, server: type[MemoryApi] = MemoryApi
) -> tuple[list[float], RecordedEvents, MemoryApi]:
    """Seconds between the calls of `delete_pod` that all fail, the events, and the API server at the end."""
    api, clock, events = server(), ManualClock(), RecordedEvents()
    api.put(PATH, body())
    client, provider = api.client(), Failing(clock, error)
    pods = pods_of(provider, client, clock, recorder=events)
    pods.enable("n")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run()) for run in (pods.informer.run, pods.run)]
        await clock.advance(5.0)
        api.put(PATH, body(deletionTimestamp="2026-01-01T01:00:00Z", deletionGracePeriodSeconds=3000))
        await clock.advance(seconds)
        for task in tasks:
            task.cancel()
    return [later - earlier for earlier, later in pairwise(provider.deletions)], events, api


@pytest.mark.parametrize("error", [Unavailable("the backend restarts"), OSError("broken pipe")], ids=["unavailable", "unexpected"])
async def test_failed_deletion_is_repeated_within_seconds_however_long_it_fails(error: Exception) -> None:
    waits, _, _ = await deletions_of(error, seconds=300)
    assert waits[0] < 1.0
    assert all(wait <= TERMINATE_AGAIN + 0.1 for wait in waits)
    assert 25 <= len(waits) <= 40


@pytest.mark.parametrize(
    "error",
    [Unavailable("the backend restarts", retry_after=25.0), TooManyRequests("delete pod web", "too many", status=429, retry_after=25.0)],
    ids=["provider", "API server"],
)
async def test_failed_deletion_is_repeated_when_the_error_asks_for_it(error: Exception) -> None:
    waits, _, _ = await deletions_of(error, seconds=100)
    assert waits == pytest.approx([25.0] * 4, abs=0.1)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Unavailable("the backend restarts"), "the backend restarts"),
        (OSError("secret"), "the provider raised OSError; its log contains the cause"),
    ],
    ids=["unavailable", "unexpected"],
)
async def test_failed_deletion_is_shown_as_an_event_without_the_text_of_an_unknown_error(error: Exception, message: str) -> None:
    _, events, _ = await deletions_of(error, seconds=3)
    assert {(event.reason, event.message) for event in events.events} == {("FailedKillPod", message)}


async def test_removal_of_a_terminated_pod_is_repeated_after_a_conflict() -> None:
    _, _, api = await deletions_of(NoSuchPod("nothing is left"), seconds=30, server=Refusing)
    assert PATH not in api.objects


class Syncing(Failing):
    """A provider that notes which pods it is asked to run."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock, NoSuchPod("nothing is left"))
        self.synced: list[str] = []

    async def sync_pod(self, pod: Pod) -> None:
        self.synced.append(pod.metadata.uid)


async def test_pod_that_a_restored_hub_has_again_is_judged_by_the_provider_anew() -> None:
    """What the provider reported missing after the deletion is no proof about the pod that the backup brings back."""
    api, clock, events = MemoryApi(), ManualClock(), RecordedEvents()
    client, provider = api.client(), Syncing(clock)
    pods = pods_of(provider, client, clock, recorder=events)
    pods.enable("n")
    api.put(PATH, body())
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run()) for run in (pods.informer.run, pods.run)]
        await clock.advance(5.0)
        api.delete(PATH)
        await clock.advance(40.0)
        pods.pod_gone(PodRef("d", "web", "uid-web", "n"))
        api.put(PATH, body())
        await clock.advance(5.0)
        for task in tasks:
            task.cancel()
    assert provider.synced == ["uid-web", "uid-web"]
    assert not events.events
