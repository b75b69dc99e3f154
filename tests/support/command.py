"""A command of ours that ends by itself, without a terminal.

Invariant: it is a process of its own, gone when its answer is there; what it writes goes to files, so that it never waits for a reader.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from tests.support.kubectl import Ran
from tests.support.warm import fork

_EVERY = 0.02


async def run_command(program: str, *arguments: str, within: float, network: Path | None = None) -> Ran:
    """`PROGRAM ARGUMENTS` to its end, forked from an interpreter that has imported it: most of a command's CPU is its imports.
    `network` is the file of its network namespace.

    Raises TimeoutError.
    """
    with tempfile.TemporaryDirectory(prefix="command-") as directory:
        out, errors = Path(directory, "out"), Path(directory, "errors")
        process = fork(program, *arguments, log=out, errors=errors, env=os.environ, network=network)
        try:
            async with asyncio.timeout(within):
                while (code := process.poll()) is None:
                    await asyncio.sleep(_EVERY)
        finally:
            if process.poll() is None:
                process.kill()
                await asyncio.to_thread(process.wait, within)
        return Ran(code, out.read_bytes(), errors.read_text())
