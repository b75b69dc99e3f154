"""The process that is the kubelet of any number of virtual nodes: connects provider, nodes, pods and the kubelet server.

Invariant: a stop leaves Nodes, Leases and pods unchanged, so that a restart has no effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from vkubelet.api.names import INSTANCE
from vkubelet.api.objects import NODES, JsonView, Key, KubeObject, Node, Pod, PodRef, Resource
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock, SystemClock, in_batches
from vkubelet.containers.adapter import adapt
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.recorder import Recorder
from vkubelet.control.workqueue import Priority
from vkubelet.errors import VKubeletError
from vkubelet.metrics import Metrics
from vkubelet.node.declared import HEALTHY, DeclaredNodes, Health, NodeState
from vkubelet.node.lease import DURATION, LeaseKeeper
from vkubelet.node.ping import Pinger
from vkubelet.node.registrar import Registrar
from vkubelet.node.render import REPORT_EVERY, Endpoint
from vkubelet.node.shutdown import NodeShutdown
from vkubelet.pods import Pods
from vkubelet.process import LeaderProcess
from vkubelet.provider import ContainerProvider, NodeDescription, PodFailure, PodReport, PodStore, Provider, ResolvedPod, SupportsPing
from vkubelet.server import KubeletServer
from vkubelet.server.node_endpoints import duration
from vkubelet.settings import Settings, default_taints

log = logging.getLogger(__name__)

T = TypeVar("T", bound=KubeObject)

_PROVIDER_STOPS_WITHIN = 5.0
"""Seconds that the provider gets at a stop before it is cancelled."""

_STABLE_AFTER = 60.0
"""Seconds of running after which earlier failures of a provider do not count any more."""


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
        self._runtime.provider_recovered()
        self._runtime.nodes.declare(node)

    def nodes_complete(self) -> None:
        self._runtime.provider_recovered()
        self._runtime.nodes.finish_declaring()

    def remove_node(self, name: str) -> None:
        self._runtime.nodes.retire(name)

    def report(self, report: PodReport) -> None:
        self._runtime.pods.report(report)

    def set_pod_status(self, pod: PodRef, status: JsonView, *, annotations: Mapping[str, str] | None = None) -> None:
        self._runtime.pods.set_pod_status(pod, status, annotations=annotations)

    def fail_pod(self, pod: PodRef, failure: PodFailure) -> None:
        self._runtime.pods.fail_pod(pod, failure)

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


class Runtime(LeaderProcess):
    """Runtime of one provider of either type. `connection` leads to the cluster in which its nodes appear."""

    settings: Settings

    def __init__(
        self, provider: Provider | ContainerProvider, settings: Settings, *, connection: Connection, clock: Clock | None = None
    ) -> None:
        super().__init__(
            connection=connection,
            settings=settings,
            field_manager=settings.field_manager or f"vkubelet-{settings.instance}",
            component="vkubelet",
            host=settings.instance,
            lease=settings.leader.name or f"vkubelet-{settings.instance}",
            clock=clock or SystemClock(),
            redact=lambda uid, text: self.pods.redacted(uid, text),
        )
        self.provider: Provider = adapt(provider)
        self.stopping = asyncio.Event()
        self.nodes = DeclaredNodes(self.clock)
        ours = Selection(labels=settings.node.selector or f"{INSTANCE}={settings.instance}")
        self._live = Informer(self.client, NODES, where=ours, clock=self.clock, metrics=self.metrics)
        self._leases = LeaseKeeper(
            self.node_client, identity=self.identity, clock=self.clock, settings=settings.lease, metrics=self.metrics
        )
        self.pods = self._new_pods()
        self._server = self._new_server()
        self._registrar = self._new_registrar()
        self._register = Controller("nodes", self._registrar.reconcile, workers=16, clock=self.clock, metrics=self.metrics)
        self._provider_runs = Controller("provider", self._run_provider, workers=1, clock=self.clock, metrics=self.metrics)
        self._informers: dict[tuple[str, Selection], Informer[KubeObject]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._provider_stopped = asyncio.Event()
        self._provider_stopped.set()
        self._provider_starts = 0
        self._connect_parts()

    def node_client(self, node: str) -> Client:
        """Returns the client for writes on behalf of one node: the same for all, as long as nodes have no separate identities."""
        return self.client

    def _new_pods(self) -> Pods:
        return Pods(
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

    def _new_server(self) -> KubeletServer:
        return KubeletServer(
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
        )

    def _new_registrar(self) -> Registrar:
        return Registrar(
            client=self.client,
            node_client=self.node_client,
            nodes=self.nodes,
            live=self._live.store,
            store_written=self._live.adopt,
            leases=self._leases,
            pods=self.pods,
            recorder=self.recorder,
            clock=self.clock,
            open_endpoint=self._open_endpoint,
            close_endpoint=self._server.close,
            default_taints=default_taints(self.settings.node.taint),
            instance=self.settings.instance,
            restore=self.settings.node.restore,
            adopt_foreign=self.settings.node.adopt_foreign,
        )

    def _node_shutdown(self) -> NodeShutdown:
        return NodeShutdown(
            settings=self.settings.shutdown,
            nodes=self.nodes,
            refuse=self.pods.refuse,
            drain=self.pods.drain,
            drained=self.pods.drained,
            is_closed=self._registrar.is_closed,
            remove_node=self._registrar.remove,
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
        for state in NodeState:
            self.metrics.nodes.labels(state=state.value).set_function(partial(self.nodes.count, state))

    def serves(self, node: str) -> bool:
        """Checks whether this process serves an existing Node of ours."""
        return True

    def _node_seen(self, change: Change[Node]) -> None:
        if not self.serves(change.key.name):
            return
        if change.new is not None:
            self.nodes.found(change.key.name)
        self._register.add(change.key.name, priority=Priority.LOW if change.initial else Priority.HIGH)

    def _node_declared(self, name: str) -> None:
        self._register.add(name)
        if self._server.sole_node not in (None, name):
            # It is no longer the only node and gets a separate port.
            self._register.add(str(self._server.sole_node))

    def provider_recovered(self) -> None:
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

    def unready(self) -> str | None:
        if not (self._live.synced and self.pods.informer.synced):
            return "watches are not synced"
        return self._server.problem if self._group is not None else None

    def watch(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self._live.run(), name="own nodes")
        group.create_task(self.pods.informer.run(), name="pods")

    async def serve(self, group: asyncio.TaskGroup) -> None:
        await self.streams.enter_async_context(self._server)
        self._group = group
        group.create_task(self._leases.run(), name="leases")
        group.create_task(self._server.run(), name="kubelet server")
        group.create_task(self.pods.run(), name="pods")
        group.create_task(self._register_nodes(), name="register nodes")
        group.create_task(self._provider_runs.run(), name="provider")
        if isinstance(self.provider, SupportsPing):
            pinger = Pinger(self.provider, self.nodes, clock=self.clock, settings=self.settings.ping)
            group.create_task(pinger.run(), name="ping")
        for informer in list(self._informers.values()):
            group.create_task(informer.run(), name="informer")
        self._provider_runs.add("provider")

    def stop_serving(self) -> None:
        self._server.stop_listening()

    async def _register_nodes(self) -> None:
        """Registers nodes once the Nodes of earlier processes, which contain their ports, and the pods are listed: a Ready node manages
        its pods."""
        await self._live.wait_synced()
        await self.pods.informer.wait_synced()
        await self._open_endpoints()
        await self._register.run()

    async def _open_endpoints(self) -> None:
        """Opens the endpoints of all Nodes of earlier processes, on the ports that they publish, before the first Node is written: logs and
        exec of a thousand nodes wait a second for it, and the Leases as long. Raises nothing: what fails is tried again, and handled,
        when the Node is registered."""
        async for node in in_batches(self.clock, list(self._live.store)):
            name = node.metadata.name
            if self.serves(name) and self.nodes.get(name) is not None:
                with suppress(VKubeletError):
                    await self._open_endpoint(name, node.kubelet_port)
                if self.nodes.get(name) is None:
                    await self._server.close(name)

    async def _run_provider(self, key: str) -> float | None:
        """Runs the provider once; returning before the stop is a failure whatever the cause, and the controller starts it again."""
        if self.stopping.is_set():
            return None
        if self._provider_starts > 0:
            self.pods.resync()
        self._provider_starts += 1
        began = self.clock.monotonic()
        self._provider_stopped.clear()
        try:
            await self.provider.run(RuntimeHost(self))
            if not self.stopping.is_set():
                raise VKubeletError("the provider's run() returned before the stop")
        finally:
            self._provider_stopped.set()
            if self.clock.monotonic() - began >= _STABLE_AFTER:
                self._provider_runs.reset_backoff(key)
            if not self.stopping.is_set():
                self.nodes.set_provider_health(
                    Health("ProviderFailed", "the provider stopped unexpectedly; the runtime starts it again, see its log for the error")
                )
        return None

    async def finish(self) -> None:
        """Handles the nodes as the settings require, then stops the provider."""
        await self._node_shutdown().run()
        self.stopping.set()
        try:
            async with asyncio.timeout(_PROVIDER_STOPS_WITHIN):
                await self._provider_stopped.wait()
        except TimeoutError:
            log.warning("the provider did not stop in time; it is cancelled")

    async def flush(self) -> None:
        """Returns when what the provider reported last is written, and all Events."""
        await self.pods.published()
        await super().flush()
