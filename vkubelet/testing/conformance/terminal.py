"""Runs a command on a terminal of a given size, as an interactive user would.

Invariant: the command has exited when the call returns, whatever it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import termios
from collections.abc import Sequence

from vkubelet.provider import TerminalSize
from vkubelet.testing.conformance.broken import Broken


async def on_terminal(command: Sequence[str], size: TerminalSize, *, seconds: float) -> tuple[int, bytes]:
    """Returns its exit code, and its output. Raises Broken when it does not exit in time."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size.height, size.width, 0, 0))
        process = await asyncio.create_subprocess_exec(*command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    shown = bytearray()
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, _read, ours, shown)
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise Broken(f"a command on a terminal did not end within {seconds:g} s; it showed {bytes(shown[-200:])!r}") from None
    finally:
        loop.remove_reader(ours)
        _read(ours, shown)
        os.close(ours)
    return code, bytes(shown)


def _read(descriptor: int, into: bytearray) -> None:
    """Reads available data; once the other side is closed, reading fails."""
    os.set_blocking(descriptor, False)
    with contextlib.suppress(OSError):
        while data := os.read(descriptor, 65536):
            into += data
