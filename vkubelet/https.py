"""HTTPS listener for pages of a process that is no kubelet, with the TLS, the authentication and the limits of the kubelet port.

Invariant: no handler runs before its caller is authenticated by a client certificate of the cluster's client CA or by a TokenReview; what
the caller may see is decided by `may`, which asks the cluster, and then the handler calls `admit_connection`.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Literal, Self

from aiohttp import hdrs, web
from attrs import define, field, frozen

from vkubelet.api.names import is_ip
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.certificates import Pair
from vkubelet.errors import SettingsError
from vkubelet.server import certificates, listeners, ports
from vkubelet.server.auth import Caller, Gate, Question, User
from vkubelet.server.settings import LimitSettings, ServerSettings

__all__ = ["Caller", "HttpsServer", "HttpsSettings", "Question", "User", "admit_connection", "current_caller"]

_CALLER: ContextVar[Caller] = ContextVar("caller")
"""Set in the task of a request while it is handled."""


@frozen(kw_only=True)
class HttpsSettings:
    """An HTTPS listener; the fields mean what those of the kubelet port mean."""

    bind_address: str = "0.0.0.0"
    """IP address to listen on; `0.0.0.0`: all IPv4 addresses; `::`: all addresses, IPv6 and IPv4."""
    port: int = 8443
    """Port to listen on; 0: any free one."""
    certificate: Literal["self-signed", "files"] = "self-signed"
    """Source of the serving certificate: self-signed at each start, or files."""
    certificate_file: str = ""
    """PEM certificate chain, for `certificate: files`; read again when it changes."""
    key_file: str = ""
    """PEM private key for `certificate_file`."""
    client_ca_file: str = ""
    """PEM bundle that verifies client certificates; empty: the one that the cluster publishes in kube-system."""
    token_review: bool = True
    """Accept bearer tokens that the cluster's TokenReview accepts."""
    limits: LimitSettings = field(factory=LimitSettings)

    def __attrs_post_init__(self) -> None:
        if not is_ip(self.bind_address):
            raise SettingsError("server.bind_address", "must be an IP address, 0.0.0.0 for all of IPv4, or :: for all")
        if not 0 <= self.port <= 65535:
            raise SettingsError("server.port", "must be a port, or 0 for any free one")
        self.of_a_kubelet()

    def of_a_kubelet(self) -> ServerSettings:
        """Returns the same as settings of the kubelet port. Raises SettingsError for values that conflict."""
        return ServerSettings(
            bind_address=self.bind_address,
            main_port=self.port,
            certificate=self.certificate,
            certificate_file=self.certificate_file,
            key_file=self.key_file,
            client_ca_file=self.client_ca_file,
            token_review=self.token_review,
            limits=self.limits,
        )


@define(kw_only=True, eq=False)
class HttpsServer:
    """Server of one application; use as `async with server`, with `run` as a task inside.

    `names` are the DNS names and addresses of the self-signed certificate, `installed` is called with each new certificate, in PEM.
    """

    client: Client
    clock: Clock
    settings: HttpsSettings
    name: str
    names: Sequence[str] = ()
    installed: Callable[[bytes], None] | None = None
    _gate: Gate = field(init=False)
    _ports: ports.TlsPorts = field(init=False)
    _application: web.Application | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        chosen = self.settings.of_a_kubelet()
        self._gate = Gate(self.client, self.clock, settings=chosen)
        self._ports = ports.TlsPorts(
            client=self.client,
            clock=self.clock,
            settings=chosen,
            subject=certificates.Subject(name=self.name, is_node=False),
            installed=self._report,
        )

    @property
    def port(self) -> int:
        """Port that is listened on; 0 when it is not open."""
        return self._ports.listeners.port_of(listeners.MAIN) or 0

    @property
    def problem(self) -> str | None:
        """Reason why requests cannot be served now; None when they can."""
        return self._ports.problem

    def serve(self, application: web.Application) -> None:
        """Sets the application, whose requests are authenticated before all its middlewares."""
        application.middlewares.insert(0, self._authenticated)
        self._application = application

    async def may(self, question: Question) -> bool:
        """Asks the cluster whether a user has a right; answers are cached as at the kubelet port. Raises ApiError."""
        return await self._gate.may(question)

    async def run(self) -> None:
        """Keeps certificate and client CA up to date, until cancelled."""
        await self._ports.run(self._addresses)

    def stop_listening(self) -> None:
        """Stops accepting connections and requests."""
        self._ports.stop_listening()

    async def __aenter__(self) -> Self:
        if self._application is None:
            raise RuntimeError("no application is set: call `serve` first")
        try:
            await self._ports.start(self._application)
        except SettingsError as error:
            raise SettingsError(error.path.replace("server.main_port", "server.port"), str(error).partition(": ")[2]) from error
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._ports.stop()

    async def _addresses(self) -> Sequence[str]:
        return self.names

    def _report(self, pair: Pair) -> None:
        if self.installed is not None:
            self.installed(pair.certificate)

    @web.middleware
    async def _authenticated(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Lets a request pass whose caller is known, and answers any other with 401."""
        if self._ports.stops:
            raise web.HTTPServiceUnavailable(text="this process is stopping; try again in a few seconds")
        try:
            caller = await self._gate.authenticate(request)
        except web.HTTPUnauthorized as error:
            return web.Response(status=401, text=error.text, headers={hdrs.WWW_AUTHENTICATE: "Bearer"})
        mark = _CALLER.set(caller)
        try:
            return await handler(request)
        finally:
            _CALLER.reset(mark)


def admit_connection(request: web.Request) -> None:
    """Admits the connection of a request whose caller has a right; until then it counts as a stranger's and serves one request."""
    ports.admit(request)


def current_caller() -> Caller:
    """Returns the authenticated caller of the request that is handled. Raises LookupError outside of one."""
    return _CALLER.get()
