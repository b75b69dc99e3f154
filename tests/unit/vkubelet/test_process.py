"""How a leader process starts, hands its Lease on, and stops, for any service."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest

from tests.support.memory_api import MemoryApi
from vkubelet import collector, process
from vkubelet.client.connection import Connection
from vkubelet.control.leader import DURATION, PERIOD
from vkubelet.control.recorder import ObjectReference
from vkubelet.errors import Fenced, LeadershipLost, SettingsError, VKubeletError
from vkubelet.process import TASKS_FINISH_WITHIN, LeaderProcess, run_process
from vkubelet.settings import FollowedSettings, HealthSettings, LeaderSettings, Settings
from vkubelet.testing.clock import ManualClock

LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/some-lease"
QUIET = HealthSettings(health_address="", metrics_address="")
ABOUT = ObjectReference(api_version="v1", kind="Node", name="n", uid="u")


class Service(LeaderProcess):
    """Records the order of its hooks, with what is true at that moment."""

    def __init__(self, api: MemoryApi, clock: ManualClock, *, elected: bool = True) -> None:
        settings = Settings(leader=LeaderSettings(enabled=elected), health=QUIET)
        super().__init__(
            connection=api.connection,
            settings=settings,
            field_manager="some",
            component="some",
            host="here",
            lease="some-lease",
            clock=clock,
        )
        self.api = api
        self.steps: list[str] = []
        self.flushed = asyncio.Event()
        self.flushed.set()
        self.tasks: set[str] = set()
        api.lend_to(self.client)

    def note(self, step: str) -> None:
        holder = (self.api.objects.get(LEASE) or {}).get("spec", {}).get("holderIdentity", "")
        self.steps.append(f"{step}, {'held' if holder == self.identity else 'free'}, {'writes' if self.may_write() else 'closed'}")

    def may_write(self) -> bool:
        try:
            self._gate.check()
        except Fenced:
            return False
        return True

    async def _forever(self, name: str) -> None:
        self.tasks.add(name)
        try:
            await asyncio.Event().wait()
        finally:
            self.tasks.remove(name)

    @asynccontextmanager
    async def _stream(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.note("streams")

    def watch(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self._forever("watch"))

    async def serve(self, group: asyncio.TaskGroup) -> None:
        self.note("serve")
        await self.streams.enter_async_context(self._stream())
        group.create_task(self._forever("serve"))

    def unready(self) -> str | None:
        return "not synced" if "watch" not in self.tasks else None

    async def finish(self) -> None:
        assert self.ready() == "stopping"
        self.note("finish")

    async def flush(self) -> None:
        await super().flush()
        self.note("flush")
        await self.flushed.wait()

    def stop_serving(self) -> None:
        self.note("stop serving")


@asynccontextmanager
async def running(service: LeaderProcess) -> AsyncIterator[asyncio.Task[None]]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(service.run())
        yield task
        service.stop()


async def test_the_lease_is_handed_on_after_the_last_write_and_before_streams_end() -> None:
    api, clock = MemoryApi(), ManualClock()
    service = Service(api, clock)
    assert service.ready() == "not synced"
    async with running(service) as task:
        await clock.advance(1.0)
        assert service.leads and service.ready() is None
        service.recorder.event(ABOUT, "Stopped", "the last Event")
        service.stop()
        await clock.settle()
        assert task.done()
    assert service.steps == [
        "serve, held, writes",
        "finish, held, writes",
        "flush, held, writes",
        "stop serving, held, closed",
        "streams, free, closed",
    ]
    assert [write.body["reason"] for write in api.writes if write.path.endswith("/events")] == ["Stopped"]
    assert not service.tasks


async def test_writes_that_stay_pending_delay_the_successor_for_two_seconds_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "FLUSH_WITHIN", 0.01)
    api, clock = MemoryApi(), ManualClock()
    service = Service(api, clock)
    service.flushed.clear()
    async with running(service) as task:
        await clock.advance(1.0)
        service.stop()
        await asyncio.wait([task], timeout=10)
        assert task.done()
    assert api.objects[LEASE]["spec"]["holderIdentity"] == ""
    assert [line for line in caplog.messages if "not written in time" in line]
    assert process.FLUSH_WITHIN < DURATION


async def test_the_lease_is_left_to_expire_while_a_write_is_unresolved(monkeypatch: pytest.MonkeyPatch) -> None:
    api, clock = MemoryApi(), ManualClock()

    async def unresolved(timeout: float) -> bool:
        return False

    monkeypatch.setattr(api, "writes_done", unresolved)
    service = Service(api, clock)
    async with running(service):
        await clock.advance(1.0)
    assert api.objects[LEASE]["spec"]["holderIdentity"] == service.identity


async def test_a_standby_watches_and_stops_at_once() -> None:
    api, clock = MemoryApi(), ManualClock()
    first, second = Service(api, clock), Service(api, clock)
    async with running(first):
        await clock.advance(1.0)
        async with running(second) as standby:
            await clock.advance(1.0)
            assert (second.leads, second.tasks, second.ready()) == (False, {"watch"}, None)
            with pytest.raises(Fenced):
                second._gate.check()
            second.stop()
            await clock.settle()
            assert standby.done() and second.steps == []
        assert api.objects[LEASE]["spec"]["holderIdentity"] == first.identity


async def test_a_standby_leads_soon_after_the_leader_stopped() -> None:
    api, clock = MemoryApi(), ManualClock()
    first, second = Service(api, clock), Service(api, clock)
    async with running(second):
        async with running(first):
            # Whichever came first leads; the other one is on standby.
            await clock.advance(1.0)
            leader, standby = (first, second) if first.leads else (second, first)
            leader.stop()
            await clock.advance(PERIOD * 1.2)
            assert standby.leads and api.objects[LEASE]["spec"]["holderIdentity"] == standby.identity


async def acquire_for_another(api: MemoryApi, clock: ManualClock) -> None:
    """Acquires the Lease a second later for another holder, which the process then observes."""
    await clock.advance(1.0)
    api.put(LEASE, {**api.objects[LEASE], "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15}})
    await clock.advance(2 * PERIOD)


async def test_another_leader_ends_the_process_without_an_ordered_stop() -> None:
    api, clock = MemoryApi(), ManualClock()
    service = Service(api, clock)

    async with asyncio.TaskGroup() as group:
        group.create_task(acquire_for_another(api, clock))
        with pytest.raises(LeadershipLost, match="was acquired by other"):
            await service.run()
    assert service.steps == ["serve, held, writes", "stop serving, free, closed", "streams, free, closed"]
    assert api.objects[LEASE]["spec"]["holderIdentity"] == "other"


async def test_a_process_that_is_stopped_while_it_starts_hands_its_lease_on() -> None:
    api, clock = MemoryApi(), ManualClock()

    class StopsEarly(Service):
        async def serve(self, group: asyncio.TaskGroup) -> None:
            self.stop()
            await self.clock.sleep(1.0)
            await super().serve(group)

    service = StopsEarly(api, clock)
    async with running(service) as task:
        await clock.advance(2.0)
        assert task.done()
    assert api.objects[LEASE]["spec"]["holderIdentity"] == ""


async def test_without_election_it_serves_at_once_and_stops_in_the_same_order() -> None:
    api, clock = MemoryApi(), ManualClock()
    service = Service(api, clock, elected=False)
    async with running(service):
        await clock.settle()
        assert service.leads
    assert [step.partition(",")[0] for step in service.steps] == ["serve", "finish", "flush", "stop serving", "streams"]
    assert not api.writes


@pytest.mark.parametrize("error", [SettingsError("server.port", "is in use"), VKubeletError("broken")])
async def test_an_error_of_a_service_is_the_error_of_the_process(error: VKubeletError) -> None:
    class Fails(Service):
        async def serve(self, group: asyncio.TaskGroup) -> None:
            raise error

    with pytest.raises(type(error), match=str(error)):
        await Fails(MemoryApi(), ManualClock()).run()


class Deaf(Service):
    """A service with a task that ends once it `answers`, not when it is cancelled."""

    def __init__(self, api: MemoryApi, clock: ManualClock) -> None:
        super().__init__(api, clock)
        self.answers = asyncio.Event()

    async def serve(self, group: asyncio.TaskGroup) -> None:
        await super().serve(group)
        group.create_task(self._wait(), name="deaf")

    async def _wait(self) -> None:
        while not self.answers.is_set():
            with suppress(asyncio.CancelledError):
                await self.answers.wait()


@pytest.mark.parametrize("seconds", [TASKS_FINISH_WITHIN - 1.0, TASKS_FINISH_WITHIN + 1.0])
async def test_a_stop_is_overdue_when_a_task_does_not_end(seconds: float) -> None:
    clock = ManualClock()
    service = Deaf(MemoryApi(), clock)
    async with running(service) as task:
        await clock.advance(1.0)
        service.stop()
        await clock.advance(seconds)
        assert not task.done() and not service.may_write()
        service.answers.set()
        await clock.advance(TASKS_FINISH_WITHIN)
        assert task.done()
    assert service.overdue.is_set() == (seconds > TASKS_FINISH_WITHIN)


async def test_an_end_without_a_stop_is_overdue_as_well() -> None:
    api, clock = MemoryApi(), ManualClock()
    service = Deaf(api, clock)

    async def end_late() -> None:
        await acquire_for_another(api, clock)
        await clock.advance(TASKS_FINISH_WITHIN)
        assert service.overdue.is_set()
        service.answers.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(end_late())
        with pytest.raises(LeadershipLost, match="was acquired by other"):
            await service.run()


def test_a_task_that_the_process_leaves_behind_does_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connection(**cluster: object) -> Connection:
        return MemoryApi().connection

    class LeavesOneBehind(Deaf):
        async def run(self) -> None:
            self.left = asyncio.create_task(self._wait(), name="left behind")
            await asyncio.sleep(0)

    monkeypatch.setattr(process, "load_connection", connection)
    monkeypatch.setattr(process, "TASKS_FINISH_WITHIN", 0.2)
    child = os.fork()
    if child == 0:
        settings = FollowedSettings(Settings(), read=lambda: (Settings(), None))
        try:
            run_process(lambda _: LeavesOneBehind(MemoryApi(), ManualClock()), settings)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


async def test_the_lag_of_the_event_loop_is_measured_in_every_process() -> None:
    clock = ManualClock()
    service = Service(MemoryApi(), clock)
    async with running(service):
        await clock.advance(5.0)
        clock.stand_still(3.0)
        await clock.advance(1.0)
    assert service.metrics.registry.get_sample_value("vkubelet_loop_lag_seconds_sum") == pytest.approx(3.0, abs=1.0)


@contextmanager
def restored() -> Iterator[None]:
    """Sets limits and the garbage collector back to what they were."""
    files, threshold = resource.getrlimit(resource.RLIMIT_NOFILE), gc.get_threshold()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        gc.set_threshold(*threshold)
        gc.unfreeze()


def test_every_process_raises_its_file_limit_and_tunes_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    async def connection(**cluster: object) -> Connection:
        return api.connection

    class Short(Service):
        async def run(self) -> None:
            seen.extend([resource.getrlimit(resource.RLIMIT_NOFILE)[0], gc.get_threshold()[2]])
            await self.clock.sleep(0)

    api = MemoryApi()
    monkeypatch.setattr(process, "load_connection", connection)
    with restored():
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 512), most))
        run_process(lambda connection: Short(api, ManualClock()), FollowedSettings(Settings(), read=lambda: (Settings(), None)))
        assert seen == [most, collector.NEVER]
