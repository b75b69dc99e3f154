"""Resource limits and usage by control groups, of version 1 or 2, where the host lets us write to them.

Invariant: a host without them is no error: limits are not enforced on it, and usage is read from /proc.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from attrs import field, frozen

from vkubelet.api.objects import JsonView
from vkubelet.api.quantity import Quantity
from vkubelet.stats import Usage
from vkubelet_providers.process.keeper import procfs

_WANTED: Final = ("cpu", "cpuacct", "memory", "pids")
_PERIOD: Final = 100_000
_UNLIMITED: Final = 1 << 60


@frozen(kw_only=True)
class Limits:
    """Limits of one container; None: none."""

    cpu: int | None = None
    """Thousandths of a core."""
    cpu_request: int | None = None
    memory: int | None = None

    @classmethod
    def of(cls, container: JsonView) -> Limits:
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}

        def milli(amounts: JsonView) -> int | None:
            return Quantity.parse(amounts["cpu"]).milli() if "cpu" in amounts else None

        memory = Quantity.parse(limits["memory"]).value() if "memory" in limits else None
        return cls(cpu=milli(limits), cpu_request=milli(requests) or milli(limits), memory=memory)


def weight(milli: int | None, *, version: int) -> tuple[str, str]:
    """Returns the file and the value that set the CPU weight of a group relative to its siblings."""
    if version == 1:
        return "cpu.shares", str(shares(milli))
    return "cpu.weight", str(1 + (shares(milli) - 2) * 9999 // 262142)


def settings_v1(limits: Limits) -> Iterator[tuple[str, str]]:
    """Yields files and their values, in order."""
    yield weight(limits.cpu_request, version=1)
    yield "cpu.cfs_quota_us", str(max(1000, limits.cpu * _PERIOD // 1000)) if limits.cpu else "-1"
    if limits.memory:
        yield "memory.limit_in_bytes", str(limits.memory)
        yield "memory.memsw.limit_in_bytes", str(limits.memory)


def settings_v2(limits: Limits) -> Iterator[tuple[str, str]]:
    """Yields files and their values, in order."""
    yield weight(limits.cpu_request, version=2)
    yield "cpu.max", f"{max(1000, limits.cpu * _PERIOD // 1000) if limits.cpu else 'max'} {_PERIOD}"
    if limits.memory:
        yield "memory.max", str(limits.memory)
        yield "memory.swap.max", "0"
        yield "memory.oom.group", "1"


def shares(milli: int | None) -> int:
    """Computes CPU shares as the kubelet does."""
    return min(262144, max(2, (milli or 0) * 1024 // 1000))


@frozen
class Hierarchy:
    """One mounted tree of control groups, and its controllers."""

    top: Path
    controllers: Sequence[str]
    version: int

    def handed_down(self, base: str) -> Hierarchy:
        """Returns the hierarchy of version 2 with the controllers that groups below `base` really get.

        A group that contains processes delegates none.
        """
        wanted = [name for name in _read(self.top / "cgroup.controllers").split() if name in _WANTED]
        _hand_down(self.top, self.top / base / "keepers", wanted)
        given = _read(self.top / base / "cgroup.subtree_control").split()
        return Hierarchy(self.top, [name for name in wanted if name in given], 2)


def parse_mounts(text: str) -> list[Hierarchy]:
    """Parses `/proc/mounts`; controllers of version 2 are not listed in it. Some have none: a service manager tracks its processes by
    these."""
    found = []
    for line in text.splitlines():
        _, place, kind, options, *_ = line.split()
        top = Path(os.fsdecode(procfs.unescaped(os.fsencode(place))))
        if kind == "cgroup":
            controllers = [name for name in options.split(",") if name in _WANTED]
            if controllers or "name=" in options:
                found.append(Hierarchy(top, controllers, 1))
        elif kind == "cgroup2":
            found.append(Hierarchy(top, (), 2))
    return found


def parse_pairs(text: str) -> dict[str, int]:
    """Parses lines of a name and a number."""
    words = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}


@frozen
class Cgroups:
    """Groups of this node's pods below `base`, in each of the hierarchies."""

    base: str = ""
    hierarchies: Sequence[Hierarchy] = field(default=())
    trackers: Sequence[Hierarchy] = field(default=())
    """Hierarchies without controllers of ours; keepers and all that they start leave them for a group of this node."""

    @classmethod
    def find(cls, base: str, *, cpu: int = 0) -> Cgroups:
        """Finds those that can be written to; none when `base` is empty.

        `cpu`, in thousandths of a core, is what the pods of the node may use: it is their weight against the rest of the host, as of a
        kubelet's `kubepods` (pkg/kubelet/cm/node_container_manager_linux.go).
        """
        if not base:
            return cls()
        base = base.strip("/")
        found: list[Hierarchy] = []
        trackers: list[Hierarchy] = []
        for hierarchy in parse_mounts(Path("/proc/mounts").read_text()):
            place = hierarchy.top / base / "keepers"
            with suppress(OSError):
                # Existing groups above it are weighted by their owner.
                new = [path for path in place.parents if not path.exists()]
                place.mkdir(parents=True, exist_ok=True)
                for path in {place.parent, *new}:
                    _weigh(path, cpu, version=hierarchy.version)
                if os.access(place / "cgroup.procs", os.W_OK):
                    usable = hierarchy if hierarchy.version == 1 else hierarchy.handed_down(base)
                    (found if usable.controllers else trackers).append(usable)
        return cls(base, found, trackers)

    def limits(self, controller: str) -> bool:
        """Checks for a controller, such as `memory`."""
        return any(controller in each.controllers for each in self.hierarchies)

    def keeper_files(self) -> list[str]:
        return [str(each.top / self.base / "keepers" / "cgroup.procs") for each in (*self.hierarchies, *self.trackers)]

    def create(self, uid: str, name: str, *, limits: Limits, pod_cpu: int) -> None:
        """Creates the group of one start of a container, in that of its pod, which requests `pod_cpu` thousandths of a core. Raises
        OSError."""
        for each in self.hierarchies:
            place = each.top / self.base / f"pod{uid}" / name
            place.mkdir(parents=True, exist_ok=True)
            if each.version == 2:
                _hand_down(each.top, place, each.controllers)
            _weigh(place.parent, pod_cpu, version=each.version)
            settings = settings_v2 if each.version == 2 else settings_v1
            for file, text in settings(limits):
                if file.partition(".")[0] in each.controllers and (place / file).exists():
                    (place / file).write_text(text)

    def update(self, uid: str, name: str, *, limits: Limits, pod_cpu: int | None) -> None:
        """Changes the limits of the processes in it. Raises OSError, such as when they use more than that."""
        for each in self.hierarchies:
            place = each.top / self.base / f"pod{uid}" / name
            if pod_cpu is not None:
                _weigh(place.parent, pod_cpu, version=each.version)
            settings = list(settings_v2(limits) if each.version == 2 else settings_v1(limits))
            named = [
                (place / file, text) for file, text in settings if file.partition(".")[0] in each.controllers and (place / file).exists()
            ]
            try:
                _write(named)
            except OSError:
                # The total limit must be raised before its parts, and lowered after them.
                _write(list(reversed(named)))

    def join_files(self, uid: str, name: str) -> list[str]:
        return [str(place / "cgroup.procs") for place in self._places(uid, name)]

    def oom_files(self, uid: str, name: str) -> list[str]:
        return [str(place / file) for place in self._places(uid, name) for file in ("memory.oom_control", "memory.events")]

    def kill(self, uid: str, name: str = "") -> bool:
        """Sends SIGKILL to all processes of a container, or of a pod; returns whether there were any."""
        for place in self._places(uid, name):
            # In version 2: also processes that are being forked.
            with suppress(OSError):
                with open(place / "cgroup.kill", "r+", encoding="ascii") as file:
                    file.write("1")
        members = {pid for place in self._places(uid, name) for pid in _members(place)}
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(members)

    def remove(self, uid: str, name: str = "") -> bool:
        """Removes the groups of a container, or of a pod; returns False while processes are in them."""
        gone = True
        for place in self._places(uid, name):
            for path in [*_below(place), place]:
                gone = _removed(path) and gone
        return gone

    def usage(self, uid: str, name: str) -> Usage:
        """Returns the usage of one start of a container; numbers that no hierarchy knows are omitted."""
        values: dict[str, float] = {}
        for each in self.hierarchies:
            place = each.top / self.base / f"pod{uid}" / name
            values |= _usage_v2(place, each.controllers) if each.version == 2 else _usage_v1(place, each.controllers)
        spent = values.pop("cpu_seconds", None)
        counts: dict[str, Any] = {name: int(value) for name, value in values.items()}
        return Usage(cpu_seconds=spent, **counts)

    def _places(self, uid: str, name: str) -> Iterator[Path]:
        for each in self.hierarchies:
            yield each.top / self.base / f"pod{uid}" / name


def _usage_v1(place: Path, controllers: Sequence[str]) -> Mapping[str, float]:
    values: dict[str, float] = {}
    if "cpuacct" in controllers and (text := _read(place / "cpuacct.usage")):
        values["cpu_seconds"] = int(text) / 1e9
    if "memory" in controllers and (used := _read(place / "memory.usage_in_bytes")):
        stat = parse_pairs(_read(place / "memory.stat"))
        values |= _memory(int(used), inactive=stat.get("total_inactive_file", 0), limit=_read(place / "memory.limit_in_bytes"))
        values["rss_bytes"] = stat.get("total_rss", 0)
        values |= {"page_faults": stat.get("total_pgfault", 0), "major_page_faults": stat.get("total_pgmajfault", 0)}
    return values


def _usage_v2(place: Path, controllers: Sequence[str]) -> Mapping[str, float]:
    values: dict[str, float] = {}
    if "cpu" in controllers and (found := parse_pairs(_read(place / "cpu.stat"))):
        values["cpu_seconds"] = found.get("usage_usec", 0) / 1e6
    if "memory" in controllers and (used := _read(place / "memory.current")):
        stat = parse_pairs(_read(place / "memory.stat"))
        values |= _memory(int(used), inactive=stat.get("inactive_file", 0), limit=_read(place / "memory.max"))
        values["rss_bytes"] = stat.get("anon", 0)
        values |= {"page_faults": stat.get("pgfault", 0), "major_page_faults": stat.get("pgmajfault", 0)}
    return values


def _memory(used: int, *, inactive: int, limit: str) -> dict[str, float]:
    values: dict[str, float] = {"memory_usage_bytes": used, "memory_bytes": max(0, used - inactive)}
    if limit.strip().isdigit() and int(limit) < _UNLIMITED:
        values["memory_limit_bytes"] = int(limit)
    return values


def _weigh(place: Path, milli: int, *, version: int) -> None:
    file, text = weight(milli, version=version)
    if (place / file).exists():
        (place / file).write_text(text)


def _write(settings: Sequence[tuple[Path, str]]) -> None:
    for path, text in settings:
        path.write_text(text)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _members(place: Path) -> Iterator[int]:
    for path in (place, *_below(place)):
        yield from (int(word) for word in _read(path / "cgroup.procs").split())


def _below(place: Path) -> list[Path]:
    """Returns its subgroups, including those created by programs, deepest first."""
    return [Path(path) for path, _, _ in os.walk(place, topdown=False) if path != str(place)]


def _hand_down(top: Path, place: Path, controllers: Sequence[str]) -> None:
    """Enables these controllers in the groups above it."""
    for path in [path for path in reversed(place.parents) if path.is_relative_to(top)]:
        for name in controllers:
            with suppress(OSError):
                (path / "cgroup.subtree_control").write_text(f"+{name}")


def _removed(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
            return False
        raise
    return True
