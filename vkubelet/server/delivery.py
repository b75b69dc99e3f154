"""Checks whether a client has received everything, which the kernel knows and asyncio does not report.

Invariant: where the system does not report it, everything counts as received.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios

from vkubelet.clock import Clock

_FIRST_LOOK, _LONGEST_LOOK = 0.005, 0.25


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
