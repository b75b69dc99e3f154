"""Connections that begin as HTTP and go on as something else, which aiohttp offers for WebSocket alone.

Between a transport and aiohttp's protocol sits a Connection. It passes everything on, but lets aiohttp see nothing behind the head of a
request for SPDY: those bytes wait for whoever takes the connection over.

Invariant: once a connection is taken over, aiohttp reads nothing of it, and hears of it only that it is lost.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, cast

from aiohttp import web

from vkubelet.server.http import refusal
from vkubelet.server.settings import LimitSettings
from vkubelet.server.strangers import Strangers

LONGEST_HEAD = 128 * 1024
_HELD = 64 * 1024
_END = b"\r\n\r\n"
_UPGRADE = re.compile(rb"\r\nupgrade:[ \t]*([^\r\n]*)", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r\n", re.IGNORECASE)
_CONNECTION = re.compile(rb"\r\nconnection:[^\r\n]*upgrade", re.IGNORECASE)
_CODED = re.compile(rb"\r\ntransfer-encoding:|\ACONNECT ", re.IGNORECASE)


class Session(Protocol):
    """What lasts longer than a request."""

    def stopping(self) -> None:
        """The server begins to stop: take nothing new."""
        ...


class Successor(Session, Protocol):
    """Who takes a connection over; called as an asyncio.Protocol is."""

    def data_received(self, data: bytes) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


class Heads:
    """Finds the request for SPDY in what a client sends, without reading more of HTTP than where a request ends. Pure.

    `upgrade`, `opaque` and `too_long` tell how it ended: behind such a request, where this does not know how to go on, or in a head of more
    than `longest` bytes. `complete` counts the heads that were read to their end.
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
        """A part of a head was read."""
        return bool(self._head)

    def feed(self, data: bytes) -> int:
        """How many of these bytes are HTTP's; fewer than there are only when an upgrade was found."""
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

    # --- As the transport calls it -----------------------------------------------------------------------------------------------------

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

    # --- Before the takeover -----------------------------------------------------------------------------------------------------------

    @property
    def made(self) -> bool:
        """The TLS handshake is complete."""
        return self._transport is not None

    @property
    def goes_on(self) -> bool:
        """Whether further requests are served: one was allowed, and where the next one begins is known."""
        return self._admitted and not self._heads.opaque

    def admit(self) -> None:
        """A request was allowed: this connection counts no longer as that of a stranger."""
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
            # Whatever the answer will be, this is the last request that aiohttp serves here.
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

    # --- The takeover ------------------------------------------------------------------------------------------------------------------

    @property
    def transport(self) -> asyncio.Transport | None:
        """To be taken over; None when this request can not be upgraded."""
        return self._transport if self._held is not None and self._successor is None else None

    @contextmanager
    def taken_over(self, successor: Successor, greeting: bytes) -> Iterator[None]:
        """Send the greeting, pass on what came behind the request, and from now on everything to `successor`."""
        if self.transport is None or self._held is None:
            raise RuntimeError("this connection can not be taken over")
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
                    # A moment later, so that a handler which returns now is not cancelled any more.
                    asyncio.get_running_loop().call_soon(self._http.connection_lost, None)
                self._ending = False

    def ending(self) -> None:
        """The successor is saying good-bye: a client that leaves now does not cancel the handler."""
        self._ending = True


class Connections:
    """Those of one server: strangers, and sessions that were taken over."""

    def __init__(self, strangers: Strangers, limits: LimitSettings) -> None:
        self.strangers = strangers
        self.limits = limits
        self._held: dict[Session, asyncio.Task[object]] = {}

    def protocol(self, http: web.RequestHandler) -> Connection:
        """For a new connection."""
        return Connection(http, self)

    @contextmanager
    def holding(self, session: Session) -> Iterator[None]:
        """By the current task, for as long as this lasts."""
        task = asyncio.current_task()
        assert task is not None
        self._held[session] = task
        try:
            yield
        finally:
            del self._held[session]

    async def stop(self, *, within: float) -> None:
        """Tell all that the server stops; cancel those that have not ended in time, and wait as long again."""
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
    """The connection a request came by; None when it is not one of a listener."""
    protocol = request.transport.get_protocol() if request.transport is not None else None
    return protocol if isinstance(protocol, Connection) else None
