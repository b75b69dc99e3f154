"""How often a provider is asked for its pods while it fails, and afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from typing import cast

import pytest

from tests.support.memory_api import MemoryApi
from tests.unit.vkubelet.pods.running import pods_of
from vkubelet.api.objects import PodRef
from vkubelet.client.rest import Client
from vkubelet.errors import NoSuchPod
from vkubelet.pods.dispatch import Dispatch, DispatchMode
from vkubelet.pods.listing import Lister, Listing, PodSettings, Polling
from vkubelet.provider import PodReport, Provider
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.conformance.faults import Fault, Faults, faulty
from vkubelet_providers.minimal import Minimal


class Polled(Minimal):
    """Notes when it answered."""

    def __init__(self, clock: ManualClock, poll_interval: float) -> None:
        super().__init__()
        self.clock, self.poll_interval = clock, poll_interval
        self.listed: list[float] = []

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        self.listed.append(self.clock.monotonic())
        return await super().list_pods(node)


@pytest.mark.parametrize("interval", [1.0, 15.0, 300.0])
@pytest.mark.parametrize("away", [3.0, 600.0])
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.HANGS], ids=lambda fault: fault.name.lower())
async def test_polling_is_back_at_its_interval_within_one_interval(fault: Fault, away: float, interval: float) -> None:
    clock, faults = ManualClock(), Faults()
    provider = Polled(clock, interval)
    dispatch = Dispatch(cast(Client, None), clock=clock, metrics=None)
    dispatch.informer.ever_synced = True
    lister = Lister(
        cast(Provider, faulty(provider, faults)), dispatch, clock=clock, metrics=None, settings=PodSettings(list_interval=600.0)
    )
    dispatch.set_mode("node", DispatchMode.SYNC)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lister.controller.run())
        lister.controller.add("node")
        await clock.advance(interval)
        faults.plan("list_pods", fault=fault)
        await clock.advance(away)
        faults.clear()
        back = clock.monotonic()
        await clock.advance(10 * interval)
        running.cancel()
    after = [at for at in provider.listed if at >= back]
    assert [at - back <= interval for at in after[:1]] == [True]
    assert {round(later - earlier, 6) for earlier, later in pairwise(after)} == {interval}


class Backend(Minimal):
    """One that notes what it has to terminate, and has nothing of it afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[str] = []

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        self.deleted.append(pod.uid)
        raise NoSuchPod(pod.name)


@pytest.mark.parametrize("exists_again", [False, True])
async def test_workload_that_returns_after_its_pod_was_deleted_is_terminated(exists_again: bool) -> None:
    """As many as there are: the deletion of each was observed, and the API is read for each. What was never seen waits for two listings."""
    api, clock, provider = MemoryApi(), ManualClock(), Backend()
    client = api.client()
    pods = pods_of(provider, client, clock)
    refs = [PodRef("d", f"p{number}", f"uid-{number}", "n") for number in range(7)]
    paths = [f"/api/v1/namespaces/d/pods/{ref.name}" for ref in refs]
    bodies = [{"metadata": {"name": r.name, "namespace": "d", "uid": r.uid}, "spec": {"nodeName": "n", "containers": []}} for r in refs]
    for path, body in zip(paths, bodies, strict=True):
        api.put(path, body)
    pods.enable("n")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run()) for run in (pods.informer.run, pods.run)]
        await clock.advance(5.0)
        for path in paths:
            api.delete(path)
        await clock.advance(40.0)
        assert sorted(set(provider.deleted)) == [ref.uid for ref in refs]
        provider.deleted.clear()
        if exists_again:
            # The watch has not delivered this yet.
            api.objects |= dict(zip(paths, bodies, strict=True))
        for ref in [*refs, PodRef("d", "never-seen", "uid-never-seen", "n")]:
            pods.resync_pod(ref)
        await clock.settle()
        for ref in refs:
            # As a provider does that reports each change of it.
            pods.resync_pod(ref)
        await clock.advance(1.0)
        for task in tasks:
            task.cancel()
    assert sorted(set(provider.deleted)) == ([] if exists_again else [ref.uid for ref in refs])


def test_report_of_one_pod_that_fails_affects_no_other() -> None:
    client, clock = MemoryApi().client(), ManualClock()
    pods = pods_of(Polled(clock, 1.0), client, clock)
    lifecycle = pods._lifecycle
    odd, plain, *missing = (PodRef("d", name, f"uid-{name}", "n") for name in ("odd", "plain", "odd-missing", "missing"))
    for ref in missing:
        lifecycle.terminate_orphan(ref)
        record = lifecycle.record(ref.uid)
        assert record is not None
        record.accepted_at, record.sent_deadline = 0.0, 30.0
    handled: list[str] = []

    def handle(ref: PodRef) -> None:
        if ref.name.startswith("odd"):
            raise TypeError(ref.name)
        handled.append(ref.name)

    polling = Polling(lifecycle, report=lambda report: handle(report.pod), on_missing=handle)
    polling.observe(Listing("n", [PodReport(odd), PodReport(plain)], 1.0, 1.0))
    assert handled == ["plain", "missing"]
