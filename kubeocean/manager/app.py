"""The process `kubeocean manager`: election, listeners, and the reconciler of all bindings.

Invariant: only the holder of the Lease writes; at a stop, writes in flight are awaited before the Lease is released.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import uuid
from collections.abc import Callable, Set
from functools import partial
from pathlib import Path

from kubeocean.manager.bindings import ClusterBindingReconciler, ManagerParts
from kubeocean.manager.settings import LEASE, ProcessSettings
from kubeocean.manager.workloads import MANAGER
from kubeocean.metrics import ManagerMetrics
from vkubelet import logformat, settings
from vkubelet.client.connection import Connection, load_connection
from vkubelet.client.rest import Client
from vkubelet.clock import Clock, SystemClock
from vkubelet.control.leader import LeaderElection, WriteGate
from vkubelet.control.recorder import Recorder
from vkubelet.errors import VKubeletError, first_error
from vkubelet.health import HealthServer
from vkubelet.metrics import Metrics

log = logging.getLogger(__name__)

_LAST_WORDS = 2.0


class _Stopped(Exception):
    """Stops a task group from inside when the process stops."""


class ManagerProcess:
    """The manager; `connection` is the one to the computing cluster."""

    def __init__(self, settings: ProcessSettings, *, connection: Connection, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.metrics = Metrics()
        self._gate = WriteGate()
        self.client = Client(connection, field_manager=MANAGER, clock=self.clock, fence=self._gate, metrics=self.metrics)
        self._identity = f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self._recorder = Recorder(self.client, MANAGER, host=socket.gethostname(), clock=self.clock)
        self.bindings = ClusterBindingReconciler(
            ManagerParts(
                client=self.client,
                recorder=self._recorder,
                clock=self.clock,
                settings=settings.manager,
                metrics=self.metrics,
                series=ManagerMetrics(self.metrics.registry),
            )
        )
        self._stop = asyncio.Event()
        self._leads = False

    def stop(self) -> None:
        """Starts to stop; `run` returns when all tasks have stopped."""
        self._stop.set()

    def ready(self) -> str | None:
        """Returns None, or why the process is not ready. A standby is ready."""
        if self._stop.is_set():
            return "stopping"
        return "watches are not synced" if self._leads and not self.bindings.synced else None

    async def run(self) -> None:
        """Runs until `stop`. Raises SettingsError, LeadershipLost."""
        health = HealthServer(
            self.metrics,
            checks={"watches": self.ready},
            health_address=self.settings.health.health_address,
            metrics_address=self.settings.health.metrics_address,
        )
        try:
            async with self.client, health, asyncio.TaskGroup() as group:
                group.create_task(self._stop_if_following(), name="stop a follower")
                await self._lead()
                raise _Stopped
        except* _Stopped:
            log.info("stopped")
        except* VKubeletError as problems:
            raise first_error(problems) from problems

    async def _lead(self) -> None:
        settings = self.settings.leader
        if not settings.enabled:
            await self._serve()
            return
        name, namespace = settings.name or LEASE, settings.namespace
        client = self.client.fenced(None)
        election = LeaderElection(client, name=name, namespace=namespace, identity=self._identity, clock=self.clock)
        self._gate.election = election
        await election.lead(self._serve)

    async def _serve(self) -> None:
        """Runs the leader until it stops."""
        self._leads = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._recorder.run(), name="events")
                group.create_task(self.bindings.run(), name="bindings")
                group.create_task(self._stop_in_order(), name="stop")
        except* _Stopped:
            log.debug("leader ended")

    async def _stop_if_following(self) -> None:
        await self._stop.wait()
        if not self._leads:
            raise _Stopped

    async def _stop_in_order(self) -> None:
        await self._stop.wait()
        log.info("stopping")
        try:
            async with asyncio.timeout(_LAST_WORDS):
                await self._recorder.written()
        except TimeoutError:
            log.debug("events are left unwritten")
        await self._gate.close(self.client)
        raise _Stopped


def run_manager(read: Callable[[], ProcessSettings]) -> None:
    """Runs in this process until SIGTERM or SIGINT, polling `read` for changed settings. Raises VKubeletError."""
    chosen = read()
    logformat.configure(chosen.log.level)
    with asyncio.Runner() as runner:
        runner.run(_run(chosen, read))


async def _run(chosen: ProcessSettings, read: Callable[[], ProcessSettings]) -> None:
    kubeconfig = Path(chosen.cluster.kubeconfig) if chosen.cluster.kubeconfig else None
    connection = await load_connection(kubeconfig=kubeconfig, context=chosen.cluster.context)
    process = ManagerProcess(chosen, connection=connection)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop)
    log.info("starting")
    try:
        async with asyncio.TaskGroup() as group:
            watched = settings.follow(lambda: settings.effective(read()), take=partial(_take, read), clock=process.clock)
            following = group.create_task(watched, name="settings")
            await process.run()
            following.cancel()
    except* VKubeletError as problems:
        raise first_error(problems) from problems


def _take(read: Callable[[], ProcessSettings], changed: Set[str]) -> Set[str]:
    """Applies a changed log level at once; the other settings take effect at the next start."""
    level = changed & {"log.level"}
    if level:
        logformat.change_level(read().log.level)
    return level
