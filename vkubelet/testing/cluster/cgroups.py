"""Creates a separate cgroup for each node, in every hierarchy of the machine, so that several kubelets do not share `kubepods`.

Invariant: only cgroups below the node's own name are created, emptied or removed.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from vkubelet.clock import Clock
from vkubelet.testing.cluster.processes import ClusterError, wait_until

ROOT = Path("/sys/fs/cgroup")
REMOVE_SECONDS = 10.0


def hierarchies(mounts: Path = Path("/proc/mounts")) -> list[Path]:
    """Returns where cgroups are mounted: one directory with cgroup v2, one per controller with v1, both on hybrid machines."""
    found: list[Path] = []
    for line in mounts.read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] in ("cgroup", "cgroup2"):
            found.append(Path(fields[1]))
    return sorted(set(found))


def create(name: str) -> None:
    """Creates the cgroup; the kubelet refuses a `cgroupRoot` that does not exist."""
    for hierarchy in hierarchies():
        directory = hierarchy / name
        directory.mkdir(exist_ok=True)
        # A new v1 cpuset is empty, and no process can enter it until its parent's values are copied.
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (directory / file).exists() and not (directory / "cgroup.controllers").exists():
                (directory / file).write_text((hierarchy / file).read_text(encoding="ascii"), encoding="ascii")
    if (ROOT / "cgroup.controllers").exists():
        for directory in (ROOT, ROOT / name):
            controllers = (directory / "cgroup.controllers").read_text(encoding="ascii").split()
            (directory / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in controllers), encoding="ascii")


def _bottom_up(name: str) -> Iterator[Path]:
    for hierarchy in hierarchies():
        for directory, _, _ in os.walk(hierarchy / name, topdown=False):
            yield Path(directory)


def _members(directory: Path) -> list[int]:
    try:
        return [int(pid) for pid in (directory / "cgroup.procs").read_text(encoding="ascii").split()]
    except OSError:
        return []


def _thaw(directory: Path) -> None:
    # A frozen container does not die of SIGKILL before it is thawed (cgroup v1).
    state = directory / "freezer.state"
    if state.exists() and state.read_text(encoding="ascii").strip() != "THAWED":
        state.write_text("THAWED", encoding="ascii")


def _sweep(name: str) -> bool:
    done = True
    for directory in _bottom_up(name):
        try:
            for pid in _members(directory):
                os.kill(pid, signal.SIGKILL)
            _thaw(directory)
            directory.rmdir()
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            done = False
    return done


async def remove(name: str, clock: Clock) -> None:
    """Kills what is left in the cgroup and removes it everywhere. Raises ClusterError when that fails."""
    if not name.strip("/"):
        raise ClusterError("the root cgroup is not ours to remove")

    async def gone() -> bool:
        return _sweep(name)

    await wait_until(clock, gone, what=f"the cgroup {name} is removed", timeout=REMOVE_SECONDS)
