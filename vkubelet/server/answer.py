"""Streamed responses: forwards chunks as they come from a provider to a caller that may be slow or disconnect.

Invariant: when the provider or the caller stops first, the other one is notified; an incomplete response is always recognisable as such.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import struct
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from aiohttp import HttpVersion11, web

from vkubelet.clock import Clock
from vkubelet.errors import VKubeletError
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

HEADERS_WITHIN = 1.0
"""Seconds of silence after which the headers are sent, so that no proxy takes an idle stream for a dead server; until then an error
still gets its status code."""

_CLOSE_WITHIN = 2.0
TEXT = "text/plain; charset=utf-8"
_FIRST_LOOK, _LONGEST_LOOK = 0.005, 0.25


async def streamed(request: web.Request, chunks: AsyncIterator[bytes], *, clock: Clock, content_type: str = TEXT) -> web.StreamResponse:
    """Forwards all chunks. An error before the first byte is raised; a later one aborts the connection."""
    answer = _Answer(request, content_type)
    failed: VKubeletError | web.HTTPException | None = None
    async with asyncio.TaskGroup() as group:
        opener = group.create_task(_open_in_time(answer, clock))
        try:
            async with closing(chunks):
                async for chunk in chunks:
                    await answer.write(chunk)
            await answer.end()
        except (VKubeletError, web.HTTPException) as error:
            failed = error
        except _CallerLeft:
            # Between two chunks; only the stream had to be closed.
            log.debug("stream left")
        finally:
            opener.cancel()
            answer.break_off()
    if failed is not None:
        if not answer.begun:
            raise failed
        with bind(error=str(failed)):
            log.warning("stream broken off")
    return answer.response


async def _open_in_time(answer: _Answer, clock: Clock) -> None:
    await clock.sleep(HEADERS_WITHIN)
    try:
        await answer.begin()
    except _CallerLeft:
        # The next write of the stream detects it as well.
        log.debug("stream left")


class _CallerLeft(Exception):
    """The caller has disconnected. Not a ConnectionResetError, which may be one of the provider's backend."""


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except ConnectionResetError as error:
        raise _CallerLeft from error


class _Answer:
    """A response without a length, in chunks from HTTP/1.1 on, that starts with its first byte, or on request. Raises _CallerLeft."""

    def __init__(self, request: web.Request, content_type: str) -> None:
        self._request = request
        self._lock = asyncio.Lock()
        self._ended = False
        self.response = web.StreamResponse(headers={"Content-Type": content_type})
        if request.version < HttpVersion11:
            # Without chunks only a closed connection shows that the body is complete (RFC 9112, section 6.3).
            self.response.force_close()

    @property
    def begun(self) -> bool:
        return self.response.prepared

    async def begin(self) -> None:
        """Sends the headers."""
        async with self._lock:
            if not self.begun:
                with _writing():
                    await self.response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        """Writes the data to the socket now, and waits while the caller is slow."""
        await self.begin()
        with _writing():
            await self.response.write(data)

    async def end(self) -> None:
        await self.begin()
        with _writing():
            await self.response.write_eof()
        self._ended = True

    def break_off(self) -> None:
        """Closes without the last chunk, which the caller sees as unexpected EOF; does nothing before the first byte or after
        completion."""
        if self.begun and not self._ended and self._request.transport is not None:
            self._request.transport.abort()


@asynccontextmanager
async def closing(stream: AsyncIterator[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """Closes the stream on exit: a provider may return any iterator, and a generator must not wait for the garbage collector."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            try:
                async with asyncio.timeout(_CLOSE_WITHIN):
                    await close()
            except TimeoutError:
                log.warning("stream did not close in time")


# --- What the client has not received yet, which the kernel knows and asyncio does not report ---------------------------------------------


def undelivered(transport: asyncio.WriteTransport) -> int:
    """Returns the bytes written and not yet acknowledged; above TLS this is a lower bound, but zero only when there are none."""
    waiting = transport.get_write_buffer_size()
    connection = transport.get_extra_info("socket")
    if waiting or connection is None or transport.is_closing():
        return waiting
    try:
        # For a socket this is SIOCOUTQ. Below TLS is one more buffer; it is only used once the kernel's is full.
        queued: int = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        return queued
    except OSError:
        return 0


async def until_delivered(transport: asyncio.WriteTransport | None, clock: Clock, *, within: float) -> None:
    """Waits for a slow client: closing a TLS connection leaves it only a moment to read the rest."""
    end = clock.monotonic() + within
    pause = _FIRST_LOOK
    while transport is not None and not transport.is_closing() and undelivered(transport) and clock.monotonic() < end:
        await clock.sleep(pause)
        pause = min(_LONGEST_LOOK, pause * 2)
