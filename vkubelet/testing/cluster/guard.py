"""Removes a run when the process that started it exited without having done so, even by SIGKILL.

Invariant: it acts only after its standard input is closed, which the kernel does when the starter exits, for whatever reason.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from vkubelet.clock import SystemClock
from vkubelet.testing.cluster.ledger import Ledger
from vkubelet.testing.cluster.processes import ProcessId, spawn


def start(ledger: Path, log: Path) -> tuple[ProcessId, int]:
    """Starts the guard of a ledger; returns its process and the descriptor to keep open for the duration of the run."""
    reader, writer = os.pipe()
    try:
        # The starter may have found this package by a special path, such as pytest's.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = spawn("guard", [sys.executable, "-m", __name__, str(ledger)], log=log, env=env, stdin=reader)
    finally:
        os.close(reader)
    return process, writer


def main(ledger: Path) -> None:
    """Waits for the exit of the starter, then undoes what is still recorded."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while os.read(0, 1):
        continue
    if ledger.exists():
        asyncio.run(Ledger(ledger).undo(SystemClock()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
