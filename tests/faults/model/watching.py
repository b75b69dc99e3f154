"""Watch streams of the model: the body of a response, event by event.

Invariant: a stream delivers the events of one resource in the order of their versions, each at most once unless a schedule repeats it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec
from attrs import field, frozen

from tests.faults.model.kinds import Kind
from tests.faults.model.refusals import Refusal
from tests.faults.model.selectors import Check
from tests.faults.model.storage import Event, Key, Stored

BOOKMARK_EVERY: Final = 60.0
"""Seconds between bookmarks of an idle stream."""

_encode: Final = msgspec.json.Encoder().encode


@frozen
class WatchLine:
    """One event of a stream; `object` is JSON text."""

    type: str
    object: bytes = field(repr=False)
    version: int
    key: Key = ("", "")
    initial_end: bool = False

    @property
    def line(self) -> bytes:
        return b'{"type":"%b","object":%b}\n' % (self.type.encode(), self.object)


def bookmark(kind: Kind, version: int, *, initial_end: bool = False) -> WatchLine:
    """Returns a bookmark; with `initial_end` the one after the initial events (KEP-3157)."""
    metadata: dict[str, object] = {"resourceVersion": str(version)}
    if initial_end:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    body = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
    return WatchLine("BOOKMARK", _encode(body), version, initial_end=initial_end)


def lines_of(event: Event, check: Check | None, in_namespace: str) -> Iterator[WatchLine]:
    """Yields what a watch with this selector shows of an event: an object that no longer matches is DELETED, as it was before."""
    if in_namespace and event.key[0] != in_namespace:
        return
    old, new = event.old, event.new
    if check is not None:
        old = old if old is not None and check(old.body) else None
        new = new if new is not None and check(new.body) else None
    if new is not None:
        yield WatchLine("MODIFIED" if old is not None else "ADDED", new.whole, event.version, event.key)
    elif old is not None:
        yield WatchLine("DELETED", old.at(event.version).whole, event.version, event.key)


class Watch:
    """One stream, and its own `content` as the client reads it."""

    def __init__(self, kind: Kind, *, namespace: str, check: Check | None, path: str, user: str) -> None:
        self.kind = kind
        self.namespace = namespace
        self.path = path
        self.user = user
        self.content = self
        self.version = 0
        """Version of the last event or bookmark that was sent."""
        self.bookmarks = False
        self.ends_at: float | None = None
        """Time of the event loop at which the server closes the stream."""
        self.silence: float | None = None
        """Seconds after which the client gives up."""
        self.choose: Callable[[Watch, WatchLine], Iterable[WatchLine]] | None = None
        """Replaces events by what a schedule makes of them."""
        self.current: Callable[[], int] = lambda: 0
        """Returns the version of the server."""
        self._check = check
        self._lines: deque[WatchLine] = deque()
        self._closed = False
        self._error: BaseException | None = None
        self._paused_until = 0.0
        self._woken: asyncio.Future[None] | None = None

    def on_event(self, event: Event) -> None:
        """Handles a write of the resource."""
        if event.version > self.version:
            for line in lines_of(event, self._check, self.namespace):
                self.offer(line)

    def offer_initial(self, stored: Iterable[tuple[Key, Stored]]) -> None:
        """Sends the objects that exist as ADDED."""
        for key, each in stored:
            if (not self.namespace or key[0] == self.namespace) and (self._check is None or self._check(each.body)):
                self.offer(WatchLine("ADDED", each.whole, each.version, key))

    def offer(self, line: WatchLine) -> None:
        """Sends an event, or what the schedule makes of it."""
        for each in (line,) if self.choose is None else self.choose(self, line):
            self.send(each)

    def send(self, line: WatchLine) -> None:
        """Sends an event as it is."""
        if not self._closed:
            self._lines.append(line)
            self._wake()

    def refuse(self, refusal: Refusal) -> None:
        """Sends an ERROR event and closes the stream."""
        self.send(WatchLine("ERROR", _encode(refusal.status()), self.version))
        self.end()

    def pause(self, seconds: float) -> None:
        """Delivers nothing for a while; events keep their order."""
        self._paused_until = max(self._paused_until, asyncio.get_running_loop().time() + seconds)
        self._wake()

    def end(self) -> None:
        """Closes the stream after what was sent."""
        self._closed = True
        self._wake()

    def cut(self, error: BaseException) -> None:
        """Interrupts the stream; what was not read is lost."""
        self._lines.clear()
        self._closed, self._error = True, error
        self._wake()

    @property
    def pending(self) -> int:
        """Number of events that the client has not read yet."""
        return len(self._lines)

    @property
    def closed(self) -> bool:
        return self._closed

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def readany(self) -> bytes:
        """Returns what has arrived; nothing when the stream is closed. Raises TimeoutError after `silence` seconds without data."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        silent_at = now + self.silence if self.silence is not None else None
        bookmark_at = now + BOOKMARK_EVERY if self.bookmarks else None
        while True:
            now = loop.time()
            ready = now >= self._paused_until
            if ready and self._lines:
                return self._take()
            if self._error is not None:
                raise self._error
            if ready and self._closed:
                return b""
            if self.ends_at is not None and now >= self.ends_at and not self._closed:
                self.end()
                continue
            if silent_at is not None and now >= silent_at:
                raise TimeoutError
            if ready and bookmark_at is not None and now >= bookmark_at and not self._closed:
                bookmark_at = None
                if self.current() > self.version:
                    self.offer(bookmark(self.kind, self.current()))
                continue
            due = [self._paused_until if not ready else None, silent_at, bookmark_at, None if self._closed else self.ends_at]
            await self._wait(loop, min((each for each in due if each is not None), default=None))

    async def _wait(self, loop: asyncio.AbstractEventLoop, until: float | None) -> None:
        self._woken = loop.create_future()
        timer = loop.call_at(until, self._wake) if until is not None else None
        try:
            await self._woken
        finally:
            self._woken = None
            if timer is not None:
                timer.cancel()

    def _take(self) -> bytes:
        taken, self._lines = self._lines, deque()
        self.version = max(self.version, taken[-1].version)
        return b"".join(line.line for line in taken)
