"""IP addresses that the virtual nodes publish.

Invariant: none is a wildcard, and each is of a family that is listened on, so a published address can be dialled.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from urllib.parse import urlsplit

from vkubelet.errors import Unavailable

_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
_OTHER = {socket.AF_INET: socket.AF_INET6, socket.AF_INET6: socket.AF_INET}


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
