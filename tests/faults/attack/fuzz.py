"""The coverage-guided loop over cases; a process of its own, as it ends the process when it has done its runs or found a failure.

Invariant: the same seed, corpus and number of runs give the same cases.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import atheris

with atheris.instrument_imports(include=["vkubelet.server"]):
    from tests.faults.attack import cases, port
    from tests.faults.attack.memory import retained

HEALTHY_EVERY = 50
WARM = 2000
"""Cases after which caches are full; what is held then is the measure of growth."""
GROWTH = 64 << 20
"""Bytes by which the process may grow after that, however many cases follow."""


class Campaign:
    """The server, which outlives its cases."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._serving = port.serving()
        self._port = runner.run(self._serving.__aenter__())
        self._done = 0
        self._warm = 0

    def one(self, data: bytes) -> None:
        """Plays one case. Raises AssertionError, which ends the process and leaves a file with the case."""
        self._runner.run(self._one(data))

    async def _one(self, data: bytes) -> None:
        self._done += 1
        await cases.play(self._port, data)
        if self._done % HEALTHY_EVERY == 0:
            await self._port.healthy()
            await self._port.check()
        if self._done == WARM:
            self._warm = retained()
        if self._warm and self._done % WARM == 0:
            grown = retained() - self._warm
            print(f"{self._done} cases: {grown >> 10} KiB and {sys.getallocatedblocks()} blocks", file=sys.stderr)
            assert grown < GROWTH, f"{grown} bytes more after {self._done} cases"


def main() -> None:
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger().addHandler(logging.NullHandler())
    runner = asyncio.Runner(loop_factory=port.FrozenLoop)
    runner.get_loop()
    campaign = Campaign(runner)
    atheris.Setup(sys.argv, campaign.one)
    atheris.Fuzz()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
