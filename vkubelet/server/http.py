"""aiohttp's protocol for one connection, with the responses sent before there is a request.

Invariant: bytes that are not HTTP cause a short response that does not name the server's software, and no log line.
"""

from __future__ import annotations

import logging

from aiohttp import web

log = logging.getLogger(__name__)


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
