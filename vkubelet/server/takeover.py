"""Hijacks HTTP connections for another protocol, which aiohttp supports for WebSocket alone.

Between a transport and aiohttp's protocol is a Connection. It forwards everything, but hides from aiohttp what follows the head of a
request for SPDY: those bytes wait for the successor that hijacks the connection.

Invariant: once a connection is hijacked, aiohttp reads nothing from it, and is only notified when it is closed. Bytes that
are not HTTP cause a short response that does not name the server's software, and no log line.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, cast

from aiohttp import web

from vkubelet.server.settings import LimitSettings
from vkubelet.server.strangers import Strangers

LONGEST_HEAD = 128 * 1024
_HELD = 64 * 1024
_END = b"\r\n\r\n"
_UPGRADE = re.compile(rb"\r\nupgrade:[ \t]*([^\r\n]*)", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r\n", re.IGNORECASE)
_CONNECTION = re.compile(rb"\r\nconnection:[^\r\n]*upgrade", re.IGNORECASE)
_CODED = re.compile(rb"\r\ntransfer-encoding:|\ACONNECT ", re.IGNORECASE)
log = logging.getLogger(__name__)


class Session(Protocol):
    """A session that lasts longer than a request."""

    def stopping(self) -> None:
        """Handles the start of the server's stop: accept nothing new."""
        ...


class Successor(Session, Protocol):
    """Protocol that receives a hijacked connection; called like an asyncio.Protocol."""

    def data_received(self, data: bytes) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


class Heads:
    """Detector of a request for SPDY in what a client sends; of HTTP it only parses where a request stops. Pure.

    `upgrade`, `opaque` and `too_long` are the results: behind such a request, where this cannot parse further, or in a head of more than
    `longest` bytes. `complete` counts the heads that were read completely.
    """

    def __init__(self, longest: int = LONGEST_HEAD) -> None:
        self.upgrade = False
        self.opaque = False
        self.too_long = False
        self.complete = 0
        self._longest = longest
        self._head = bytearray()
        self._body = 0

    @property
    def begun(self) -> bool:
        """Whether a part of a head was read."""
        return bool(self._head)

    def feed(self, data: bytes) -> int:
        """Returns how many of these bytes belong to HTTP; less than all only when an upgrade was found."""
        at = 0
        while at < len(data) and not self.upgrade and not self.opaque and not self.too_long:
            if self._body:
                skipped = min(self._body, len(data) - at)
                self._body -= skipped
                at += skipped
            else:
                at = self._read_head(data, at)
        return at if self.upgrade else len(data)

    def _read_head(self, data: bytes, at: int) -> int:
        before = len(self._head)
        self._head += data[at:]
        end = self._head.find(_END, max(0, before - len(_END) + 1))
        if (len(self._head) if end < 0 else end + len(_END)) > self._longest:
            self.too_long, self._head = True, bytearray()
            return len(data)
        if end < 0:
            return len(data)
        end += len(_END)
        self.complete += 1
        self._judge(bytes(self._head[:end]))
        self._head = bytearray()
        return at + end - before

    def _judge(self, head: bytes) -> None:
        upgrade, length = _UPGRADE.search(head), _LENGTH.search(head)
        self._body = int(length[1]) if length else 0
        coded = _CODED.search(head) is not None
        wanted = upgrade is not None and b"spdy/3.1" in upgrade[1].lower() and _CONNECTION.search(head) is not None
        self.upgrade = wanted and not coded and not self._body
        self.opaque = not self.upgrade and (coded or upgrade is not None)


class Connection(asyncio.Protocol):
    """One connection of a client; `http` is aiohttp's protocol for it."""

    def __init__(self, http: web.RequestHandler, owner: Connections) -> None:
        self._http = http
        self._owner = owner
        self._heads = Heads(owner.limits.header_bytes)
        self._due: asyncio.TimerHandle | None = None
        self._admitted = False
        self._held: bytearray | None = None
        self._successor: Successor | None = None
        self._transport: asyncio.Transport | None = None
        self._ending = False
        self._lost = False

    # --- Called by the transport -------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._owner.strangers.add(self)
        self._time_head()
        self._http.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._successor is not None:
            self._successor.data_received(data)
        elif self._held is not None:
            self._hold(data)
        elif self._heads.opaque:
            self._http.data_received(data)
        else:
            self._watch(data)

    def eof_received(self) -> None:
        self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()
        if self._successor is not None:
            self._successor.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()
        if self._successor is not None:
            self._successor.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timing()
        self._owner.strangers.settle(self)
        if self._successor is not None:
            self._successor.connection_lost(exc)
        if not self._ending:
            # This cancels the handler, if it still runs.
            self._http.connection_lost(exc)
        self._lost = True

    # --- Before the upgrade ------------------------------------------------------------------------------------------------------------

    @property
    def made(self) -> bool:
        """Whether the TLS handshake is complete."""
        return self._transport is not None

    @property
    def goes_on(self) -> bool:
        """Whether further requests are served: one was allowed, and the start of the next one is known."""
        return self._admitted and not self._heads.opaque

    def admit(self) -> None:
        """Admits the connection, as a request was allowed: it no longer counts as a stranger."""
        self._admitted = True
        self._owner.strangers.settle(self)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _time_head(self) -> None:
        self._stop_timing()
        self._due = asyncio.get_running_loop().call_later(self._owner.limits.head_timeout, self.abort)

    def _stop_timing(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _watch(self, data: bytes) -> None:
        before = self._heads.complete
        https = self._heads.feed(data)
        if self._heads.too_long:
            self._refuse()
            return
        if self._heads.complete > before:
            self._stop_timing()
        if self._heads.begun and self._due is None:
            self._time_head()
        self._http.data_received(data[:https])
        if self._heads.upgrade:
            # In any case this is the last request that aiohttp serves here.
            self._http.close()
            self._held = bytearray()
            self._hold(data[https:])

    def _refuse(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(refusal(431, "Request Header Fields Too Large"))
            self._transport.close()

    def _hold(self, data: bytes) -> None:
        if self._held is not None and self._transport is not None:
            self._held += data
            if len(self._held) >= _HELD:
                self._transport.pause_reading()

    # --- The upgrade -------------------------------------------------------------------------------------------------------------------

    @property
    def transport(self) -> asyncio.Transport | None:
        """Transport to hijack; None when this request cannot be upgraded."""
        return self._transport if self._held is not None and self._successor is None else None

    @contextmanager
    def taken_over(self, successor: Successor, greeting: bytes) -> Iterator[None]:
        """Sends the greeting, forwards what followed the request, and from now on everything, to `successor`."""
        if self.transport is None or self._held is None:
            raise RuntimeError("this connection cannot be hijacked: aiohttp has already read from it")
        held, self._held = bytes(self._held), bytearray()
        self._http.keep_alive(False)
        self.transport.write(greeting)
        if len(held) >= _HELD:
            self.transport.resume_reading()
        self._successor = successor
        if held:
            successor.data_received(held)
        with self._owner.holding(successor):
            try:
                yield
            finally:
                if self._ending and self._lost:
                    # Deferred, so that a handler that returns now is not cancelled any more.
                    asyncio.get_running_loop().call_soon(self._http.connection_lost, None)
                self._ending = False

    def ending(self) -> None:
        """Marks that the successor is closing: a client that disconnects now does not cancel the handler."""
        self._ending = True


class Connections:
    """Connections of one server: strangers, and hijacked sessions."""

    def __init__(self, strangers: Strangers, limits: LimitSettings) -> None:
        self.strangers = strangers
        self.limits = limits
        self._held: dict[Session, asyncio.Task[object]] = {}

    def protocol(self, http: web.RequestHandler) -> Connection:
        """Returns the protocol for a new connection."""
        return Connection(http, self)

    @contextmanager
    def holding(self, session: Session) -> Iterator[None]:
        """Registers a session of the current task, for the duration of the context."""
        task = asyncio.current_task()
        assert task is not None
        self._held[session] = task
        try:
            yield
        finally:
            del self._held[session]

    async def stop(self, *, within: float) -> None:
        """Notifies all sessions that the server stops; cancels those not closed in time, and waits as long again."""
        for session in list(self._held):
            session.stopping()
        late = set(self._held.values())
        if late:
            _, late = await asyncio.wait(late, timeout=within)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=within)


def connection_of(request: web.BaseRequest) -> Connection | None:
    """Returns the connection of a request; None when it is not one of a listener."""
    protocol = request.transport.get_protocol() if request.transport is not None else None
    return protocol if isinstance(protocol, Connection) else None


# --- aiohttp's protocol for one connection ------------------------------------------------------------------------------------------------


class Http(web.RequestHandler):
    """Protocol that refuses unparsable requests as Go's server does."""

    def handle_error(self, request: web.BaseRequest, status: int = 500, *details: BaseException | str | None) -> web.StreamResponse:
        if status >= 500 or request.writer.output_size > 0 or self.transport is None:
            return super().handle_error(request, status, *details)  # type: ignore[arg-type]
        log.debug("malformed request refused")
        self.transport.write(refusal(status, "Bad Request"))
        sent = AlreadySent(status=status)
        sent.force_close()
        return sent


class AlreadySent(web.StreamResponse):
    """Response for aiohttp, which sends what a handler returns, when everything was sent before."""

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


def refusal(status: int, reason: str) -> bytes:
    """Returns the response to a request that was not read."""
    lines = (f"HTTP/1.1 {status} {reason}", "Content-Type: text/plain; charset=utf-8", "Connection: close", "", f"{status} {reason}")
    return "\r\n".join(lines).encode()
