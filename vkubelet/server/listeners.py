"""Which port belongs to which node: TLS listeners that all feed one HTTP server, opened and closed while it runs.

Invariant: a port answers for one node at a time; a connection that outlives its listener belongs to whoever has the port now, or to nobody.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import resource
import socket
from collections.abc import Callable, Iterable

from attrs import frozen

from vkubelet.errors import SettingsError, Unavailable
from vkubelet.server.tls import ServingTls

log = logging.getLogger(__name__)

MAIN = ""
"""Stands for the node's name at the port that serves the pods of all nodes."""

_HANDSHAKE, _GOODBYE, _BACKLOG = 10.0, 5.0, 512
_KEPT_BACK, _KEPT_SHARE = 128, 8
"""So many descriptors, or one in so many of all, are left to connections: nodes that can not renew their Leases are worth nothing."""
_TAKEN = frozenset({errno.EADDRINUSE, errno.EACCES})


@frozen
class Endpoint:
    """Where the kubelet server of one node is reached; `also` are further addresses, of another family."""

    address: str
    port: int
    also: tuple[str, ...] = ()


class Listeners:
    """`serve` makes the protocol of one connection, as `asyncio.loop.create_server` wants it."""

    def __init__(self, serve: Callable[[], asyncio.Protocol], tls: ServingTls, *, bind_address: str) -> None:
        self._serve = serve
        self._tls = tls
        self._bind_address = bind_address
        self._servers: dict[str, tuple[asyncio.Server, int]] = {}
        self._nodes: dict[int, str] = {}
        self._sharing: set[str] = set()
        self.sole: str | None = None
        """The node that has the main port to itself."""
        self._opening = asyncio.Lock()
        self._told_of_limit = False

    def node_of(self, port: int) -> str | None:
        """The node that has this port, MAIN for the main port, None for nobody."""
        node = self._nodes.get(port)
        return self.sole if node == MAIN and self.sole is not None else node

    def port_of(self, node: str) -> int | None:
        found = self._servers.get(MAIN if node == self.sole else node)
        return found[1] if found else None

    @property
    def sharing(self) -> bool:
        """Some node has the main port as its own."""
        return bool(self._sharing)

    def shares(self, node: str) -> bool:
        return node in self._sharing

    def share(self, node: str) -> int:
        """Let `node` have the main port, which is open, beside others."""
        self._sharing.add(node)
        return self._servers[MAIN][1]

    def give_main(self, node: str) -> int:
        """Serve `node`, the only one of the process, at the main port, which is open."""
        self.sole = node
        return self._servers[MAIN][1]

    def take_main(self, node: str) -> None:
        """The main port serves all nodes again; nothing to do when `node` does not have it to itself."""
        if node == self.sole:
            self.sole = None

    async def open(self, node: str, ports: Iterable[int]) -> int:
        """Listen for `node` on the first of `ports` that is free; the port it has, if it has one.

        Raises Unavailable when all are taken, SettingsError when nothing can listen on the address at all.
        """
        async with self._opening:
            open_already = self.port_of(node)
            if open_already is not None:
                return open_already
            if node != MAIN:
                self._check_limit()
            for port in ports:
                server = None if port in self._nodes else await self._listen(port)
                if server is not None:
                    port = int(server.sockets[0].getsockname()[1])
                    self._servers[node] = (server, port)
                    self._nodes[port] = node
                    return port
        raise Unavailable(f"no free port for {node or 'the main listener'}", retry_after=10.0)

    def close(self, node: str) -> None:
        """Take no more connections; those that are open end by themselves. Nothing to do when it is not open."""
        self._sharing.discard(node)
        self.take_main(node)
        server, port = self._servers.pop(node, (None, 0))
        if server is not None:
            server.close()
            del self._nodes[port]

    def close_all(self) -> None:
        for node in [*self._servers, *self._sharing]:
            self.close(node)

    def _check_limit(self) -> None:
        """Raises Unavailable when one more listener would take the descriptors that connections need."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY or len(self._servers) < limit - max(_KEPT_BACK, limit // _KEPT_SHARE):
            return
        text = f"the process may have {limit} open files, too few for more than {len(self._servers)} ports; raise its limit `nofile`"
        if not self._told_of_limit:
            self._told_of_limit = True
            log.warning("no ports for further nodes: %s", text)
        raise Unavailable(text, retry_after=10.0)

    async def _listen(self, port: int) -> asyncio.Server | None:
        try:
            return await asyncio.get_running_loop().create_server(
                self._serve,
                sock=_bound(self._bind_address, port),
                ssl=self._tls.context,
                backlog=_BACKLOG,
                ssl_handshake_timeout=_HANDSHAKE,
                ssl_shutdown_timeout=_GOODBYE,
            )
        except OSError as error:
            if error.errno in _TAKEN:
                return None
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise Unavailable("too many open files; raise the limit `nofile` of the process", retry_after=10.0) from error
            if self._servers:
                raise Unavailable(f"can not listen on {self._bind_address} now ({error.strerror})", retry_after=10.0) from error
            raise SettingsError("server.bind_address", f"{self._bind_address} can not be listened on ({error.strerror})") from error


def _bound(address: str, port: int) -> socket.socket:
    """A listening socket; that of `::` takes IPv4 as well. asyncio would make it for IPv6 alone."""
    ip = ipaddress.ip_address(address)
    if ip.version == 4:
        return socket.create_server((address, port), backlog=_BACKLOG)
    return socket.create_server((address, port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=ip.is_unspecified)
