"""KubeletServer: one HTTP application behind one TLS port per virtual node.

Invariant: it listens from entering its context to `stop_listening`, and only `open` and `close` change its set of ports.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from attrs import define, field

from vkubelet.api.objects import JsonView
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.errors import Unavailable
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics
from vkubelet.provider import PodStore, Provider
from vkubelet.server.app import Endpoints, Routes, Traffic
from vkubelet.server.auth import Gate
from vkubelet.server.certificates import Subject
from vkubelet.server.exec import ContainerStreams
from vkubelet.server.listeners import MAIN, Endpoint, Listeners, ports_for, published_addresses
from vkubelet.server.logs import ContainerLogs, NodeLogs
from vkubelet.server.node_endpoints import Health, NodeEndpoints, kubelet_configuration
from vkubelet.server.node_metrics import MetricsEndpoints, UsageEndpoints
from vkubelet.server.node_pods import NodePods
from vkubelet.server.portforward import PortForwards
from vkubelet.server.ports import TlsPorts
from vkubelet.server.remotecommand import Streaming
from vkubelet.server.settings import ServerSettings

log = logging.getLogger(__name__)

_ADDRESS_RETRY = 5.0
_CERTIFICATE_WITHIN = 5.0
"""Seconds after the first node was declared; a process that approves its own requests needs a tenth of one."""


def _healthy() -> str | None:
    return None


def _nothing_due(node: str) -> Mapping[str, int]:
    return {}


@define(kw_only=True, eq=False)
class KubeletServer:
    """Server of all nodes; use as `async with server`, with `run` as a task inside.

    `health` returns to `/healthz` why the runtime does not work; `due` returns how many pods of a node wait for a worker, by queue;
    `configuration` are fields of a KubeletConfiguration that other components set.
    """

    provider: Provider
    pods: PodStore
    client: Client
    clock: Clock
    metrics: Metrics
    settings: ServerSettings
    instance: str = "default"
    health: Health = _healthy
    due: Callable[[str], Mapping[str, int]] = _nothing_due
    configuration: JsonView = field(factory=dict)
    _addresses: tuple[str, ...] = field(init=False)
    _ports: TlsPorts = field(init=False)
    _certified: asyncio.Event = field(init=False, factory=asyncio.Event)
    _certified_by: float = field(init=False, default=0.0)

    def __attrs_post_init__(self) -> None:
        self._addresses = self.settings.node_addresses
        self._ports = TlsPorts(
            client=self.client,
            clock=self.clock,
            settings=self.settings,
            subject=Subject(name=self.instance),
            metrics=self.metrics,
            installed=lambda pair: self._certified.set(),
        )

    @property
    def _listeners(self) -> Listeners:
        return self._ports.listeners

    @property
    def main_port(self) -> int | None:
        """Port that serves the pods of all nodes; None when that is off."""
        return self._listeners.port_of(MAIN)

    @property
    def problem(self) -> str | None:
        """Reason why requests cannot be served now; None when they can."""
        return self._ports.problem

    async def open(
        self, node: str, *, preferred_port: int | None = None, alone: bool | None = False, addresses: Collection[str] = ()
    ) -> Endpoint:
        """Listens for a node and returns its endpoint; the same one for a node that is open.

        A node that is `alone` in the process is served at the main port; None: not known yet, so it keeps the main port if it has published
        that. `addresses` are further ones that the Node publishes, so that the serving certificate must be valid for them. Raises
        Unavailable when no port is free or no own address is known yet.
        """
        settings = self.settings
        await self._ports.client_ca.tried.wait()
        await self._first_certificate()
        address, *also = await self._published_addresses()
        if settings.listening == "shared":
            port = self._listeners.share(node)
        elif self._has_main(node, preferred_port, alone=alone):
            port = self._listeners.give_main(node)
        else:
            self._listeners.take_main(node)
            ports = ports_for(node, preferred_port, first=settings.port_first, last=settings.port_last)
            port = await self._listeners.open(node, ports)
        self._ports.subject.want(node, addresses)
        return Endpoint(address, port, tuple(also))

    @property
    def sole_node(self) -> str | None:
        """Node that is served at the main port, if it is the only one."""
        return self._listeners.sole

    def _has_main(self, node: str, published: int | None, *, alone: bool | None) -> bool:
        """Checks whether the main port is the port of this node: not if it changes at every start (0), and not once the node has
        another."""
        main = self.settings.main_port
        if not main or self._listeners.sole not in (None, node) or self._listeners.port_of(node) not in (None, self.main_port):
            return False
        return published == main if alone is None else alone

    async def close(self, node: str) -> None:
        """Stops listening for a node; open streams continue."""
        self._listeners.close(node)
        self._ports.subject.drop(node)
        self.metrics.remove_node(node)

    def stop_listening(self) -> None:
        """Stops accepting connections, and requests on open ones; streams continue until the context exits."""
        self._ports.stop_listening()

    async def run(self) -> None:
        """Keeps certificate and client CA up to date, until cancelled."""
        await self._ports.run(self._until_addresses_known)

    async def __aenter__(self) -> Self:
        await self._ports.start(self._routes().application())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._ports.stop()

    def _routes(self) -> Routes:
        node_pods = NodePods(self.pods, self._listeners)
        streaming = Streaming(clock=self.clock, metrics=self.metrics, settings=self.settings, connections=self._ports.connections)
        return Routes(
            gate=Gate(self.client, self.clock, settings=self.settings),
            node_pods=node_pods,
            logs=ContainerLogs(provider=self.provider, node_pods=node_pods, clock=self.clock, metrics=self.metrics),
            streams=ContainerStreams(provider=self.provider, node_pods=node_pods, streaming=streaming),
            port_forwards=PortForwards(provider=self.provider, node_pods=node_pods, streaming=streaming),
            clock=self.clock,
            stops=lambda: self._ports.stops,
            traffic=Traffic(self.metrics, self.clock),
            endpoints=self._endpoints(node_pods),
            debugging=self.settings.debug.handlers,
        )

    def _endpoints(self, node_pods: NodePods) -> Sequence[Endpoints]:
        debug = self.settings.debug
        return (
            NodeEndpoints(
                provider=self.provider,
                node_pods=node_pods,
                health=self.health,
                configuration={**kubelet_configuration(self.settings), **self.configuration},
                profiling=debug.profiling,
            ),
            UsageEndpoints(provider=self.provider, node_pods=node_pods),
            MetricsEndpoints(metrics=self.metrics, node_pods=node_pods, health=self.health, due=self.due, clock=self.clock),
            NodeLogs(provider=self.provider, node_pods=node_pods, clock=self.clock, metrics=self.metrics, enabled=debug.node_logs),
        )

    async def _published_addresses(self) -> tuple[str, ...]:
        if not self._addresses:
            self._addresses = await published_addresses(self.settings.bind_address, self.client.connection.url)
        return self._addresses

    async def _first_certificate(self) -> None:
        """Waits for the first certificate, but not long: approval may take days, and a kubelet is Ready without it."""
        now = self.clock.monotonic()
        self._certified_by = self._certified_by or now + _CERTIFICATE_WITHIN
        if not self._certified.is_set() and now < self._certified_by:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._certified_by - now):
                    await self._certified.wait()

    async def _until_addresses_known(self) -> tuple[str, ...]:
        while True:
            try:
                return await self._published_addresses()
            except Unavailable as error:
                with bind(error=str(error)):
                    log.warning("own address not known yet")
            await self.clock.sleep(_ADDRESS_RETRY)
