"""KubeletServer: one HTTP application behind one TLS port per virtual node.

Invariant: it listens from entering to leaving its context, and what it listens for changes only by `open` and `close`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from aiohttp import web
from attrs import frozen

from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.errors import SettingsError, Unavailable
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics
from vkubelet.provider import PodStore, Provider
from vkubelet.server.address import published_address
from vkubelet.server.app import Routes
from vkubelet.server.auth import Gate
from vkubelet.server.certificates import Certificates, Subject
from vkubelet.server.clientca import ClientCa
from vkubelet.server.listeners import MAIN, Endpoint, Listeners
from vkubelet.server.logs import ContainerLogs
from vkubelet.server.node_endpoints import Health, NodeEndpoints
from vkubelet.server.pods import NodePods
from vkubelet.server.ports import ports_for
from vkubelet.server.settings import ServerSettings
from vkubelet.server.tls import ServingTls

log = logging.getLogger(__name__)

STREAMS_END = 10.0
"""Seconds that open streams get at a stop."""

_KEEP_ALIVE = 90.0
_LONGEST_HEADER = 65536
_ADDRESS_RETRY = 5.0


def _healthy() -> str | None:
    return None


@frozen(kw_only=True)
class ServerParts:
    """What the server works with. `extra_certificate_sans` are further IP addresses or DNS names of the serving certificate; `health` tells
    `/healthz` why the runtime does not work.
    """

    provider: Provider
    pods: PodStore
    client: Client
    clock: Clock
    metrics: Metrics
    settings: ServerSettings
    instance: str = "default"
    extra_certificate_sans: Sequence[str] = ()
    health: Health = _healthy


class KubeletServer:
    """Use as `async with server`, with `run` as a task inside."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._address = parts.settings.node_address
        self._tls = ServingTls()
        self._listeners = Listeners(self._serve, self._tls, bind_address=parts.settings.bind_address)
        self._certificates = Certificates(settings=parts.settings, client=parts.client, clock=parts.clock, install=self._tls.install)
        self._client_ca = ClientCa(parts.settings, parts.client, parts.clock, self._tls.trust)
        self._runner: web.AppRunner | None = None

    @property
    def main_port(self) -> int | None:
        """Where the pods of all nodes are served; None when that is off."""
        return self._listeners.port_of(MAIN)

    @property
    def problem(self) -> str | None:
        """Why requests can not be served now; None when they can."""
        if self._runner is None:
            return "not started"
        if not self._tls.has_certificate:
            return "no serving certificate yet"
        return None if self._tls.trusts_clients or self._settings.token_review else "no client CA yet"

    @property
    def ready(self) -> bool:
        return self.problem is None

    async def open(self, node: str, *, preferred_port: int | None = None) -> Endpoint:
        """Listen for a node; where it is reached. The same answer again for a node that is open.

        Raises Unavailable when no port is free or no own address is known yet.
        """
        settings = self._settings
        await self._client_ca.tried.wait()
        address = await self._published_address()
        ports = ports_for(node, preferred_port, first=settings.port_first, last=settings.port_last)
        return Endpoint(address, await self._listeners.open(node, ports))

    async def close(self, node: str) -> None:
        """Listen no more for a node; streams that are open go on."""
        self._listeners.close(node)

    async def run(self) -> None:
        """Keep certificate and client CA up to date, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._client_ca.run(), name="client CA")
            group.create_task(self._certify(), name="serving certificate")

    async def __aenter__(self) -> Self:
        if self._settings.certificate == "files":
            self._certificates.load_files()
        self._client_ca.load_file()
        runner = web.AppRunner(
            self._routes().application(),
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=_KEEP_ALIVE,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
            shutdown_timeout=STREAMS_END,
        )
        await runner.setup()
        self._runner = runner
        if self._settings.main_port is not False:
            await self._open_main(int(self._settings.main_port))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listeners.close_all()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _serve(self) -> asyncio.Protocol:
        if self._runner is None or self._runner.server is None:
            raise RuntimeError("the kubelet server is not started")
        return self._runner.server()

    def _routes(self) -> Routes:
        parts = self._parts
        node_pods = NodePods(parts.pods, self._listeners)
        return Routes(
            gate=Gate(parts.client, parts.clock, settings=parts.settings),
            node_pods=node_pods,
            logs=ContainerLogs(provider=parts.provider, node_pods=node_pods, clock=parts.clock, metrics=parts.metrics),
            node=NodeEndpoints(provider=parts.provider, node_pods=node_pods, health=parts.health),
            clock=parts.clock,
            is_current=self._is_current,
        )

    def _is_current(self, request: web.BaseRequest) -> bool:
        connection = request.transport.get_extra_info("ssl_object") if request.transport else None
        return isinstance(connection, ssl.SSLObject) and self._tls.is_current(connection)

    async def _open_main(self, port: int) -> None:
        try:
            await self._listeners.open(MAIN, (port,))
        except Unavailable as error:
            await self.__aexit__(None, None, None)
            remedy = "set another, 0 for any free one, or off"
            raise SettingsError("server.main_port", f"{port} is taken on {self._settings.bind_address}; {remedy}") from error

    async def _published_address(self) -> str:
        if not self._address:
            self._address = await published_address(self._settings.bind_address, self._parts.client.connection.url)
        return self._address

    async def _certify(self) -> None:
        address = await self._until_address_known()
        names = tuple(dict.fromkeys((address, *self._parts.extra_certificate_sans)))
        await self._certificates.run(Subject(name=self._parts.instance, addresses=names))

    async def _until_address_known(self) -> str:
        while True:
            try:
                return await self._published_address()
            except Unavailable as error:
                with bind(error=str(error)):
                    log.warning("own address not known yet")
            await self._parts.clock.sleep(_ADDRESS_RETRY)
