"""Installs what real nodes need from the distribution, on Debian and Ubuntu.

Invariant: only packages whose programs are missing are installed, so a containerd of another origin is left as it is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from vkubelet.clock import Clock
from vkubelet.testing.cluster.images import find_busybox
from vkubelet.testing.cluster.nodeconfig import PLUGIN_DIRECTORIES
from vkubelet.testing.cluster.processes import ClusterError, CommandFailed, run
from vkubelet.testing.cluster.progress import told

BRIDGE_PROGRAMS = {"ip": "iproute2"}
NODE_PROGRAMS = {"containerd": "containerd", "runc": "runc", "sysctl": "procps"}


def missing(*, nodes: bool) -> list[str]:
    """The packages to install for control planes, or for real nodes as well; empty when everything is there."""
    programs = {**BRIDGE_PROGRAMS, **(NODE_PROGRAMS if nodes else {})} if os.geteuid() == 0 else {}
    packages = [package for program, package in programs.items() if shutil.which(program) is None]
    if not nodes:
        return packages
    if not any((directory / "bridge").exists() for directory in PLUGIN_DIRECTORIES):
        packages.append("containernetworking-plugins")
    try:
        find_busybox()
    except ClusterError:
        packages.append("busybox-static")
    return packages


async def install(packages: list[str], *, say: Callable[[str], None], clock: Clock) -> None:
    """Install these packages. Raises ClusterError without root, without apt-get, or with what apt-get said."""
    if not packages:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ClusterError(f"install these packages first: {' '.join(packages)} (this is done for root where apt-get exists)")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    try:
        await told(run(*command, env=environment), f"installing {' '.join(packages)}", say=say, clock=clock)
    except CommandFailed:
        # The usual reason is a package list that is empty or too old.
        await told(run("apt-get", "update", env=environment), "reading package lists", say=say, clock=clock)
        await told(run(*command, env=environment), f"installing {' '.join(packages)}", say=say, clock=clock)
