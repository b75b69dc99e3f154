"""Executes the actions of probes and hooks: a command in the container, a request to it, a connection.

Invariant: nothing here raises for what a container does; texts are the kubelet's, as far as they are the same everywhere.
"""

import asyncio
import errno
import ssl
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Final, Self

import aiohttp
from attrs import frozen
from yarl import URL

from vkubelet.api.objects import JsonView, PodRef
from vkubelet.clock import Clock
from vkubelet.containers import grpc
from vkubelet.errors import ProviderError
from vkubelet.provider import SupportsExec, TerminalSize

LONGEST = 10 * 1024
"""Bytes of an output, or of a response body, that are read."""

_AGENT: Final = {"probe": "kube-probe/1.34", "lifecycle": "kube-lifecycle/1.34"}
_REDIRECTS = 10
_UNREACHABLE: Final = {errno.EHOSTUNREACH: "no route to host", errno.ENETUNREACH: "network is unreachable"}
_MOVED = frozenset({301, 302, 303, 307, 308})


@frozen
class CheckTarget:
    """A container, and the address of its pod."""

    pod: PodRef
    container: str
    spec: JsonView
    address: str


@frozen
class CheckResult:
    """Result of an action. `ok` None: unknown, as it could not be executed. A warning is a success with an event. `answered`: if unhealthy.

    `error`: the message of a kubelet beside the output of a command that failed.
    """

    ok: bool | None
    output: str = ""
    warning: bool = False
    answered: bool = False
    error: str = ""


class Captured:
    """ContainerIO without input that buffers the start of the output; stdout first, as a kubelet joins them."""

    def __init__(self) -> None:
        self.tty = False
        self.stdin: AsyncIterator[bytes] | None = None
        self.resizes: AsyncIterator[TerminalSize] = _nothing()
        self._stdout, self._stderr = bytearray(), bytearray()

    async def write_stdout(self, data: bytes) -> None:
        self._stdout += data[: LONGEST - len(self._stdout)]

    async def write_stderr(self, data: bytes) -> None:
        self._stderr += data[: LONGEST - len(self._stderr)]

    @property
    def text(self) -> str:
        return (self._stdout + self._stderr)[:LONGEST].decode(errors="replace")

    @property
    def errors(self) -> str:
        return self._stderr.decode(errors="replace")


async def _nothing() -> AsyncIterator[TerminalSize]:
    return
    yield


class Checks:
    """Context manager that executes actions; `provider` runs the commands if it can."""

    def __init__(self, provider: object, *, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()

    async def run(self, target: CheckTarget, action: JsonView, *, timeout: float | None, agent: str = "probe") -> CheckResult:
        """Executes one of exec, httpGet, tcpSocket, grpc, sleep."""
        try:
            async with asyncio.timeout(timeout):
                return await self._run(target, action, agent, timeout or 0.0)
        except TimeoutError:
            return _timed_out(target, action, timeout or 0.0)

    async def _run(self, target: CheckTarget, action: JsonView, agent: str, timeout: float) -> CheckResult:
        if action.get("exec") is not None:
            return await self._exec(target, action["exec"])
        if action.get("sleep") is not None:
            await self._clock.sleep(float(action["sleep"].get("seconds", 0)))
            return CheckResult(True)
        try:
            if action.get("httpGet") is not None:
                return await self._http(request_url(target, action["httpGet"]), action["httpGet"], agent)
            if action.get("tcpSocket") is not None:
                host = action["tcpSocket"].get("host") or target.address
                return await _tcp(host, port_of(target.spec, action["tcpSocket"]["port"]))
            if action.get("grpc") is not None:
                port_of(target.spec, action["grpc"]["port"])
                return await _grpc(target.address, action["grpc"], timeout)
        except LookupError as error:
            return CheckResult(None, str(error))
        except (ValueError, OverflowError):
            # A host that is neither a name nor an address cannot be reached, as for the dialler of a kubelet.
            return CheckResult(False, f"dial tcp: lookup {ascii(_host(target, action))}: no such host")
        return CheckResult(None, f"missing handler for {target.pod.name}_{target.pod.namespace}({target.pod.uid}):{target.container}")

    async def _exec(self, target: CheckTarget, action: JsonView) -> CheckResult:
        if not isinstance(self._provider, SupportsExec):
            return CheckResult(None, "the provider of this node does not support exec; use an httpGet, tcpSocket or grpc action")
        captured = Captured()
        try:
            code = await self._provider.exec(target.pod, target.container, list(action.get("command") or ()), captured)
        except ProviderError as error:
            return CheckResult(None, str(error))
        except OSError as error:
            return CheckResult(None, error.strerror or "failed to run the command")
        message = f"command '{' '.join(action.get('command') or ())}' exited with {code}: {captured.errors}"
        return CheckResult(code == 0, captured.text, error=message if code else "")

    async def _http(self, url: URL, action: JsonView, agent: str) -> CheckResult:
        headers = {"User-Agent": _AGENT[agent], "Accept": "*/*"}
        for each in action.get("httpHeaders") or ():
            if each["name"].lower() == "accept" and not each.get("value"):
                headers.pop("Accept")
                continue
            headers = {name: value for name, value in headers.items() if name.lower() != each["name"].lower()}
            headers[each["name"]] = each.get("value", "")
        first, shown = url, _shown(url)
        try:
            for _ in range(_REDIRECTS):
                status, body, location = await self._get(url, headers)
                if status not in _MOVED or not location:
                    return _http_outcome(status, body)
                url = url.join(URL(location))
                if url.host != first.host:
                    return CheckResult(True, f"Probe terminated redirects, Response body: {body}", warning=True)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return CheckResult(False, f'Get "{shown}": {_cause(error, dialled=url)}')
        return CheckResult(False, f'Get "{shown}": stopped after {_REDIRECTS} redirects')

    async def _get(self, url: URL, headers: Mapping[str, str]) -> tuple[int, str, str]:
        if self._session is None:
            # As a kubelet: no connection is used twice, and a container's certificate is not verified.
            connector = aiohttp.TCPConnector(force_close=True, ssl=False, limit=0)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        async with self._session.get(url, headers=headers, allow_redirects=False) as response:
            body = await response.content.read(LONGEST)
            return response.status, body.decode(errors="replace"), response.headers.get("Location", "")


def _http_outcome(status: int, body: str) -> CheckResult:
    if 200 <= status < 400:
        return CheckResult(True, body)
    return CheckResult(False, f"HTTP probe failed with statuscode: {status}", answered=True)


def request_url(target: CheckTarget, action: JsonView) -> URL:
    """Returns the URL of a request. Raises LookupError when there is no such port, ValueError when the host cannot be part of a URL."""
    host = action.get("host") or target.address
    scheme = (action.get("scheme") or "HTTP").lower()
    path = action.get("path") or "/"
    port = port_of(target.spec, action["port"])
    # The host is set separately, so that nothing in it becomes a user, a path or a query.
    return URL(f"{scheme}://host{path if path.startswith('/') else f'/{path}'}").with_host(host).with_port(port)


def _shown(url: URL) -> str:
    """Formats the URL as a kubelet does: always with the port."""
    return f"{url.scheme}://{_authority(url.host or '', url.port)}{url.raw_path_qs}"


def _authority(host: str, port: int | None) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_of(container: JsonView, port: int | str) -> int:
    """Resolves a port number, or the name of a port of the container.

    Raises LookupError, also when the number is no valid port (ResolveContainerPort).
    """
    named = {each["name"]: each["containerPort"] for each in container.get("ports") or () if each.get("name")}
    if isinstance(port, str) and port not in named and not port.isdecimal():
        raise LookupError(f"couldn't find port: {port} in container {container.get('name', '')}")
    number = int(named.get(port, port) if isinstance(port, str) else port)
    if not 0 < number < 65536:
        raise LookupError(f"invalid port number: {number}")
    return number


def _host(target: CheckTarget, action: JsonView) -> str:
    """Returns the host of a request or connection."""
    asked: JsonView = action.get("httpGet") or action.get("tcpSocket") or {}
    return str(asked.get("host") or target.address)


async def _tcp(host: str, port: int) -> CheckResult:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        return CheckResult(False, f"dial tcp {_authority(host, port)}: {_cause(error)}")
    writer.close()
    return CheckResult(True)


async def _grpc(host: str, action: JsonView, timeout: float) -> CheckResult:
    service = action.get("service") or ""
    try:
        serving = await grpc.check(host, int(action["port"]), service)
    except ConnectionRefusedError:
        # A kubelet retries until its timeout.
        where = _authority(host, int(action["port"]))
        return CheckResult(False, f'timeout: failed to connect service "{where}" within {timeout:g}s: context deadline exceeded')
    except (OSError, EOFError, grpc.Refused) as error:
        return CheckResult(False, f'error: failed to connect service at "{_authority(host, int(action["port"]))}": {_cause(error)}')
    if not serving:
        return CheckResult(False, 'service unhealthy (responded with "NOT_SERVING")')
    return CheckResult(True)


def _timed_out(target: CheckTarget, action: JsonView, seconds: float) -> CheckResult:
    if action.get("exec") is not None:
        command = " ".join(action["exec"].get("command") or ())
        return CheckResult(False, f'command timed out: "{command}" timed out after {seconds:g}s')
    if action.get("httpGet") is not None:
        url = _shown(request_url(target, action["httpGet"]))
        return CheckResult(False, f'Get "{url}": context deadline exceeded (Client.Timeout exceeded while awaiting headers)')
    if action.get("tcpSocket") is not None:
        host, port = action["tcpSocket"].get("host") or target.address, port_of(target.spec, action["tcpSocket"]["port"])
        return CheckResult(False, f"dial tcp {_authority(host, port)}: i/o timeout")
    return CheckResult(False, f"timeout: health rpc did not complete within {seconds:g}s")


def _cause(error: Exception, *, dialled: URL | None = None) -> str:
    """Returns the message of a system call error, if there is one; `dialled` is named if the connection failed."""
    where = f"dial tcp {_authority(dialled.host or '', dialled.port)}: " if dialled is not None else ""
    for cause in (error, getattr(error, "os_error", None)):
        if isinstance(cause, ConnectionRefusedError):
            return f"{where}connect: connection refused"
        if isinstance(cause, OSError) and cause.errno in _UNREACHABLE:
            return f"{where}connect: {_UNREACHABLE[cause.errno]}"
    if isinstance(error, ConnectionResetError | aiohttp.ServerDisconnectedError):
        return "EOF"
    if isinstance(error, ssl.SSLError):
        return "TLS handshake failed"
    return str(error) or type(error).__name__
