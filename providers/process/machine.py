"""Size, address and usage of the host.

Invariant: everything is read on request; what the host does not report is omitted.
"""

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from vkubelet.stats import Filesystem, Network, NodeStats, Usage
from vkubelet_providers.process.keeper import procfs

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_ELSEWHERE: Final = ("192.0.2.1", 9)
"""An unassigned address: no packet is sent to it."""


def architecture() -> str:
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def hostname() -> str:
    return platform.node().lower()


def address() -> str:
    """Returns the address of the interface with the default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def capacity(directory: Path) -> dict[str, str]:
    """Returns quantities; the disk is the one of `directory`."""
    disk = os.statvfs(directory)
    return {
        "cpu": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory()['MemTotal'] // 1024}Ki",
        "ephemeral-storage": f"{disk.f_frsize * disk.f_blocks // 1024}Ki",
    }


def parse_meminfo(text: str) -> dict[str, int]:
    """Parses `/proc/meminfo`, in bytes."""
    words = (line.split() for line in text.splitlines())
    return {parts[0].rstrip(":"): int(parts[1]) * (1024 if len(parts) > 2 else 1) for parts in words if len(parts) > 1}


def memory() -> Mapping[str, int]:
    return parse_meminfo(Path("/proc/meminfo").read_text())


def parse_cpu(text: str) -> float:
    """Parses `/proc/stat`: seconds that all cores have worked."""
    words = text.splitlines()[0].split()
    user, nice, system, _idle, _wait, irq, soft = (int(word) for word in words[1:8])
    return (user + nice + system + irq + soft) / procfs.TICKS


def parse_networks(text: str) -> dict[str, Network]:
    """Parses `/proc/net/dev`, by name."""
    found = {}
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        counts = [int(word) for word in numbers.split()]
        found[name.strip()] = Network(
            name.strip(), received_bytes=counts[0], receive_errors=counts[2], sent_bytes=counts[8], send_errors=counts[10]
        )
    return found


def info(version: str) -> dict[str, str]:
    """Returns fields for `status.nodeInfo`."""
    known = {
        "kernelVersion": platform.release(),
        "osImage": _os_image(),
        "bootID": procfs.boot_id(),
        "machineID": _line(Path("/etc/machine-id")),
        "containerRuntimeVersion": f"process://{version}",
    }
    return {name: value for name, value in known.items() if value}


def booted() -> datetime:
    text = Path("/proc/stat").read_text()
    seconds = next((int(line.split()[1]) for line in text.splitlines() if line.startswith("btime ")), 0)
    return datetime.fromtimestamp(seconds, UTC)


def stats(name: str, directory: Path) -> NodeStats:
    """Returns the usage of the host, without pods."""
    amounts, disk = memory(), os.statvfs(directory)
    networks = parse_networks(Path("/proc/net/dev").read_text())
    free = amounts.get("MemAvailable", amounts.get("MemFree", 0))
    usage = Usage(
        cpu_seconds=parse_cpu(Path("/proc/stat").read_text()),
        memory_bytes=amounts["MemTotal"] - free,
        memory_usage_bytes=amounts["MemTotal"] - amounts.get("MemFree", 0),
    )
    return NodeStats(
        name,
        usage=usage,
        started_at=booted(),
        network=next((each for each in networks.values() if each.interface != "lo"), None),
        filesystem=Filesystem(
            used_bytes=(disk.f_blocks - disk.f_bfree) * disk.f_frsize,
            available_bytes=disk.f_bavail * disk.f_frsize,
            capacity_bytes=disk.f_blocks * disk.f_frsize,
            inodes=disk.f_files,
            inodes_free=disk.f_ffree,
            inodes_used=disk.f_files - disk.f_ffree,
        ),
        cores=float(len(os.sched_getaffinity(0))),
        memory_bytes=amounts["MemTotal"],
    )


def mount_points() -> list[str]:
    """Returns all mount points that this process sees."""
    lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    return [os.fsdecode(procfs.unescaped(line.split()[4])) for line in lines]


def can_mount() -> bool:
    """Checks whether our processes may make their own mounts, by trying it in one that exits at once."""
    program = "import sys; sys.path.append(sys.argv[1]); from keeper.mounts import Tree; Tree('').enter()"
    tried = subprocess.run([sys.executable, "-I", "-S", "-c", program, str(Path(__file__).parent)], capture_output=True, check=False)
    return tried.returncode == 0


def _os_image() -> str:
    lines = _text(Path("/etc/os-release")).splitlines()
    return next((line.partition("=")[2].strip('"') for line in lines if line.startswith("PRETTY_NAME=")), "")


def _line(path: Path) -> str:
    return _text(path).strip()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
