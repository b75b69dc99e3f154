"""One HTTP application behind TLS ports: certificate, client CA, listeners and connections, for the kubelet port and for other pages.

Invariant: no request is read without TLS; connections whose certificate or client CA was replaced end with their next response.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import hdrs, web
from attrs import define, field

from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.certificates import Pair
from vkubelet.errors import SettingsError, Unavailable
from vkubelet.metrics import Metrics
from vkubelet.server.certificates import Certificates, ClientCa, Subject
from vkubelet.server.listeners import MAIN, Listeners
from vkubelet.server.settings import SECTION, ServerSettings
from vkubelet.server.takeover import Connection, Connections, Http, connection_of
from vkubelet.server.tls import ServingTls

STREAMS_END = 10.0
"""Seconds that open streams get at a stop."""
SESSIONS_END = 2.0
"""Seconds that sessions of exec, attach and port-forward get before they are cancelled, and then to notify their clients."""
_KEEP_ALIVE = 90.0
_LONGEST_HEADER = 65536


@define(kw_only=True, eq=False)
class TlsPorts:
    """The ports of one application; `installed` is called with each new certificate."""

    client: Client
    clock: Clock
    settings: ServerSettings
    subject: Subject
    metrics: Metrics | None = None
    installed: Callable[[Pair], None] | None = None
    tls: ServingTls = field(init=False, factory=ServingTls)
    listeners: Listeners = field(init=False)
    connections: Connections = field(init=False)
    client_ca: ClientCa = field(init=False)
    stops: bool = field(init=False, default=False)
    """Whether requests are refused, as the process stops."""
    runner: web.AppRunner | None = field(init=False, default=None)
    _certificates: Certificates = field(init=False)

    def __attrs_post_init__(self) -> None:
        settings = self.settings
        self.listeners = Listeners(self._serve, self.tls, bind_address=settings.bind_address, limits=settings.limits)
        self.connections = Connections(self.listeners.strangers, settings.limits)
        self.client_ca = ClientCa(settings, self.client, self.clock, self.tls.trust)
        self._certificates = Certificates(
            settings=settings, client=self.client, clock=self.clock, install=self._install, metrics=self.metrics
        )

    @property
    def problem(self) -> str | None:
        """Reason why requests cannot be served now; None when they can."""
        if self.runner is None:
            return "not started"
        if not self.tls.has_certificate:
            return "no serving certificate yet"
        return None if self.tls.trusts_clients or self.settings.token_review else "no client CA yet"

    async def start(self, application: web.Application) -> None:
        """Serves the application at the main port, unless that is off. Raises SettingsError."""
        self._certificates.prepare()
        self.client_ca.load_file()
        application.on_response_prepare.append(self._prepare)
        # aiohttp waits twice for a handler before it cancels it: before and after it cancels the body of the request.
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=STREAMS_END / 2)
        await runner.setup()
        self.runner = runner
        await self.listeners.__aenter__()
        if self.settings.main_port is not False:
            await self._open_main(int(self.settings.main_port))

    async def stop(self) -> None:
        """Stops listening, and closes what is open."""
        self.stop_listening()
        await self.listeners.__aexit__(None, None, None)
        await self.connections.stop(within=SESSIONS_END)
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    def stop_listening(self) -> None:
        """Stops accepting connections, and requests on open ones; streams continue."""
        self.stops = True
        self.listeners.close_all()

    async def run(self, addresses: Callable[[], Awaitable[Sequence[str]]]) -> None:
        """Keeps certificate and client CA up to date, until cancelled; `addresses` yields those of the certificate."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.client_ca.run(), name="client CA")
            group.create_task(self._certify(addresses), name="serving certificate")

    async def _certify(self, addresses: Callable[[], Awaitable[Sequence[str]]]) -> None:
        self.subject.want("", await addresses())
        await self._certificates.run(self.subject)

    def _install(self, pair: Pair) -> None:
        self.tls.install(pair)
        if self.installed is not None:
            self.installed(pair)

    async def _open_main(self, port: int) -> None:
        try:
            await self.listeners.open(MAIN, (port,))
        except Unavailable as error:
            await self.stop()
            remedy = "set another, 0 for any free one, or off"
            raise SettingsError(f"{SECTION}.main_port", f"{port} is taken on {self.settings.bind_address}; {remedy}") from error

    def _serve(self) -> Connection:
        if self.runner is None or self.runner.server is None:
            raise RuntimeError("the server is not started")
        http = Http(
            self.runner.server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # off, as aiohttp documents
            keepalive_timeout=_KEEP_ALIVE,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )
        return self.connections.protocol(http)

    def _is_current(self, request: web.BaseRequest) -> bool:
        connection = request.transport.get_extra_info("ssl_object") if request.transport else None
        origin = connection_of(request)
        if self.stops or origin is None or not origin.goes_on:
            return False
        return isinstance(connection, ssl.SSLObject) and self.tls.is_current(connection)

    async def _prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        """Closes the connection after the response when its certificate or client CA was replaced, when the server stops, or when no
        request on it was allowed. The Server header is not sent."""
        response.headers.popall(hdrs.SERVER, None)
        if not self._is_current(request) and not isinstance(response, web.WebSocketResponse):
            response.force_close()
            response.headers["Connection"] = "close"


def admit(request: web.BaseRequest) -> None:
    """Admits the connection of an allowed request: it no longer counts as one of a stranger."""
    connection = connection_of(request)
    if connection is not None:
        connection.admit()
