"""Server-sent events: a browser learns that a page may have changed, and loads it again.

Invariant: an event contains a number and no data of a cluster, so that a page remains the only thing that is rendered.
"""

import asyncio
from collections import Counter

from aiohttp import web
from attrs import define, field

from kubeocean.dashboard.observer import View

MOST_STREAMS, MOST_OF_A_READER = 64, 16
SILENCE = 15.0
"""Seconds after which a comment is sent, so that a closed connection is noticed."""
_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}


@define
class LiveUpdates:
    """The open streams of a server."""

    _open: Counter[View] = field(factory=Counter)

    async def serve(self, request: web.Request, view: View) -> web.StreamResponse:
        """Sends an event for each change until the browser leaves."""
        if self._open.total() >= MOST_STREAMS or self._open[view] >= MOST_OF_A_READER:
            raise web.HTTPServiceUnavailable(text="too many open pages; close some and reload this one")
        response = web.StreamResponse(headers=_HEADERS)
        self._open[view] += 1
        try:
            await response.prepare(request)
            await _send(response, view)
        except ConnectionError:
            # The browser has left.
            pass
        finally:
            self._open[view] -= 1
            self._open += Counter()
        return response


async def _send(response: web.StreamResponse, view: View) -> None:
    version = view.version
    while True:
        try:
            async with asyncio.timeout(SILENCE):
                version = await view.after(version)
            await response.write(f"event: change\ndata: {version}\n\n".encode())
        except TimeoutError:
            await response.write(b": open\n\n")
