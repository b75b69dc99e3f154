"""Runs the process provider in a process of its own, to be killed: `supervisor.py DIRECTORY GROUP COUNT`.

Invariant: it prints one line of JSON once everything runs, and ends only by a signal.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tests.integration.process.conftest import NODE, running
from vkubelet_providers.process import Process

SCRIPT = "i=0; while echo line $i; i=$((i+1)); [ ! -e {stop}.{number} ]; do sleep 0.05; done; echo lines $i; exit {number}"


async def main(directory: str, group: str, count: int) -> None:
    settings = Process.Settings(node=NODE, address="127.0.0.1", directory=directory, allow_root=True, cgroup=group)
    async with running(settings) as bench:
        for number in range(count):
            await bench.start(f"pod-{number}", "sh", "-c", SCRIPT.format(stop=f"{directory}/stop", number=number))
        held = sorted(bench.provider.pods, key=lambda each: int(each.ref.name.partition("-")[2]))
        print(json.dumps([each.containers["main"].state.pid for each in held]), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
