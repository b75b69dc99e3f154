"""KubeletServer: one HTTP application behind one TLS port per virtual node.

Invariant: it listens from entering its context to `stop_listening`, and only `open` and `close` change its set of ports.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from aiohttp import web
from attrs import define, field

from vkubelet.api.objects import JsonView
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.errors import SettingsError, Unavailable
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics
from vkubelet.provider import PodStore, Provider
from vkubelet.server.app import Endpoints, Routes, Traffic
from vkubelet.server.auth import Gate
from vkubelet.server.certificates import Certificates, ClientCa, Subject
from vkubelet.server.exec import ContainerStreams
from vkubelet.server.listeners import MAIN, Endpoint, Listeners, ports_for, published_addresses
from vkubelet.server.logs import ContainerLogs, NodeLogs
from vkubelet.server.node_endpoints import Health, NodeEndpoints, kubelet_configuration
from vkubelet.server.node_metrics import MetricsEndpoints, UsageEndpoints
from vkubelet.server.node_pods import NodePods
from vkubelet.server.portforward import PortForwards
from vkubelet.server.remotecommand import Streaming
from vkubelet.server.settings import ServerSettings
from vkubelet.server.takeover import Connection, Connections, Http, connection_of
from vkubelet.server.tls import Pair, ServingTls

log = logging.getLogger(__name__)

STREAMS_END = 10.0
"""Seconds that open streams get at a stop."""
SESSIONS_END = 2.0
"""Seconds that sessions of exec, attach and port-forward get before they are cancelled, and then to notify their clients."""

_KEEP_ALIVE = 90.0
_LONGEST_HEADER = 65536
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
    _tls: ServingTls = field(init=False, factory=ServingTls)
    _listeners: Listeners = field(init=False)
    _connections: Connections = field(init=False)
    _names: Subject = field(init=False)
    _certificates: Certificates = field(init=False)
    _client_ca: ClientCa = field(init=False)
    _runner: web.AppRunner | None = field(init=False, default=None)
    _stops: bool = field(init=False, default=False)
    _certified: asyncio.Event = field(init=False, factory=asyncio.Event)
    _certified_by: float = field(init=False, default=0.0)

    def __attrs_post_init__(self) -> None:
        settings, limits = self.settings, self.settings.limits
        self._addresses = settings.node_addresses
        self._listeners = Listeners(self._serve, self._tls, bind_address=settings.bind_address, limits=limits)
        self._connections = Connections(self._listeners.strangers, limits)
        self._names = Subject(name=self.instance)
        self._certificates = Certificates(
            settings=settings, client=self.client, clock=self.clock, install=self._install, metrics=self.metrics
        )
        self._client_ca = ClientCa(settings, self.client, self.clock, self._tls.trust)

    @property
    def main_port(self) -> int | None:
        """Port that serves the pods of all nodes; None when that is off."""
        return self._listeners.port_of(MAIN)

    @property
    def problem(self) -> str | None:
        """Reason why requests cannot be served now; None when they can."""
        if self._runner is None:
            return "not started"
        if not self._tls.has_certificate:
            return "no serving certificate yet"
        return None if self._tls.trusts_clients or self.settings.token_review else "no client CA yet"

    async def open(
        self, node: str, *, preferred_port: int | None = None, alone: bool | None = False, addresses: Collection[str] = ()
    ) -> Endpoint:
        """Listens for a node and returns its endpoint; the same one for a node that is open.

        A node that is `alone` in the process is served at the main port; None: not known yet, so it keeps the main port if it has published
        that. `addresses` are further ones that the Node publishes, so that the serving certificate must be valid for them. Raises
        Unavailable when no port is free or no own address is known yet.
        """
        settings = self.settings
        await self._client_ca.tried.wait()
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
        self._names.want(node, addresses)
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
        self._names.drop(node)
        self.metrics.remove_node(node)

    def stop_listening(self) -> None:
        """Stops accepting connections, and requests on open ones; streams continue until the context exits."""
        self._stops = True
        self._listeners.close_all()

    async def run(self) -> None:
        """Keeps certificate and client CA up to date, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._client_ca.run(), name="client CA")
            group.create_task(self._certify(), name="serving certificate")

    async def __aenter__(self) -> Self:
        self._certificates.prepare()
        self._client_ca.load_file()
        runner = web.AppRunner(self._routes().application(), handler_cancellation=True, shutdown_timeout=STREAMS_END)
        await runner.setup()
        self._runner = runner
        await self._listeners.__aenter__()
        if self.settings.main_port is not False:
            await self._open_main(int(self.settings.main_port))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop_listening()
        await self._listeners.__aexit__(None, None, None)
        await self._connections.stop(within=SESSIONS_END)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _serve(self) -> Connection:
        if self._runner is None or self._runner.server is None:
            raise RuntimeError("the kubelet server is not started")
        http = Http(
            self._runner.server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # off, as aiohttp documents
            keepalive_timeout=_KEEP_ALIVE,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )
        return self._connections.protocol(http)

    def _routes(self) -> Routes:
        node_pods = NodePods(self.pods, self._listeners)
        streaming = Streaming(clock=self.clock, metrics=self.metrics, settings=self.settings, connections=self._connections)
        return Routes(
            gate=Gate(self.client, self.clock, settings=self.settings),
            node_pods=node_pods,
            logs=ContainerLogs(provider=self.provider, node_pods=node_pods, clock=self.clock, metrics=self.metrics),
            streams=ContainerStreams(provider=self.provider, node_pods=node_pods, streaming=streaming),
            port_forwards=PortForwards(provider=self.provider, node_pods=node_pods, streaming=streaming),
            clock=self.clock,
            is_current=self._is_current,
            stops=lambda: self._stops,
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

    def _is_current(self, request: web.BaseRequest) -> bool:
        connection = request.transport.get_extra_info("ssl_object") if request.transport else None
        origin = connection_of(request)
        if self._stops or origin is None or not origin.goes_on:
            return False
        return isinstance(connection, ssl.SSLObject) and self._tls.is_current(connection)

    async def _open_main(self, port: int) -> None:
        try:
            await self._listeners.open(MAIN, (port,))
        except Unavailable as error:
            await self.__aexit__(None, None, None)
            remedy = "set another, 0 for any free one, or off"
            raise SettingsError("server.main_port", f"{port} is taken on {self.settings.bind_address}; {remedy}") from error

    async def _published_addresses(self) -> tuple[str, ...]:
        if not self._addresses:
            self._addresses = await published_addresses(self.settings.bind_address, self.client.connection.url)
        return self._addresses

    def _install(self, pair: Pair) -> None:
        self._tls.install(pair)
        self._certified.set()

    async def _first_certificate(self) -> None:
        """Waits for the first certificate, but not long: approval may take days, and a kubelet is Ready without it."""
        now = self.clock.monotonic()
        self._certified_by = self._certified_by or now + _CERTIFICATE_WITHIN
        if not self._certified.is_set() and now < self._certified_by:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._certified_by - now):
                    await self._certified.wait()

    async def _certify(self) -> None:
        self._names.want("", await self._until_addresses_known())
        await self._certificates.run(self._names)

    async def _until_addresses_known(self) -> tuple[str, ...]:
        while True:
            try:
                return await self._published_addresses()
            except Unavailable as error:
                with bind(error=str(error)):
                    log.warning("own address not known yet")
            await self.clock.sleep(_ADDRESS_RETRY)
