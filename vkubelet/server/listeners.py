"""TLS listeners, one port per node, that all feed one HTTP server; and the addresses and ports that the nodes publish.

Invariant: a port serves one node at a time; a connection that outlives its listener belongs to the node that has the port now, or to none.
"""

import asyncio
import errno
import ipaddress
import logging
import resource
import socket
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit
from zlib import crc32

from attrs import frozen

from vkubelet.control.controller import Isolation
from vkubelet.errors import SettingsError, Unavailable
from vkubelet.logformat import bind
from vkubelet.server.settings import LimitSettings
from vkubelet.server.strangers import Strangers, kept_back, most_strangers
from vkubelet.server.takeover import Connection
from vkubelet.server.tls import ServingTls

log = logging.getLogger(__name__)

MAIN = ""
"""Used in place of a node's name for the port that serves the pods of all nodes."""

_GOODBYE, _BACKLOG = 5.0, 512
_AT_ONCE = 64
"""Connections accepted before other tasks run."""
_ACCEPT_RETRY = 1.0
_TAKEN = frozenset({errno.EADDRINUSE, errno.EACCES})
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
_OTHER = {socket.AF_INET: socket.AF_INET6, socket.AF_INET6: socket.AF_INET}


@frozen
class Endpoint:
    """Published address and port of the kubelet server of one node; `also` are further addresses, of another family."""

    address: str
    port: int
    also: tuple[str, ...] = ()


class Listeners:
    """Open listeners; use as `async with listeners`. `serve` makes the protocol of one connection.

    Connections are accepted here and not by `asyncio.loop.create_server`, which accepts all that come and does not report a handshake that
    fails: so each one counts from its first moment.
    """

    def __init__(self, serve: Callable[[], Connection], tls: ServingTls, *, bind_address: str, limits: LimitSettings) -> None:
        self.strangers = Strangers(most_strangers(limits.unauthenticated_connections), self._accept_again)
        self._limits = limits
        self._waiting: set[socket.socket] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._handshakes = asyncio.TaskGroup()
        self._isolated = Isolation("connections")
        self._shaking: set[asyncio.Task[None]] = set()
        self._serve = serve
        self._tls = tls
        self._bind_address = bind_address
        self._servers: dict[str, tuple[socket.socket, int]] = {}
        self._nodes: dict[int, str] = {}
        self._sharing: set[str] = set()
        self.sole: str | None = None
        """Node that uses the main port exclusively."""
        self._opening = asyncio.Lock()
        self._told_of_limit = False

    async def __aenter__(self) -> Self:
        await self._handshakes.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close_all()
        for task in self._shaking:
            task.cancel()
        await self._handshakes.__aexit__(None, None, None)

    def node_of(self, port: int) -> str | None:
        """Returns the node that has this port, MAIN for the main port, None for none."""
        node = self._nodes.get(port)
        return self.sole if node == MAIN and self.sole is not None else node

    def port_of(self, node: str) -> int | None:
        found = self._servers.get(MAIN if node == self.sole else node)
        return found[1] if found else None

    @property
    def sharing(self) -> bool:
        """Whether a node shares the main port."""
        return bool(self._sharing)

    def shares(self, node: str) -> bool:
        return node in self._sharing

    def share(self, node: str) -> int:
        """Shares the main port, which is open, with `node`; returns its number."""
        self._sharing.add(node)
        return self._servers[MAIN][1]

    def give_main(self, node: str) -> int:
        """Assigns the main port, which is open, to `node`, the only one of the process; returns its number."""
        self.sole = node
        return self._servers[MAIN][1]

    def take_main(self, node: str) -> None:
        """Serves all nodes at the main port again; does nothing unless `node` uses it exclusively."""
        if node == self.sole:
            self.sole = None

    async def open(self, node: str, ports: Iterable[int]) -> int:
        """Listens for `node` on the first free one of `ports`; returns that port, or the one that the node already has.

        Raises Unavailable when all are taken, SettingsError when listening on the address fails for all of them.
        """
        async with self._opening:
            open_already = self.port_of(node)
            if open_already is not None:
                return open_already
            if node != MAIN:
                self._check_limit()
            for port in ports:
                server = None if port in self._nodes else self._listen(port)
                if server is not None:
                    port = int(server.getsockname()[1])
                    self._servers[node] = (server, port)
                    self._nodes[port] = node
                    return port
        raise Unavailable(f"no free port for {node or 'the main listener'}; extend server.port_first to server.port_last", retry_after=10.0)

    def close(self, node: str) -> None:
        """Stops accepting connections for a node; open ones continue. Does nothing for a node that is not open."""
        self._sharing.discard(node)
        self.take_main(node)
        server, port = self._servers.pop(node, (None, 0))
        if server is not None:
            asyncio.get_running_loop().remove_reader(server)
            self._waiting.discard(server)
            server.close()
            del self._nodes[port]

    def close_all(self) -> None:
        for node in [*self._servers, *self._sharing]:
            self.close(node)

    def _check_limit(self) -> None:
        """Raises Unavailable when one more listener would take the descriptors that connections need."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY or len(self._servers) < limit - kept_back(limit):
            return
        text = f"a limit of {limit} open files is too low for more than {len(self._servers)} ports; raise `nofile` of the process"
        if not self._told_of_limit:
            self._told_of_limit = True
            log.warning("no ports for further nodes: %s", text)
        raise Unavailable(text, retry_after=10.0)

    def _listen(self, port: int) -> socket.socket | None:
        try:
            server = _bound(self._bind_address, port)
        except OSError as error:
            if error.errno in _TAKEN:
                return None
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise Unavailable("too many open files; raise the limit `nofile` of the process", retry_after=10.0) from error
            if self._servers:
                raise Unavailable(f"cannot listen on {self._bind_address} now ({error.strerror})", retry_after=10.0) from error
            raise SettingsError(
                "server.bind_address",
                f"cannot listen on {self._bind_address} ({error.strerror}); set 0.0.0.0",
            ) from error
        server.setblocking(False)
        asyncio.get_running_loop().add_reader(server, self._accept, server)
        return server

    # --- Accepting -------------------------------------------------------------------------------------------------------------------

    def _accept(self, server: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            if not self.strangers.has_room():
                self._wait(server)
                return
            try:
                client, _ = server.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._cannot_accept(error)
                self._wait(server)
                return
            client.setblocking(False)
            self._begin(client)

    def _begin(self, client: socket.socket) -> None:
        """Counts the connection at once: its task starts only when all that wait at all ports were accepted."""
        connection = self._serve()
        task = self._handshakes.create_task(self._connect(client, connection), name="TLS handshake")
        shaking = _Handshake(task)
        self._shaking.add(task)
        self.strangers.add(shaking)

        def end(_: asyncio.Task[None]) -> None:
            self._shaking.discard(task)
            self.strangers.settle(shaking)
            if not connection.made:
                client.close()

        task.add_done_callback(end)

    def _wait(self, server: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(server)
        self._waiting.add(server)

    def _cannot_accept(self, error: OSError) -> None:
        """Handles a failed accept, most likely without free descriptors: one attempt and one line a second, however many wait."""
        if self._retry is None:
            with bind(error=str(error)):
                log.warning("connections cannot be accepted")
            self._retry = asyncio.get_running_loop().call_later(_ACCEPT_RETRY, self._retry_accepting)

    def _retry_accepting(self) -> None:
        self._retry = None
        self._accept_again()

    def _accept_again(self) -> None:
        if self._retry is not None:
            return
        loop = asyncio.get_running_loop()
        while self._waiting:
            server = self._waiting.pop()
            loop.add_reader(server, self._accept, server)

    async def _connect(self, client: socket.socket, connection: Connection) -> None:
        """Completes the handshake; from then on the connection's protocol reports its close."""
        with self._isolated("TLS handshake"):
            try:
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection,
                    client,
                    ssl=self._tls.context,
                    ssl_handshake_timeout=self._limits.handshake_timeout,
                    ssl_shutdown_timeout=_GOODBYE,
                )
            except (OSError, RuntimeError, ValueError) as error:
                # Caused by the client, such as an invalid certificate: no more than a kubelet logs by default.
                with bind(error=str(error)):
                    log.debug("TLS handshake failed")


@frozen(eq=False)
class _Handshake:
    """A connection without a protocol yet."""

    task: asyncio.Task[None]

    def abort(self) -> None:
        self.task.cancel()


def _bound(address: str, port: int) -> socket.socket:
    """Creates a listening socket; that of `::` accepts IPv4 as well. asyncio would create it for IPv6 only."""
    ip = ipaddress.ip_address(address)
    if ip.version == 4:
        return socket.create_server((address, port), backlog=_BACKLOG)
    return socket.create_server((address, port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=ip.is_unspecified)


# --- Published addresses and ports --------------------------------------------------------------------------------------------------------


async def published_addresses(bind_address: str, api_url: str) -> tuple[str, ...]:
    """Returns the bind address, or if that is a wildcard the one from which `api_url` is reached.

    With `::` also returns that of the default route of the other family, where there is one. An API server on this machine is reached from
    a loopback address, which the node proxy refuses: then that of the default route is used, if there is one. Raises Unavailable when the
    name of the API server does not resolve or no route leads to it.
    """
    ip = ipaddress.ip_address(bind_address)
    if not ip.is_unspecified:
        return (bind_address,)
    parts = urlsplit(api_url)
    host = parts.hostname or ""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, parts.port or 443, type=socket.SOCK_DGRAM)
        usable = [each for each in found if ip.version == 6 or each[0] == socket.AF_INET]
        if not usable:
            raise Unavailable(f"{host} is reached over IPv6, but server.bind_address listens on IPv4 only; set it to '::'")
        family, _, _, _, target = usable[0]
        source = _source(family, target)
        if ipaddress.ip_address(source).is_loopback:
            source = _default_route(family) or source
    except OSError as error:
        raise Unavailable(f"no own address found from which {host} is reached ({error.strerror}); set server.node_address") from error
    other = _default_route(_OTHER[socket.AddressFamily(family)]) if ip.version == 6 else ""
    return (source, other) if other else (source,)


def _source(family: int, target: tuple[object, ...]) -> str:
    """Returns the source address for a target: connecting a datagram socket sends nothing, but selects the route."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _default_route(family: int) -> str:
    try:
        return _source(family, (_ELSEWHERE[socket.AddressFamily(family)], 9))
    except OSError:
        return ""


def ports_for(node: str, preferred: int | None = None, *, first: int, last: int) -> Iterator[int]:
    """Yields the ports to try, best first.

    The one that the Node publishes comes first if it is in the range, then all others from `first` to `last`, starting at the hash of the
    name and wrapping around.
    """
    if preferred is not None and first <= preferred <= last:
        yield preferred
    count = last - first + 1
    start = crc32(node.encode()) % count
    for step in range(count):
        port = first + (start + step) % count
        if port != preferred:
            yield port
