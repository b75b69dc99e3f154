"""Opens the dashboard that the manager serves: pages fetched through a forwarded port, with the credentials of the user's kubeconfig.

Invariant: credentials are sent only to the process that has the private key of the certificate on the manager's pod; in a browser there is
nothing but the token of the local address.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from aiohttp import hdrs, web
from attrs import define, evolve, frozen
from cryptography import x509

from kubeocean.dashboard import access, live, server, serving
from kubeocean.model import keys
from vkubelet.api.objects import PODS, Key, Pod, get_condition
from vkubelet.client.connection import Connection
from vkubelet.client.remote import port_forward
from vkubelet.client.rest import Client, Selection
from vkubelet.client.tls import Pem, Tls, TlsSource
from vkubelet.commands.clusters import Choice, CommandFailed
from vkubelet.commands.reading import MissingRight, Reader
from vkubelet.errors import ApiError, Unauthorized

log = logging.getLogger(__name__)

_SELECTOR: Final = "app.kubernetes.io/name=kubeocean-manager"
_CHUNK: Final = 65536
_FORWARDED: Final = (hdrs.CONTENT_TYPE, hdrs.CACHE_CONTROL)


@frozen
class Manager:
    """A pod of the manager that serves the dashboard."""

    pod: Key
    port: int
    certificate: str

    @property
    def server_name(self) -> str:
        """The first DNS name of the certificate. Raises CommandFailed."""
        try:
            leaf = x509.load_pem_x509_certificate(self.certificate.encode())
            found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
        except (ValueError, x509.ExtensionNotFound):
            found = []
        if not found:
            raise CommandFailed(f"annotation {keys.DASHBOARD_CERTIFICATE} of pod {self.pod} is no certificate with a DNS name")
        return found[0]


def manager_of(pods: list[Pod]) -> Manager | None:
    """Returns the first Ready pod that serves the dashboard; None without one (pure)."""
    for pod in sorted(pods, key=lambda each: each.metadata.name):
        ready = get_condition(pod.status.get("conditions") or (), "Ready") or {}
        certificate = pod.metadata.annotations.get(keys.DASHBOARD_CERTIFICATE, "")
        ports = (port for container in pod.spec.get("containers") or () for port in container.get("ports") or ())
        port = next((port["containerPort"] for port in ports if port.get("name") == "dashboard"), None)
        if certificate and port and ready.get("status") == "True" and not pod.terminating:
            return Manager(pod.key, int(port), certificate)
    return None


async def find_manager(reader: Reader, namespace: str) -> Manager | str:
    """Finds the manager that serves the dashboard, or returns why it cannot be opened. Raises CommandFailed."""
    try:
        pods = await reader.list(PODS, Selection(namespace=namespace, labels=_SELECTOR))
    except MissingRight as error:
        return str(error)
    found = manager_of(list(pods))
    return found or f"no Ready pod of the manager in namespace {namespace} serves it (value dashboard.enabled of the chart kubeocean)"


# --- The forwarded port -------------------------------------------------------------------------------------------------------------------


@define
class _Local:
    """The local side of a forwarded connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self) -> bytes:
        return await self.reader.read(_CHUNK)

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def forwarded(client: Client, found: Manager) -> AsyncIterator[int]:
    """Forwards connections on loopback to the port of the manager while entered; yields the local port.

    Whoever connects there reaches a port that authenticates every request.
    """
    path = PODS.path(found.pod.namespace, found.pod.name, "portforward")

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await port_forward(client, path, found.port, stream=_Local(reader, writer))
        except (ApiError, ConnectionError) as error:
            log.debug("forwarded connection failed: %s", error)
        finally:
            writer.close()

    listener = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield int(listener.sockets[0].getsockname()[1])
    finally:
        listener.close()


def connection_to(found: Manager, own: Connection, port: int) -> Connection:
    """Returns the connection to the manager with the user's credentials, which trusts the certificate of its pod alone.

    Raises CommandFailed, SettingsError.
    """
    authority = Pem(f"annotation of pod {found.pod}", data=found.certificate.encode())
    source = evolve(own.tls.source, authority=authority, insecure=False) if own.tls is not None else TlsSource(authority)
    return evolve(own, url=f"https://127.0.0.1:{port}", tls=Tls(source), proxy="", server_name=found.server_name)


# --- The local address --------------------------------------------------------------------------------------------------------------------


@define
class Relay:
    """The application at the local address: each GET is sent to the manager with the user's credentials."""

    client: Client
    admission: access.TokenPath

    def application(self) -> web.Application:
        made = web.Application()
        made.router.add_get("/{token}/{path:.*}", self._relay)
        return made

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        base = self.admission.admit(request)
        path = request.rel_url.raw_path_qs.removeprefix(base)
        if not path.startswith("/"):
            raise web.HTTPNotFound(text="not found")
        try:
            outgoing = await self.client.transport.outgoing(path)
        except Unauthorized as error:
            return _failed(401, f"your credentials are not available: {error}")
        headers = {**outgoing.headers, serving.PREFIX: base, hdrs.ACCEPT: request.headers.get(hdrs.ACCEPT, "*/*")}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.client.connection.timeouts.connect)
        try:
            asked = self.client.transport.session.get(outgoing.url, headers=headers, timeout=timeout, **outgoing.options)  # type: ignore[arg-type]
            async with asked as answer:
                return await _passed(request, answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            return _failed(502, f"the manager does not respond: {error}; start the command again")


async def _passed(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Sends an answer on as it arrives; of its headers only what a page needs."""
    headers: Mapping[str, str] = {**server.HEADERS, **{name: answer.headers[name] for name in _FORWARDED if name in answer.headers}}
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    try:
        while not live.has_left(request):
            try:
                async with asyncio.timeout(live.CHECKED):
                    chunk = await answer.content.readany()
            except TimeoutError:
                continue
            if not chunk:
                await response.write_eof()
                break
            await response.write(chunk)
    except ConnectionError:
        # The browser has left.
        log.debug("page left")
    return response


def _failed(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text, headers=server.HEADERS)


async def try_once(client: Client, choice: Choice) -> None:
    """Fetches something once, so that a refusal is reported at the terminal. Raises CommandFailed."""
    try:
        await client.request("GET", "/static/icon.svg")
    except ApiError as error:
        raise CommandFailed(
            f"the dashboard of the manager in the {choice.title} cannot be opened: {error}; --local does without it"
        ) from error
