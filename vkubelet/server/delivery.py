"""Whether a client has got everything, which asyncio does not tell but the kernel knows.

Invariant: where the system does not say, it has.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios

from vkubelet.clock import Clock

_FIRST_LOOK, _LONGEST_LOOK = 0.005, 0.25


def undelivered(transport: asyncio.WriteTransport) -> int:
    """Bytes that were written and not yet acknowledged; above TLS this is a lower bound, but only then zero when there are none."""
    waiting = transport.get_write_buffer_size()
    connection = transport.get_extra_info("socket")
    if waiting or connection is None or transport.is_closing():
        return waiting
    try:
        # For a socket this is SIOCOUTQ. Below TLS lies one more buffer; it is only used once the kernel's is full.
        queued: int = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        return queued
    except OSError:
        return 0


async def until_delivered(transport: asyncio.WriteTransport | None, clock: Clock, *, within: float) -> None:
    """Wait for a slow client: the end of a TLS connection gives it no more than a moment to read what is left."""
    end = clock.monotonic() + within
    pause = _FIRST_LOOK
    while transport is not None and not transport.is_closing() and undelivered(transport) and clock.monotonic() < end:
        await clock.sleep(pause)
        pause = min(_LONGEST_LOOK, pause * 2)
