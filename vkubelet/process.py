"""The scaffold of a process that serves while it holds a leader Lease: client, election, health listeners, followed settings, ordered stop.

Invariant: every task has its place in one tree. A stop has one order: the process is not ready; `finish`; pending writes; no new writes,
those in flight are awaited; `stop_serving`; the Lease is released; open streams are closed.

If a task does not finish when it is cancelled, `run_process` exits.

See docs/decisions/0018-stop-order.md for the reasons of that order, and 0111-stops-have-a-time-limit.md.
"""

import asyncio
import importlib
import importlib.util
import logging
import os
import resource
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar, cast

from attrs import define, field

from vkubelet import logformat
from vkubelet.client.connection import Connection, load_connection
from vkubelet.client.rest import Client
from vkubelet.clock import Clock, SystemClock
from vkubelet.collector import Collector
from vkubelet.control.leader import LeaderElection, WriteGate
from vkubelet.control.recorder import Recorder
from vkubelet.errors import VKubeletError, first_error
from vkubelet.health import HealthServer
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics
from vkubelet.settings import CommonSettings, FollowedSettings

log = logging.getLogger(__name__)

S = TypeVar("S", bound=CommonSettings)

FLUSH_WITHIN = 2.0
"""Seconds that pending statuses and events get at a stop, before writes stop."""
TASKS_FINISH_WITHIN = 10.0
"""Seconds that cancelled tasks get. A file operation in a thread cannot be cancelled, and lasts as long as its disk does not respond: the
process exits without it, as no other one could lead while its Lease is renewed."""


class _Stopped(Exception):
    """Raised inside a task group to stop it when the process stops."""


def _unchanged(uid: str, text: str) -> str:
    return text


@define(kw_only=True, eq=False, slots=False)
class LeaderProcess:
    """Base of a process of which several replicas may run: one leads and serves, the others are on standby.

    Without `settings.leader.enabled` it leads at once. `component` and `host` are the source of its Events.
    """

    connection: Connection = field(repr=False)
    settings: CommonSettings
    field_manager: str
    component: str
    host: str
    lease: str
    """Name of the leader Lease."""
    clock: Clock = field(factory=SystemClock)
    redact: Callable[[str, str], str] = _unchanged
    """Removes from the text of an Event what must not be published about the object with a UID."""

    metrics: Metrics = field(init=False, factory=Metrics)
    identity: str = field(init=False)
    client: Client = field(init=False)
    recorder: Recorder = field(init=False)
    streams: AsyncExitStack = field(init=False, factory=AsyncExitStack)
    """Closed after the Lease was released: open streams may take longer than the successor should wait."""
    overdue: asyncio.Event = field(init=False, factory=asyncio.Event)
    """Set when tasks of the leader have not finished in time: `run` may never return."""
    _gate: WriteGate = field(init=False, factory=WriteGate)
    _stop_requested: asyncio.Event = field(init=False, factory=asyncio.Event)
    _leads: bool = field(init=False, default=False)
    _cancelled: asyncio.Event = field(init=False, factory=asyncio.Event)
    """Set while tasks of the leader are cancelled and have not finished."""

    def __attrs_post_init__(self) -> None:
        self.identity = self.new_identity()
        self.client = Client(self.connection, field_manager=self.field_manager, clock=self.clock, fence=self._gate, metrics=self.metrics)
        self.recorder = Recorder(self.client, self.component, host=self.host, clock=self.clock, redact=self.redact)

    # --- Hooks ---------------------------------------------------------------------------------------------------------------------

    def watch(self, group: asyncio.TaskGroup) -> None:
        """Starts the tasks of every replica, such as informers, so that a standby has filled its caches before it leads."""

    async def serve(self, group: asyncio.TaskGroup) -> None:
        """Starts the tasks of the leader; returns when they are started. Every subclass has one."""
        raise NotImplementedError

    def new_identity(self) -> str:
        """Returns the identity of this process in its Leases."""
        return f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"

    def new_election(self, client: Client) -> LeaderElection:
        """Returns the election by the leader Lease; `client` has no fence."""
        namespace = self.settings.leader.namespace
        return LeaderElection(client, name=self.lease, namespace=namespace, identity=self.identity, clock=self.clock)

    def unready(self) -> str | None:
        """Returns why a running process is not ready, or None."""
        return None

    async def finish(self) -> None:
        """Stops what causes writes, at the start of an ordered stop."""

    async def flush(self) -> None:
        """Returns when everything pending is written; it gets FLUSH_WITHIN seconds."""
        await self.recorder.written()

    def stop_serving(self) -> None:
        """Refuses new requests from now on; those in `streams` continue."""

    # --- Lifecycle -----------------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Starts to stop; `run` returns when everything has stopped."""
        self._stop_requested.set()

    @property
    def leads(self) -> bool:
        """Whether this process was elected."""
        return self._leads

    def ready(self) -> str | None:
        """Returns None, or why the process is not ready."""
        return "stopping" if self._stop_requested.is_set() else self.unready()

    async def run(self) -> None:
        """Runs until `stop`. Raises SettingsError, LeadershipLost."""
        health = HealthServer(
            self.metrics,
            clock=self.clock,
            checks={"watches": self.ready},
            health_address=self.settings.health.health_address,
            metrics_address=self.settings.health.metrics_address,
        )
        try:
            async with self.client, health, asyncio.TaskGroup() as outer_group, asyncio.TaskGroup() as group, self.streams:
                outer_group.create_task(self._limit_finish(), name="time limit of tasks")
                self.watch(group)
                group.create_task(self._measure_loop_lag(), name="loop lag")
                group.create_task(self._stop_on_standby(), name="stop on standby")
                await self._lead()
                raise _Stopped
        except* _Stopped:
            log.info("stopped")
        except* VKubeletError as problems:
            raise first_error(problems) from problems

    async def _lead(self) -> None:
        leader = self.settings.leader
        if not leader.enabled:
            await self._serve()
            return
        election = self._gate.election = self.new_election(self.client.fenced(None))
        await election.lead(self._serve)

    async def _serve(self) -> None:
        """Runs the leader; when it returns, nothing is written or accepted any more, and open streams still flow."""
        # From here on a stop has an order, after which the Lease is released.
        self._leads = True
        try:
            async with asyncio.TaskGroup() as group:
                await self.serve(group)
                group.create_task(self.recorder.run(), name="events")
                group.create_task(self._stop_in_order(), name="stop")
                group.create_task(self._note_cancellation(), name="cancellation")
        except* _Stopped:
            log.debug("the leader stopped")
        finally:
            self._cancelled.clear()
            self.stop_serving()

    async def _note_cancellation(self) -> None:
        """Notes when the tasks of the leader are cancelled, whatever the cause."""
        try:
            await asyncio.Event().wait()
        finally:
            self._cancelled.set()

    async def _limit_finish(self) -> None:
        await self._cancelled.wait()
        await self.clock.sleep(TASKS_FINISH_WITHIN)
        if self._cancelled.is_set():
            self.overdue.set()

    async def _stop_on_standby(self) -> None:
        await self._stop_requested.wait()
        if not self._leads:
            raise _Stopped

    async def _stop_in_order(self) -> None:
        await self._stop_requested.wait()
        log.info("stopping")
        await self.finish()
        try:
            async with asyncio.timeout(FLUSH_WITHIN):
                await self.flush()
        except TimeoutError:
            log.warning("the last statuses or events were not written in time; the next process writes the statuses again")
        await self._gate.close(self.client)
        raise _Stopped

    async def _measure_loop_lag(self) -> None:
        while True:
            before = self.clock.monotonic()
            await self.clock.sleep(1.0)
            self.metrics.loop_lag_seconds.observe(max(0.0, self.clock.monotonic() - before - 1.0))


# --- The operating system's process ------------------------------------------------------------------------------------------------------


class Runs(Protocol):
    """What `run_process` runs; `overdue` is set when `run` may never return."""

    clock: Clock
    overdue: asyncio.Event

    def stop(self) -> None: ...

    async def run(self) -> None: ...


def run_process(make: Callable[[Connection], Runs], settings: FollowedSettings[S]) -> None:
    """Runs a process until SIGTERM or SIGINT, polling its settings for changes meanwhile. Raises VKubeletError.

    Exits the operating system's process, with the code 1, when tasks do not finish.
    """
    logformat.configure(settings.chosen.log.level)
    _raise_file_limit()
    collector = Collector()
    collector.start()
    with _limited_runner() as runner:
        runner.run(_run(make, settings, collector))


@contextmanager
def _limited_runner() -> Iterator[asyncio.Runner]:
    """Runs a loop; its close waits no longer than TASKS_FINISH_WITHIN for what still runs, such as a stream of a provider that hangs."""
    runner = asyncio.Runner(loop_factory=_loop_factory())
    exits = threading.Timer(TASKS_FINISH_WITHIN, _exit, [runner.get_loop()])
    exits.daemon = True
    try:
        yield runner
    finally:
        exits.start()
        runner.close()
        exits.cancel()


async def _run(make: Callable[[Connection], Runs], settings: FollowedSettings[S], collector: Collector) -> None:
    cluster = settings.chosen.cluster
    kubeconfig = Path(cluster.kubeconfig) if cluster.kubeconfig else None
    process = make(await load_connection(kubeconfig=kubeconfig, context=cluster.context))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop)
    log.info("starting")
    try:
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(settings.follow(process.clock), name="settings"),
                group.create_task(collector.run(process.clock), name="garbage collector"),
                group.create_task(_exit_when(process.overdue), name="exit"),
            ]
            await process.run()
            for task in beside:
                task.cancel()
    except* VKubeletError as problems:
        raise first_error(problems) from problems


async def _exit_when(overdue: asyncio.Event) -> None:
    await overdue.wait()
    _exit(asyncio.get_running_loop())


def _exit(loop: asyncio.AbstractEventLoop) -> None:
    """Exits at once; tasks and threads that do not respond are killed with the process."""
    names = sorted(task.get_name() for task in asyncio.all_tasks(loop) if task.cancelling() > 0)
    with bind(tasks=", ".join(names)):
        log.error("tasks did not finish within %.0f s; the process exits without them, and its Leases expire", TASKS_FINISH_WITHIN)
    logging.shutdown()
    os._exit(1)


def _raise_file_limit() -> None:
    """Raises the limit of open files to the maximum: every node has a port, and every watch and stream a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ValueError, OSError):
        # Some systems report a higher limit than they allow; the current one stays.
        log.debug("cannot raise the limit of open files (RLIMIT_NOFILE) to %s", most)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns uvloop's loop when it is installed: it halves the CPU per event and changes nothing else."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    return cast(Callable[[], asyncio.AbstractEventLoop], importlib.import_module("uvloop").new_event_loop)
