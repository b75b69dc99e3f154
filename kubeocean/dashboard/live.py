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
"""Seconds after which a comment is sent, so that a connection that broke without being closed is noticed."""
CHECKED = 1.0
"""Seconds after which the stream of a browser that has left no longer counts: a reader opens many pages one after the other."""
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
            await _send(request, response, view)
        except ConnectionError:
            # The browser has left.
            pass
        finally:
            self._open[view] -= 1
            self._open += Counter()
        return response


def has_left(request: web.Request) -> bool:
    """Checks whether the browser closed the connection."""
    return request.transport is None or request.transport.is_closing()


async def _send(request: web.Request, response: web.StreamResponse, view: View) -> None:
    version, silent = view.version, 0.0
    while not has_left(request):
        try:
            async with asyncio.timeout(CHECKED):
                version = await view.after(version)
        except TimeoutError:
            silent += CHECKED
            if silent < SILENCE:
                continue
            text = b": open\n\n"
        else:
            text = f"event: change\ndata: {version}\n\n".encode()
        silent = 0.0
        await response.write(text)
