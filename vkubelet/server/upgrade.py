"""Negotiates the protocol of an upgrade: SPDY/3.1 or WebSocket, and the subprotocol version. Pure.

Invariant: the response to an invalid request has the kubelet's code and text; and a subprotocol that carries a token is never offered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiohttp import hdrs, web
from multidict import CIMultiDict, MultiMapping

VERSION_HEADER = "X-Stream-Protocol-Version"
ACCEPTED_HEADER = "X-Accepted-Stream-Protocol-Versions"


def wants_websocket(method: str, headers: Mapping[str, str]) -> bool:
    """Checks whether the client asks for WebSocket rather than SPDY. Raises web.HTTPException when it asks for neither, or not with GET."""
    upgrade = headers.get(hdrs.UPGRADE, "").strip().lower()
    if "upgrade" not in headers.get(hdrs.CONNECTION, "").lower() or not upgrade:
        raise web.HTTPBadRequest(text="Upgrade request required")
    if upgrade == "websocket":
        if method != hdrs.METH_GET:
            raise web.HTTPMethodNotAllowed(method, [hdrs.METH_GET], text="bad method")
        return True
    if "spdy/3.1" not in upgrade:
        raise web.HTTPBadRequest(text="unable to upgrade: missing upgrade headers in request")
    return False


def spdy_protocol(headers: MultiMapping[str], supported: Sequence[str]) -> str:
    """Returns the first of the client's protocols that is supported; they come on separate lines, or separated by commas. Raises 400 and
    403."""
    lines = headers.getall(VERSION_HEADER, [])
    offered = _listed(lines)
    if not offered:
        raise web.HTTPBadRequest(text=f"unable to upgrade: {VERSION_HEADER} is required")
    chosen = next((name for name in offered if name in supported), None)
    if chosen is None:
        raise web.HTTPForbidden(
            text=f"unable to upgrade: unable to negotiate protocol: client supports [{' '.join(lines)}], "
            f"server accepts [{' '.join(supported)}]",
            headers=CIMultiDict((ACCEPTED_HEADER, name) for name in supported),
        )
    return chosen


def websocket_protocol(headers: Mapping[str, str], supported: Sequence[str]) -> str:
    """Returns the first of the client's subprotocols that is supported, "" when it names none. Raises 403."""
    offered = _listed([headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "")])
    if not offered:
        return ""
    chosen = next((name for name in offered if name in supported), None)
    if chosen is None:
        # The client's offer may contain a token and is not repeated.
        raise web.HTTPForbidden(text=f"requested protocol(s) are not supported; supports [{' '.join(supported)}]")
    return chosen


def _listed(lines: Sequence[str]) -> list[str]:
    return [name.strip() for line in lines for name in line.split(",") if name.strip()]
