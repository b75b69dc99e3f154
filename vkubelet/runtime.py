"""One process that is the kubelet of any number of virtual nodes: builds the parts, owns the task tree, starts and stops it in order.

Invariant: every task has its place in one tree; a stop leaves Nodes, Leases and pods unchanged, so that a restart has no effect.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

from vkubelet.api.objects import Key, KubeObject, Node, Pod, PodRef
from vkubelet.api.registration import INSTANCE
from vkubelet.api.shapes import JsonView
from vkubelet.client.connection import Connection
from vkubelet.client.resources import NODES, Resource
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock, SystemClock
from vkubelet.containers.adapter import adapt
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.leader import LeaderElection, WriteGate
from vkubelet.control.recorder import Recorder
from vkubelet.control.workqueue import Priority
from vkubelet.errors import VKubeletError, first_error
from vkubelet.health import HealthServer
from vkubelet.metrics import Metrics
from vkubelet.node.declared import HEALTHY, DeclaredNodes, Health, Standing
from vkubelet.node.lease import DURATION, LeaseKeeper
from vkubelet.node.leaving import Leaving, LeavingParts
from vkubelet.node.ping import Pinger
from vkubelet.node.registrar import Registrar, RegistrarParts
from vkubelet.node.render import REPORT_EVERY, Endpoint
from vkubelet.pods import PodParts, Pods
from vkubelet.provider import ContainerProvider, NodeDescription, PodReport, PodStore, Provider, ResolvedPod, SupportsPing
from vkubelet.server import KubeletServer, ServerParts
from vkubelet.server.configuration import duration
from vkubelet.settings import Settings, default_taints, effective

log = logging.getLogger(__name__)

T = TypeVar("T", bound=KubeObject)

_PROVIDER_ENDS = 5.0
"""Seconds that the provider gets at a stop before it is cancelled."""

_LAST_WORDS = 2.0
"""Seconds that statuses and events get at a stop, before writes stop."""

_LONG_LIFE = 60.0
"""Seconds of running after which earlier failures of a provider do not count any more."""


class _Stopped(Exception):
    """Raised inside a task group to stop it when the process stops."""


class RuntimeHost:
    """Runtime as the provider sees it; see `vkubelet.provider.Host`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def client(self) -> Client:
        return self._runtime.client

    @property
    def pods(self) -> PodStore:
        return self._runtime.pods.store

    @property
    def events(self) -> Recorder:
        return self._runtime.recorder

    @property
    def clock(self) -> Clock:
        return self._runtime.clock

    @property
    def metrics(self) -> Metrics:
        return self._runtime.metrics

    def node_client(self, node: str) -> Client:
        return self._runtime.node_client(node)

    def informer(self, resource: Resource[T], where: Selection = Selection()) -> Informer[T]:
        return self._runtime.shared_informer(resource, where)

    def set_node(self, node: NodeDescription) -> None:
        self._runtime.provider_lives()
        self._runtime.nodes.declare(node)

    def nodes_complete(self) -> None:
        self._runtime.provider_lives()
        self._runtime.nodes.finish_declaring()

    def remove_node(self, name: str) -> None:
        self._runtime.nodes.retire(name)

    def report(self, report: PodReport) -> None:
        self._runtime.pods.report(report)

    def set_pod_status(self, pod: PodRef, status: JsonView, *, annotations: Mapping[str, str] | None = None) -> None:
        self._runtime.pods.set_pod_status(pod, status, annotations=annotations)

    def pod_gone(self, pod: PodRef) -> None:
        self._runtime.pods.pod_gone(pod)

    def resync(self, pod: PodRef) -> None:
        self._runtime.pods.resync_pod(pod)

    async def resolve(
        self, pod: Pod, *, files: Path | None = None, pod_ips: Sequence[str] = (), containers: Collection[str] | None = None
    ) -> ResolvedPod:
        return await self._runtime.pods.resolve(pod, files=files, pod_ips=pod_ips, containers=containers)

    async def until_stopped(self) -> None:
        await self._runtime.stopping.wait()


class Runtime:
    """Runtime of one provider of either type. `connection` leads to the cluster in which its nodes appear."""

    def __init__(
        self, provider: Provider | ContainerProvider, settings: Settings, *, connection: Connection, clock: Clock | None = None
    ) -> None:
        self.provider: Provider = adapt(provider)
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.metrics = Metrics()
        self.stopping = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self.identity = f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self._gate = WriteGate()
        manager = settings.field_manager or f"vkubelet-{settings.instance}"
        self.client = Client(connection, field_manager=manager, clock=self.clock, fence=self._gate, metrics=self.metrics)
        self.recorder = Recorder(
            self.client,
            "vkubelet",
            host=settings.instance,
            clock=self.clock,
            redact=lambda uid, text: self.pods.redacted(uid, text),
        )
        self.nodes = DeclaredNodes(self.clock)
        ours = Selection(labels=settings.node.selector or f"{INSTANCE}={settings.instance}")
        self._live = Informer(self.client, NODES, where=ours, clock=self.clock, metrics=self.metrics)
        self._leases = LeaseKeeper(
            self.node_client, identity=self.identity, clock=self.clock, settings=settings.lease, metrics=self.metrics
        )
        self.pods = Pods(self._pod_parts())
        self._server = KubeletServer(self._server_parts())
        self._registrar = Registrar(self._registrar_parts())
        self._register = Controller("nodes", self._registrar.reconcile, workers=16, clock=self.clock, metrics=self.metrics)
        self._provider_runs = Controller("provider", self._run_provider, workers=1, clock=self.clock, metrics=self.metrics)
        self._informers: dict[tuple[str, Selection], Informer[KubeObject]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._leads = False
        self._streams = AsyncExitStack()
        """Closed after the Lease was released: open streams may take longer than the successor should wait."""
        self._provider_ended = asyncio.Event()
        self._provider_ended.set()
        self._provider_lives = 0
        self._connect_parts()

    def node_client(self, node: str) -> Client:
        """Returns the client for writes on behalf of one node: the same for all, as long as nodes have no separate identities."""
        return self.client

    def _pod_parts(self) -> PodParts:
        return PodParts(
            provider=self.provider,
            client=self.client,
            node_client=self.node_client,
            recorder=self.recorder,
            clock=self.clock,
            metrics=self.metrics,
            settings=self.settings.pods,
            node=lambda name: self._live.store.get(Key("", name)),
            node_ips=self._node_ips,
        )

    def _server_parts(self) -> ServerParts:
        return ServerParts(
            provider=self.provider,
            pods=self.pods.store,
            client=self.client,
            clock=self.clock,
            metrics=self.metrics,
            settings=self.settings.server,
            instance=self.settings.instance,
            health=lambda: self.nodes.health("").reason or None,
            due=self.pods.due,
            configuration={"nodeLeaseDurationSeconds": DURATION, "nodeStatusReportFrequency": duration(REPORT_EVERY.total_seconds())},
            flags=effective(self.settings),
        )

    def _registrar_parts(self) -> RegistrarParts:
        return RegistrarParts(
            client=self.client,
            node_client=self.node_client,
            nodes=self.nodes,
            live=self._live.store,
            wrote=self._live.adopt,
            leases=self._leases,
            dispatch=self.pods,
            recorder=self.recorder,
            clock=self.clock,
            open_endpoint=self._open_endpoint,
            close_endpoint=self._server.close,
            default_taints=default_taints(self.settings.node.taint),
            instance=self.settings.instance,
            restore=self.settings.node.restore,
            adopt_foreign=self.settings.node.adopt_foreign,
        )

    def _leaving_parts(self) -> LeavingParts:
        return LeavingParts(
            nodes=self.nodes,
            drain=self.pods.drain,
            drained=self.pods.drained,
            is_closed=self._registrar.is_closed,
            remove=self._registrar.remove,
            clock=self.clock,
        )

    def _node_ips(self, node: str) -> Sequence[str]:
        return self._registrar.addresses(node)

    async def _open_endpoint(self, node: str, port: int | None) -> Endpoint:
        known = self.nodes.get(node)
        published = known.description.addresses if known is not None and known.description is not None else ()
        alone = self.nodes.names() == [node] if self.nodes.complete else None
        opened = await self._server.open(node, preferred_port=port, alone=alone, addresses=[each["address"] for each in published])
        return Endpoint(opened.address, opened.port, opened.also)

    def _connect_parts(self) -> None:
        self._live.on_change(self._node_seen)
        self.nodes.on_change(self._node_declared)
        self.pods.on_empty(self._register.add)
        for standing in Standing:
            self.metrics.nodes.labels(state=standing.value).set_function(partial(self.nodes.count, standing))

    def _node_seen(self, change: Change[Node]) -> None:
        if change.new is not None:
            self.nodes.found(change.key.name)
        self._register.add(change.key.name, priority=Priority.LOW if change.initial else Priority.HIGH)

    def _node_declared(self, name: str) -> None:
        self._register.add(name)
        if self._server.sole_node not in (None, name):
            # It is no longer the only node and gets a separate port.
            self._register.add(str(self._server.sole_node))

    def provider_lives(self) -> None:
        """Records that a provider that declares nodes has recovered from an earlier failure."""
        self.nodes.set_provider_health(HEALTHY)

    def shared_informer(self, resource: Resource[T], where: Selection) -> Informer[T]:
        """Returns one informer per resource and selection for all callers."""
        key = (resource.path(where.namespace), where)
        found = self._informers.get(key)
        if found is None:
            informer = Informer(self.client, resource, where=where, clock=self.clock, metrics=self.metrics)
            self._informers[key] = informer  # type: ignore[assignment]
            if self._group is not None:
                self._group.create_task(informer.run(), name=f"informer {resource.plural}")
            return informer
        return found  # type: ignore[return-value]

    def stop(self) -> None:
        """Starts to stop; `run` returns when everything has stopped."""
        self._stop_asked.set()

    def ready(self) -> str | None:
        """Returns None, or why the process is not ready."""
        if self._stop_asked.is_set():
            return "stopping"
        if not (self._live.synced and self.pods.informer.synced):
            return "watches are not synced"
        return self._server.problem if self._group is not None else None

    async def run(self) -> None:
        """Runs until `stop`. Raises SettingsError, LeadershipLost."""
        checks: Mapping[str, Callable[[], str | None]] = {"watches": self.ready}
        health = HealthServer(
            self.metrics,
            checks=checks,
            health_address=self.settings.health.health_address,
            metrics_address=self.settings.health.metrics_address,
        )
        try:
            async with self.client, health, asyncio.TaskGroup() as group, self._streams:
                group.create_task(self._live.run(), name="own nodes")
                group.create_task(self.pods.informer.run(), name="pods")
                group.create_task(self._measure_loop_lag(), name="loop lag")
                group.create_task(self._stop_if_following(), name="stop a follower")
                await self._lead(self._serve)
                raise _Stopped
        except* _Stopped:
            log.info("stopped")
        except* VKubeletError as problems:
            raise first_error(problems) from problems

    async def _lead(self, body: Callable[[], Awaitable[None]]) -> None:
        settings = self.settings.leader
        if not settings.enabled:
            await body()
            return
        election = LeaderElection(
            self.client.fenced(None),
            name=settings.name or f"vkubelet-{self.settings.instance}",
            namespace=settings.namespace,
            identity=self.identity,
            clock=self.clock,
        )
        self._gate.election = election
        await election.lead(body)

    async def _stop_if_following(self) -> None:
        await self._stop_asked.wait()
        if not self._leads:
            raise _Stopped

    async def _serve(self) -> None:
        """Runs while this process is the leader; when it returns, nothing is written or accepted any more, and open streams still flow."""
        # From here on a stop has an order, after which the Lease is released.
        self._leads = True
        await self._streams.enter_async_context(self._server)
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for name, part in self._parts_of_a_leader().items():
                    group.create_task(part(), name=name)
                for informer in list(self._informers.values()):
                    group.create_task(informer.run(), name="informer")
                self._provider_runs.add("provider")
                group.create_task(self._stop_in_order(), name="stop")
        except* _Stopped:
            log.debug("leader ended")
        finally:
            self._server.stop_listening()

    def _parts_of_a_leader(self) -> Mapping[str, Callable[[], Coroutine[None, None, None]]]:
        parts: dict[str, Callable[[], Coroutine[None, None, None]]] = {
            "events": self.recorder.run,
            "leases": self._leases.run,
            "kubelet server": self._server.run,
            "pods": self.pods.run,
            "register nodes": self._register_nodes,
            "provider": self._provider_runs.run,
        }
        if isinstance(self.provider, SupportsPing):
            pinger = Pinger(self.provider, self.nodes, clock=self.clock, settings=self.settings.ping)
            parts["ping"] = pinger.run
        return parts

    async def _register_nodes(self) -> None:
        """Registers nodes once the Nodes of earlier processes, which contain their ports, and the pods are listed: a Ready node manages
        its pods."""
        await self._live.wait_synced()
        await self.pods.informer.wait_synced()
        await self._register.run()

    async def _run_provider(self, key: str) -> float | None:
        """Runs the provider once; returning before the stop is a failure whatever the cause, and the controller starts it again."""
        if self.stopping.is_set():
            return None
        if self._provider_lives > 0:
            self.pods.resync()
        self._provider_lives += 1
        began = self.clock.monotonic()
        self._provider_ended.clear()
        try:
            await self.provider.run(RuntimeHost(self))
            if not self.stopping.is_set():
                raise VKubeletError("the provider's run() returned before the stop")
        finally:
            self._provider_ended.set()
            if self.clock.monotonic() - began >= _LONG_LIFE:
                self._provider_runs.forgive(key)
            if not self.stopping.is_set():
                self.nodes.set_provider_health(Health("ProviderFailed", "the provider ended unexpectedly; it is being started again"))
        return None

    async def _stop_in_order(self) -> None:
        """Stops in order.

        Readiness is off; nodes are handled by the settings; the provider stops; its last statuses are written; no new writes; those in
        flight are awaited; the tree is cancelled. Then the Lease is released, and the streams are closed.
        """
        await self._stop_asked.wait()
        log.info("stopping")
        await Leaving(self._leaving_parts(), self.settings.shutdown).leave()
        self.stopping.set()
        try:
            async with asyncio.timeout(_PROVIDER_ENDS):
                await self._provider_ended.wait()
        except TimeoutError:
            log.warning("the provider did not end in time; it is cancelled")
        await self._write_last_words()
        await self._gate.close(self.client)
        raise _Stopped

    async def _write_last_words(self) -> None:
        """Writes what the provider reported last, and pending events, without waiting for a server that is unreachable."""
        try:
            async with asyncio.timeout(_LAST_WORDS):
                await self.pods.published()
                await self.recorder.written()
        except TimeoutError:
            log.warning("statuses or events are left unwritten; the next process reports the statuses again")

    async def _measure_loop_lag(self) -> None:
        while True:
            before = self.clock.monotonic()
            await self.clock.sleep(1.0)
            self.metrics.loop_lag_seconds.observe(max(0.0, self.clock.monotonic() - before - 1.0))
