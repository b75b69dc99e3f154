"""One watch stream: bytes to lines to events.

Invariant: a stream yields events in the order of the server, then stops or raises; it never lists, resumes or skips by itself.
"""

import random
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

import aiohttp

from vkubelet.api.codec import WatchEvent
from vkubelet.api.objects import KubeObject, Resource
from vkubelet.client.responses import Requested, to_event
from vkubelet.client.transport import Call, Transport, chunks
from vkubelet.errors import ServerError, Unreachable

T = TypeVar("T", bound=KubeObject)

# The server closes the stream after that many seconds, spread so that watches do not move between API servers all at once.
_SHORTEST, _LONGEST = 300, 600

LONGEST_EVENT = 64 << 20
"""Bytes of one event."""


class LineSplitter:
    """Splitter of chunks into lines of any length, without copying a long line again for each of its chunks."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.held = 0
        """Bytes of the incomplete line."""

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """Returns the complete lines, without their line breaks and without empty ones."""
        first, newline, rest = chunk.partition(b"\n")
        if not newline:
            self._parts.append(chunk)
            self.held += len(chunk)
            return ()
        self._parts.append(first)
        lines = [b"".join(self._parts), *rest.split(b"\n")]
        last = lines.pop()
        self._parts = [last] if last else []
        self.held = len(last)
        return [line for line in lines if line.strip()]

    @property
    def pending(self) -> bool:
        """Whether a line is incomplete."""
        return bool(b"".join(self._parts).strip())


def watch_params(since: str, *, initial: bool) -> list[tuple[str, str]]:
    """Returns the query of a watch; with `initial` the current objects come first, then a bookmark that marks their completion
    (KEP-3157)."""
    params = [("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", str(random.randint(_SHORTEST, _LONGEST)))]
    if since or initial:
        params.append(("resourceVersion", since))
    if initial:
        params += [("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")]
    return params


async def watch(transport: Transport, call: Call, resource: Resource[T], *, requested: Requested) -> AsyncGenerator[WatchEvent[T], None]:
    """Yields the events of one stream; returns when the server closes it.

    Raises Expired (also as the first response), another ApiError (also for an incomplete event), or Unreachable when the stream is
    interrupted or silent for too long.
    """
    timeouts = transport.connection.timeouts
    timeout = aiohttp.ClientTimeout(total=None, connect=timeouts.reach, sock_connect=timeouts.connect, sock_read=timeouts.silence)
    splitter = LineSplitter()
    async with transport.open(call, timeout) as response:
        async for chunk in chunks(response, call.attempt):
            for line in splitter.feed(chunk):
                yield to_event(resource, line, requested)
            if splitter.held > LONGEST_EVENT:
                raise ServerError(call.attempt, f"the server sent an event of more than {LONGEST_EVENT} bytes")
    if splitter.pending:
        raise Unreachable(call.attempt, "the stream was cut inside an event")
