"""Records on disk what a run has created, so that it can be undone by the run itself, by `down`, or by the guard of a run that was killed.

Invariant: an entry is written before the resource is used and removed after the resource is removed; undoing twice is harmless.
The guard acts only after its standard input is closed, which the kernel does when the starter exits, for whatever reason, even by SIGKILL.
"""

import asyncio
import enum
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypedDict, cast

from attrs import frozen

from vkubelet.clock import Clock, SystemClock
from vkubelet.testing.cluster import cgroups
from vkubelet.testing.cluster.processes import CommandFailed, ProcessId, end, run, spawn

ENTERED_SECONDS = 1.0


class Kind(enum.StrEnum):
    """Types of resources that can be undone, in the order in which they are undone."""

    NAMESPACE = "namespace"  # the first process of a pid namespace: all others in it exit with it
    PROCESS = "process"
    CGROUP = "cgroup"
    LINK = "link"
    PATH = "path"


@frozen
class Entry:
    """One created resource; `owner` is the cluster or node it belongs to, `pid` and `started` are set for namespaces and processes."""

    kind: Kind
    name: str
    owner: str = ""
    pid: int = 0
    started: int = 0

    @property
    def process(self) -> ProcessId:
        return ProcessId(name=self.name, pid=self.pid, started=self.started)


class _Record(TypedDict):
    kind: str
    name: str
    owner: str
    pid: int
    started: int


class _State(TypedDict):
    boot: str
    made: list[_Record]


def boot_id() -> str:
    """Returns an id of the current boot of this machine (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class Ledger:
    """Record of a run, in `path` as JSON; the process that undoes it reads it from that file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: list[Entry] = []
        if path.exists():
            state = cast("_State", json.loads(path.read_text(encoding="utf-8")))
            made = [
                Entry(kind=Kind(r["kind"]), name=r["name"], owner=r["owner"], pid=r["pid"], started=r["started"]) for r in state["made"]
            ]
            # Only files survive a reboot; a link or process of that name or number belongs to another program now.
            same = state["boot"] == boot_id()
            self._entries = [entry for entry in made if same or entry.kind is Kind.PATH]

    def entries(self, kind: Kind | None = None, owner: str | None = None) -> list[Entry]:
        """Returns the entries, oldest first, filtered by kind and owner."""
        return [e for e in self._entries if (kind is None or e.kind is kind) and (owner is None or e.owner == owner)]

    def add(self, entry: Entry) -> None:
        """Records a resource just before it is created, or just after for processes, whose pid is not known before."""
        if entry not in self._entries:
            self._entries.append(entry)
            self._save()

    def add_process(self, process: ProcessId, owner: str, *, kind: Kind = Kind.PROCESS) -> None:
        """Records a process that was just started, in place of an earlier one of its name."""
        self._entries = [e for e in self._entries if (e.kind, e.owner, e.name) != (kind, owner, process.name)]
        self.add(Entry(kind=kind, name=process.name, owner=owner, pid=process.pid, started=process.started))

    def process(self, owner: str, name: str) -> ProcessId | None:
        """Returns the process of that name that was started last."""
        return next((e.process for e in self.entries(Kind.PROCESS, owner) if e.name == name), None)

    def forget(self, gone: Iterable[Entry]) -> None:
        """Drops entries of removed resources; the file itself is removed with the last one."""
        remove = set(gone)
        self._entries = [entry for entry in self._entries if entry not in remove]
        self._save()

    async def undo(self, clock: Clock, which: Callable[[Entry], bool] = lambda entry: True) -> None:
        """Removes the chosen resources: namespaces, processes, cgroups, links, paths, in this order and the newest first.

        Raises ClusterError when that fails; the entry stays for the next attempt.
        """
        chosen = [entry for entry in reversed(self._entries) if which(entry)]
        namespaces = [entry for entry in chosen if entry.kind is Kind.NAMESPACE]
        await self._end(namespaces, clock)
        # Programs that entered a namespace exit by themselves now, and reap their dead children while they do.
        owners = {entry.owner for entry in namespaces}
        processes = [entry for entry in chosen if entry.kind is Kind.PROCESS]
        await self._end([entry for entry in processes if entry.owner in owners], clock, patience=ENTERED_SECONDS)
        await self._end([entry for entry in processes if entry.owner not in owners], clock)
        for kind in (Kind.CGROUP, Kind.LINK, Kind.PATH):
            for entry in [entry for entry in chosen if entry.kind is kind]:
                await _undo_one(entry, clock)
                self.forget([entry])

    async def _end(self, doomed: Sequence[Entry], clock: Clock, *, patience: float = 0.0) -> None:
        await end([entry.process for entry in doomed], clock, patience=patience)
        self.forget(doomed)

    def _save(self) -> None:
        if not self._entries:
            self.path.unlink(missing_ok=True)
            return
        state = _State(
            boot=boot_id(),
            made=[_Record(kind=str(e.kind), name=e.name, owner=e.owner, pid=e.pid, started=e.started) for e in self._entries],
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(self.path.name + ".new")
        draft.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        draft.replace(self.path)


async def _undo_one(entry: Entry, clock: Clock) -> None:
    if entry.kind is Kind.CGROUP:
        await cgroups.remove(entry.name, clock)
    elif entry.kind is Kind.LINK:
        try:
            await run("ip", "link", "delete", entry.name)
        except CommandFailed:
            # A deleted namespace removes its peer and with it this link; this check shows whether the link really remains.
            if Path("/sys/class/net", entry.name).exists():
                raise
    elif entry.kind is Kind.PATH:
        path = Path(entry.name)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def start_guard(ledger: Path, log: Path) -> tuple[ProcessId, int]:
    """Starts the guard of a ledger; returns its process and the descriptor to keep open for the duration of the run."""
    reader, writer = os.pipe()
    try:
        # The starter may have found this package by a special path, such as pytest's.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = spawn("guard", [sys.executable, "-m", __name__, str(ledger)], log=log, env=env, stdin=reader)
    finally:
        os.close(reader)
    return process, writer


def guard(ledger: Path) -> None:
    """Waits for the exit of the starter, then undoes what is still recorded."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while os.read(0, 1):
        continue
    if ledger.exists():
        asyncio.run(Ledger(ledger).undo(SystemClock()))


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
