"""A program at a terminal, at which a user types.

Invariant: what is typed is there before the program asks, so nothing depends on time.
"""

from __future__ import annotations

import asyncio
import os
import pty
from collections.abc import Mapping

from tests.support.kubectl import Ran


async def at_terminal(text: str, *command: str, env: Mapping[str, str] | None = None) -> Ran:
    """Runs the command while `text` is typed; what it prints is in `stdout`."""
    ours, its = pty.openpty()
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=its, stdout=its, stderr=asyncio.subprocess.PIPE, env=env)
        os.close(its)
        os.write(ours, text.encode())
        shown, (_, stderr) = await asyncio.gather(asyncio.to_thread(_read_all, ours), process.communicate())
    finally:
        os.close(ours)
    return Ran(process.returncode or 0, shown, stderr.decode())


def _read_all(terminal: int) -> bytes:
    """Until the other end is closed."""
    out = b""
    while True:
        try:
            out += os.read(terminal, 65536)
        except OSError:
            return out
