"""Installs what real nodes need from the distribution, on Debian and Ubuntu.

Invariant: only packages whose programs are missing are installed, so a containerd of another origin is not changed.
"""

import os
import shlex
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from vkubelet.clock import Clock
from vkubelet.testing.cluster.binaries import cache_directory
from vkubelet.testing.cluster.images import find_busybox
from vkubelet.testing.cluster.nodeconfig import PLUGIN_DIRECTORIES
from vkubelet.testing.cluster.processes import ClusterError, CommandFailed, run, with_progress

BRIDGE_PROGRAMS = {"ip": "iproute2"}
NODE_PROGRAMS = {"containerd": "containerd", "runc": "runc", "sysctl": "procps"}
SERVICE_PROGRAMS = {"nft": "nftables"}
IMAGE_PROGRAMS = {"buildah": "buildah"}
BROWSER_PROGRAMS = {"chromium": "chromium"}
PROMETHEUS = "prometheus"


def missing(*, nodes: bool, services: bool = False, image: bool = False, browser: bool = False) -> list[str]:
    """Returns the packages to install for control planes, or for real nodes as well, for nodes with Services, to build our own image, or to
    view the dashboard; empty when nothing is missing."""
    optional = ((nodes, NODE_PROGRAMS), (services, SERVICE_PROGRAMS), (image, IMAGE_PROGRAMS), (browser, BROWSER_PROGRAMS))
    wanted = dict(BRIDGE_PROGRAMS)
    for needed, programs in optional:
        wanted |= programs if needed else {}
    installable = wanted if os.geteuid() == 0 else {}
    packages = [package for program, package in installable.items() if shutil.which(program) is None]
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
    """Installs these packages. Raises ClusterError without root, without apt-get, or with the error of apt-get."""
    if not packages:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ClusterError(f"install these packages first: {' '.join(packages)} (this is done for root where apt-get exists)")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    try:
        await with_progress(run(*command, env=environment), f"installing {' '.join(packages)}", say=say, clock=clock)
    except CommandFailed:
        # The usual reason is a package list that is empty or too old.
        await with_progress(run("apt-get", "update", env=environment), "reading package lists", say=say, clock=clock)
        await with_progress(run(*command, env=environment), f"installing {' '.join(packages)}", say=say, clock=clock)


def prometheus() -> Path | None:
    """Finds the folder of `prometheus` and `promtool`: on the PATH, or as `unpack` leaves them; None when they are missing."""
    found = shutil.which("promtool")
    unpacked = cache_directory().parent / PROMETHEUS / "usr" / "bin"
    return Path(found).parent if found else unpacked if (unpacked / "promtool").exists() else None


async def unpack(package: str, *, say: Callable[[str], None], clock: Clock) -> None:
    """Unpacks a package into the cache, without its dependencies: nothing is configured, no service starts. Raises ClusterError."""
    place = cache_directory().parent / package
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ClusterError(f"install {package} first (its programs are unpacked where apt-get and dpkg-deb exist)")
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as directory:
        fetched = f"cd {shlex.quote(directory)} && apt-get download {shlex.quote(package)}"
        try:
            await with_progress(run("sh", "-c", fetched), f"fetching {package}", say=say, clock=clock)
        except CommandFailed:
            # The usual reason is a package list that is empty or too old.
            await with_progress(run("apt-get", "update"), "reading package lists", say=say, clock=clock)
            await with_progress(run("sh", "-c", fetched), f"fetching {package}", say=say, clock=clock)
        (archive,) = Path(directory).glob("*.deb")
        await run("dpkg-deb", "--extract", str(archive), f"{directory}/files")
        shutil.rmtree(place, ignore_errors=True)
        Path(directory, "files").rename(place)
