"""Server-sent events: a browser learns that a page may have changed, and loads it again.

Invariant: an event contains a number and no data of a cluster, so that a page remains the only thing that is rendered.
"""

import asyncio

from aiohttp import web
from attrs import define

from kubeocean.dashboard.observer import Observer

MOST_STREAMS = 64
SILENCE = 15.0
"""Seconds after which a comment is sent, so that a closed connection is noticed."""
_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}


@define
class LiveUpdates:
    """The open streams of a server."""

    _open: int = 0

    async def serve(self, request: web.Request, observer: Observer) -> web.StreamResponse:
        """Sends an event for each change until the browser leaves."""
        if self._open >= MOST_STREAMS:
            raise web.HTTPServiceUnavailable(text="too many open pages; close some and reload this one")
        response = web.StreamResponse(headers=_HEADERS)
        self._open += 1
        try:
            await response.prepare(request)
            await _send(response, observer)
        except ConnectionError:
            # The browser has left.
            pass
        finally:
            self._open -= 1
        return response


async def _send(response: web.StreamResponse, observer: Observer) -> None:
    version = observer.version
    while True:
        try:
            async with asyncio.timeout(SILENCE):
                version = await observer.after(version)
            await response.write(f"event: change\ndata: {version}\n\n".encode())
        except TimeoutError:
            await response.write(b": open\n\n")
