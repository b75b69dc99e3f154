"""`python -m tests.benchmarks [SCENE …]`: measures on this machine, prints a table, writes `build/bench.json`.

Invariant: one scene runs at a time, each on clusters of its own; a scene that breaks costs its own figures and an exit code, no others.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from tests.benchmarks import (
    account,
    burst,
    crowd,
    edges,
    events,
    fleet,
    kubeocean,
    nodes,
    scale_model,
    shards,
    stalls,
    streams,
    versus,
    watches,
)
from tests.benchmarks.figures import Figure, table, write
from tests.support.program import COLD
from vkubelet.testing.cluster import Site

RESULT = Path("build", "bench.json")
SCENES: Mapping[str, Callable[[Site], Awaitable[Sequence[Figure]]]] = {
    "account": account.measure,
    "burst": burst.measure,
    "events": events.measure,
    "kubeocean-burst": kubeocean.burst,
    "kubeocean-steady": kubeocean.steady,
    "kubeocean-10k": kubeocean.ten_thousand,
    "kubeocean-100k": crowd.measure,
    "edges": edges.measure,
    "fleet-clusters": fleet.clusters,
    "scale-model": scale_model.measure,
    "shards-killed": shards.killed,
    "shards-upgrade": shards.upgraded,
    "stalls": stalls.measure,
    "streams": streams.measure,
    "thousand": nodes.thousand,
    "five-thousand": nodes.five_thousand,
    "versus": versus.measure,
    "watches": watches.measure,
}
BESIDES = {"kubeocean-100k", "versus"}
"""Scenes that run only when they are named."""


async def measured(scenes: Sequence[str]) -> tuple[list[Figure], list[str]]:
    """All figures, and the scenes that broke."""
    found: list[Figure] = []
    broken: list[str] = []
    async with Site(say=say) as site:
        for name in scenes:
            say(f"==> {name}: {(SCENES[name].__doc__ or '').splitlines()[0]}")
            began = time.monotonic()
            try:
                figures = await SCENES[name](site)
            except Exception:
                traceback.print_exc()
                broken.append(name)
                continue
            found += figures
            say(f"{table(figures)}\n    {time.monotonic() - began:.0f} s")
    return found, broken


def say(line: str) -> None:
    print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 when a scene broke. A figure out of its limits is told, and is no failure of the measurement."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Figures of this machine.")
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"of {', '.join(SCENES)}; all but {', '.join(BESIDES)} by default")
    parser.add_argument("--output", type=Path, default=RESULT, help=f"default {RESULT}")
    options = parser.parse_args(argv)
    unknown = set(options.scenes) - set(SCENES)
    if unknown:
        parser.error(f"no such scene: {', '.join(sorted(unknown))}")
    os.environ[COLD] = "1"
    began = time.monotonic()
    figures, broken = asyncio.run(measured(options.scenes or [name for name in SCENES if name not in BESIDES]))
    say(f"\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; {time.monotonic() - began:.0f} s\n")
    say(table(figures))
    write(figures, options.output)
    outside = [each.name for each in figures if not each.holds]
    say(f"\nwritten to {options.output}" + (f"; out of its limits: {', '.join(outside)}" if outside else ""))
    if broken:
        print(f"error: not measured: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
