"""`make up JOINED=n`: joins n further clusters to the development cluster `hub` by their agents, beside what `make up` has started.

`joined.py NUMBER [--dir build/dev]` runs `fleet hub` for the hub, and for each of the clusters `joined-1` … a control plane and `fleet join
--run`. Programs and clusters are recorded, so that `make down` stops them.

Invariant: what runs already is kept; nothing is started unless the clusters of `make up` run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fleet.api import keys
from vkubelet.testing.cluster import binaries, components
from vkubelet.testing.cluster.controlplane import ControlPlane
from vkubelet.testing.cluster.ledger import Entry, Kind
from vkubelet.testing.cluster.processes import ClusterError, CommandFailed, run, spawn, with_progress
from vkubelet.testing.cluster.site import Site

OWNER = "joined"
FLEET = str(Path(sys.executable).with_name("fleet"))
BOOTSTRAP = f"system:serviceaccount:{keys.BOOTSTRAP_NAMESPACE}:{keys.BOOTSTRAP_ACCOUNT}"
_WITHIN = 90.0
_EVERY = 0.5


def say(line: str) -> None:
    print(line, flush=True)


async def fleet(*arguments: str) -> Any:
    """Runs a command of fleet; returns its result. Raises CommandFailed."""
    out = await run(FLEET, *arguments, "--output", "json")
    return json.loads(out) if out.strip() else None


def keep(site: Site, name: str, text: str) -> Path:
    """Writes a private file that `make down` removes."""
    path = site.directory / name
    site.ledger.add(Entry(kind=Kind.PATH, name=str(path), owner=OWNER))
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        stream.write(text)
    return path


def start(site: Site, name: str, arguments: Sequence[str]) -> None:
    """Starts a program of ours, unless it runs."""
    if site.ledger.process(OWNER, name) is None:
        log = site.directory / f"{name}.log"
        site.ledger.add(Entry(kind=Kind.PATH, name=str(log), owner=OWNER))
        site.ledger.add_process(spawn(name, [FLEET, *arguments], log=log), OWNER)


async def run_hub(site: Site, kubeconfig: Path) -> None:
    """Runs the process of the hub, which accepts every cluster whose requests are those of `fleet init`."""
    own = {"hub": {"auto_approve_users": [BOOTSTRAP]}, "health": {"health_address": "", "metrics_address": ""}}
    config = keep(site, "fleet-hub.yaml", yaml.safe_dump(own))
    start(site, "fleet-hub", ["hub", "--config", str(config), "--kubeconfig", str(kubeconfig)])


async def join(site: Site, name: str, way: Any) -> None:
    """Starts a cluster and its agent, unless they run."""
    if site.ledger.process(OWNER, name) is not None:
        return
    # No pod runs in it: the agent is a process of this machine.
    plane = ControlPlane(name, site, options=components.Options(controllers=False, scheduler=False))
    if not site.ledger.entries(owner=name):
        await with_progress(plane.start(), f"starting the cluster {name}", say=say, clock=site.clock)
    token = keep(site, f"{name}.token", way["token"])
    where = ["--hub", way["server"], "--token-file", str(token), *(["--ca-hash", way["caHash"]] if way["caHash"] else [])]
    start(site, name, ["join", *where, "--name", name, "--kubeconfig", str(plane.kubeconfig), "--run", "--yes"])


async def joined(site: Site, kubeconfig: Path, names: Sequence[str]) -> None:
    """Waits until the clusters have joined. Raises ClusterError."""
    end = site.clock.monotonic() + _WITHIN
    while True:
        views = {each["name"]: each for each in await fleet("get", "clusters", "--kubeconfig", str(kubeconfig))}
        missing = [name for name in names if name not in views or views[name]["problem"]]
        if not missing:
            return
        if site.clock.monotonic() > end:
            logs = ", ".join(str(site.directory / f"{name}.log") for name in ("fleet-hub", *missing))
            raise ClusterError(f"{', '.join(missing)} did not join within {_WITHIN:.0f} s; see {logs}")
        await site.clock.sleep(_EVERY)


async def main(number: int, directory: Path) -> None:
    """Joins clusters. Raises ClusterError."""
    site = Site(directory, detached=True, say=say)
    kubeconfig = site.directory / "hub.kubeconfig"
    if not kubeconfig.exists():
        raise ClusterError(f"no hub runs in {site.directory}; run `make up JOINED={number}`")
    await site.start()
    await site.binaries.ensure(binaries.CONTROL_PLANE)
    names = [f"joined-{at}" for at in range(1, number + 1)]
    way = await fleet("init", "--yes", "--kubeconfig", str(kubeconfig))
    await run_hub(site, kubeconfig)
    for name in names:
        await join(site, name, way)
    await with_progress(joined(site, kubeconfig, names), f"waiting until {', '.join(names)} joined", say=say, clock=site.clock)
    say(f"joined; to list them: {Path(FLEET)} get clusters --kubeconfig {os.path.relpath(kubeconfig)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Joins further clusters to the development hub.")
    parser.add_argument("number", type=int, help="number of clusters")
    parser.add_argument("--dir", type=Path, default=Path("build", "dev"), help="directory of the clusters (default build/dev)")
    given = parser.parse_args()
    try:
        asyncio.run(main(given.number, given.dir))
    except (ClusterError, CommandFailed) as error:
        sys.exit(f"error: {error}")
