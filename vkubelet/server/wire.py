"""Connection below a session: the order of writes, when reading is paused, and how to close without losing sent data.

Invariant: at most one write waits for a slow peer, what the peer can make us send without reading is limited, and after `close` or `leave`
nothing is written.
"""

import asyncio
import math
import socket
from collections.abc import Callable
from typing import Final

from vkubelet.clock import Clock

WRITE_BUFFER: Final = 256 * 1024
UNREAD_ANSWERS: Final = 64 * 1024

_BURST = 128 * 1024
_CUT_AFTER = 2.0
_STALLED = 10.0
_LINGER = 1.0
_LOOK_EVERY = 0.5
_ESTABLISHED = 1


class Wire:
    """Wire of one session, which forwards the transport's callbacks. The writer acquires `turn`, so that all get theirs.

    `probe` is sent periodically while nothing is read; it must be something that no peer responds to, as the response might wait for us to
    read.
    """

    def __init__(self, transport: asyncio.Transport, clock: Clock, *, probe: bytes = b"") -> None:
        self.turn = asyncio.Lock()
        self._probe = probe
        self._transport = transport
        self._clock = clock
        self._active_at = clock.monotonic()
        self._closed = False
        self._lost = asyncio.Event()
        self._reading = True
        self._writing = True
        self._unblocked = asyncio.Event()
        self._answers = bytearray()
        self._unread_answers = 0
        self._burst = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        transport.set_write_buffer_limits(high=WRITE_BUFFER)

    @property
    def idle(self) -> float:
        """Seconds since something was sent or received."""
        return self._clock.monotonic() - self._active_at

    @property
    def closed(self) -> bool:
        """Whether nothing can be written."""
        return self._closed or self._transport.is_closing()

    @property
    def answers_are_read(self) -> bool:
        return self._unread_answers < UNREAD_ANSWERS

    # --- Called by the transport --------------------------------------------------------------------------------------------------------

    def received(self) -> None:
        self._active_at = self._clock.monotonic()

    def pause_writing(self) -> None:
        self._writing = False

    def resume_writing(self) -> None:
        self._writing = True
        self._unread_answers = 0
        self._unblocked.set()

    def lost(self) -> None:
        self._closed = True
        self._unblocked.set()
        self._lost.set()
        for name in list(self._timers):
            self._later(name, None)

    # --- Writing ------------------------------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Sends it behind the pending replies; without data, only those."""
        if self._answers:
            data, self._answers = bytes(self._answers) + data, bytearray()
        if data and not self._closed:
            self._active_at = self._clock.monotonic()
            self._transport.write(data)

    def answer(self, data: bytes) -> None:
        """Queues a reply that the peer caused; it is sent with the next write."""
        if not self._writing:
            self._unread_answers += len(data)
        self._answers += data

    async def room(self, wanted: Callable[[], bool]) -> None:
        """Waits while the peer is slow, as long as `wanted` returns True, which is checked at each `wake`. Requires `turn`."""
        while not self._writing and not self._closed and wanted():
            self._unblocked.clear()
            await self._unblocked.wait()

    def wake(self) -> None:
        self._unblocked.set()

    async def breathe(self, size: int) -> None:
        """Yields to other tasks after a write: a socket that takes everything at once must not block them."""
        self._burst += size
        if self._burst >= _BURST:
            self._burst = 0
            await self._clock.sleep(0)

    # --- Reading ------------------------------------------------------------------------------------------------------------------------

    def read(self, on: bool) -> None:
        """Resumes reading the socket, or pauses it and leaves the data to TCP."""
        if on == self._reading or self._closed:
            return
        self._reading = on
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
            self._later("look", self._look_for_peer, after=_LOOK_EVERY)

    def _look_for_peer(self) -> None:
        """Checks whether the peer has disconnected, which only the kernel knows while nothing is read.

        Unread data may delay that; then the kernel detects it when something is sent to the closed connection.
        """
        if self._reading or self._closed:
            return
        if peer_left(self._transport):
            self._transport.abort()
            return
        if self._writing:
            self._transport.write(self._probe)
        self._later("look", self._look_for_peer, after=_LOOK_EVERY)

    # --- Close --------------------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes once everything is sent, and soon in any case."""
        self._seal()
        self._transport.close()
        self._later("cut", self._transport.abort, after=_CUT_AFTER)

    async def leave(self) -> None:
        """Closes after the peer has read what was sent and got a moment to disconnect first."""
        self._transport.set_write_buffer_limits(high=1)
        self._seal()
        sent = False
        try:
            sent = await self._all_sent()
            if sent:
                await _wait(self._lost, _LINGER)
        finally:
            if sent:
                self._transport.close()
            else:
                self._transport.abort()

    def _seal(self) -> None:
        """Stops writing and resumes reading: closing with unread data would drop what was sent last."""
        self.read(True)
        self._closed = True

    async def _all_sent(self) -> bool:
        """Waits as long as the peer reads at all, however slowly."""
        unsent = math.inf
        while not self._writing and not self._lost.is_set() and self._transport.get_write_buffer_size() < unsent:
            unsent = self._transport.get_write_buffer_size()
            self._unblocked.clear()
            await _wait(self._unblocked, _STALLED)
        return self._writing

    def _later(self, name: str, call: Callable[[], None] | None, *, after: float = 0.0) -> None:
        """Schedules a call, replacing the earlier one of that name."""
        earlier = self._timers.pop(name, None)
        if earlier is not None:
            earlier.cancel()
        if call is not None:
            self._timers[name] = asyncio.get_running_loop().call_later(after, call)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def peer_left(transport: asyncio.Transport) -> bool:
    """Checks whether the peer has closed the TCP connection; no client half-closes one that carries a session."""
    connection, option = transport.get_extra_info("socket"), getattr(socket, "TCP_INFO", None)
    if connection is None or option is None:
        return False
    try:
        return bool(connection.getsockopt(socket.IPPROTO_TCP, option, 1)[0] != _ESTABLISHED)
    except OSError:
        return True
