"""Which IP address the virtual nodes publish.

Invariant: it is never a wildcard, so what a Node says can be dialled.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from urllib.parse import urlsplit

from vkubelet.errors import Unavailable

_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


async def published_address(bind_address: str, api_url: str) -> str:
    """The address listened on, or if that is a wildcard the one from which `api_url` is reached.

    An API server on this machine is reached from a loopback address, which the node proxy refuses: then that of the default route is
    taken, if there is one. Raises Unavailable when the name of the API server does not resolve or no route leads to it.
    """
    if not _is_wildcard(bind_address):
        return bind_address
    parts = urlsplit(api_url)
    host = parts.hostname or ""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, parts.port or 443, type=socket.SOCK_DGRAM)
        family, _, _, _, target = found[0]
        source = _source(family, target)
        if ipaddress.ip_address(source).is_loopback:
            return _default_route(family) or source
    except OSError as error:
        raise Unavailable(f"no own address found from which {host} is reached ({error.strerror}); set server.node_address") from error
    return source


def _is_wildcard(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return False


def _source(family: int, target: tuple[object, ...]) -> str:
    """Connecting a datagram socket sends nothing, but chooses the route."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _default_route(family: int) -> str:
    try:
        return _source(family, (_ELSEWHERE[socket.AddressFamily(family)], 9))
    except OSError:
        return ""
