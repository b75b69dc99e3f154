"""Starts, identifies and stops the programs of a development cluster, and shows the progress of long steps.

Invariant: a start that fails or is cancelled is undone before its error is raised; a process is only ever signalled when its pid
still has the start time that was recorded for it, so a reused pid is never hit.
"""

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from attrs import frozen

from vkubelet.clock import Clock
from vkubelet.errors import VKubeletError, task_error

T = TypeVar("T")

POLL_SECONDS = 0.1
TICK_SECONDS = 10.0
"""Seconds after which a long step shows that it still runs."""
KILL_SECONDS = 10.0


class ClusterError(VKubeletError):
    """A development cluster could not be created, used or removed; the text contains what to check."""


class CommandFailed(ClusterError):
    """A command exited with a code other than zero; `stderr` contains its error output."""

    def __init__(self, argv: Sequence[str], code: int, stderr: str) -> None:
        super().__init__(f"{' '.join(argv)} ended with {code}: {stderr.strip()}")
        self.code = code
        self.stderr = stderr


@frozen
class ProcessId:
    """One process: `started` is in clock ticks since boot, as in /proc (proc(5), field 22)."""

    name: str
    pid: int
    started: int

    @classmethod
    def of(cls, name: str, pid: int) -> Self:
        """Returns the id of a running process. Raises ClusterError when there is no such process."""
        fields = stat_fields(pid)
        if fields is None:
            raise ClusterError(f"{name} (pid {pid}) ended at once")
        return cls(name=name, pid=pid, started=int(fields[19]))

    def alive(self) -> bool:
        """Checks whether exactly this process still runs; a zombie does not, unless it has threads that are still exiting and occupy its
        ports."""
        fields = stat_fields(self.pid)
        if fields is None or int(fields[19]) != self.started:
            return False
        if fields[0] in "ZX" and int(fields[17]) <= 1:
            reap(self.pid)
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal; does nothing when the process has exited."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def stat_fields(pid: int) -> list[str] | None:
    """Returns the fields of /proc/<pid>/stat after the command name, starting with the state; None when the process has exited."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def reap(pid: int) -> None:
    """Reaps a dead child of ours, so that it does not stay as a zombie; ignores other processes."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def child_of(parent: int) -> int | None:
    """Returns the first child of a process in the pid namespace of the caller."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = stat_fields(int(entry.name))
            if fields is not None and int(fields[1]) == parent:
                return int(entry.name)
    return None


def spawn(name: str, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, stdin: int | None = None) -> ProcessId:
    """Starts a program in a new session, out of reach of the terminal's Ctrl-C; its output is appended to `log`.

    No object has to be kept or awaited: it continues when the caller exits. Raises ClusterError when it cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    source = (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0) if stdin is None else (os.POSIX_SPAWN_DUP2, stdin, 0)
    try:
        pid = os.posix_spawnp(
            argv[0],
            list(argv),
            dict(os.environ if env is None else env),
            file_actions=[source, (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600), (os.POSIX_SPAWN_DUP2, 1, 2)],
            setsid=True,
        )
    except OSError as error:
        raise ClusterError(f"{name} cannot be started: {error}") from error
    return ProcessId.of(name, pid)


async def run(*argv: str, stdin: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """Runs a command until it exits and returns its output. Raises CommandFailed, or ClusterError when it does not exist."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=None if env is None else dict(env),
        )
    except OSError as error:
        raise ClusterError(f"{argv[0]} cannot be started: {error}") from error
    try:
        out, err = await process.communicate(None if stdin is None else stdin.encode())
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        raise CommandFailed(argv, process.returncode or 0, err.decode(errors="replace") or out.decode(errors="replace"))
    return out.decode(errors="replace")


async def wait_until(clock: Clock, condition: Callable[[], Awaitable[bool]], *, what: str, timeout: float) -> None:
    """Polls until the condition is true. Raises ClusterError after `timeout` seconds."""
    deadline = clock.monotonic() + timeout
    while not await condition():
        if clock.monotonic() >= deadline:
            raise ClusterError(f"not within {timeout:g} s: {what}")
        await clock.sleep(POLL_SECONDS)


async def end(processes: Iterable[ProcessId], clock: Clock, *, patience: float = 0.0, grace: float = 0.0) -> None:
    """Stops processes: waits `patience` seconds, then SIGTERM and `grace` seconds, then SIGKILL. Raises ClusterError if one does not
    exit."""
    left = [process for process in processes if process.alive()]
    for number, seconds in ((None, patience), (signal.SIGTERM, grace), (signal.SIGKILL, KILL_SECONDS)):
        if seconds == 0:
            continue
        if number is not None:
            for process in left:
                process.signal(number)
        left = await _survivors(left, clock, seconds)
    if left:
        raise ClusterError("still running after SIGKILL: " + ", ".join(f"{process.name} ({process.pid})" for process in left))


async def _survivors(processes: list[ProcessId], clock: Clock, seconds: float) -> list[ProcessId]:
    deadline = clock.monotonic() + seconds
    while left := [process for process in processes if process.alive()]:
        if clock.monotonic() >= deadline:
            break
        await clock.sleep(POLL_SECONDS / 4)
    return left


def tail(log: Path, lines: int = 15) -> str:
    """Returns the last lines of a log, for error messages; empty when there is none."""
    try:
        with log.open(encoding="utf-8", errors="replace") as stream:
            return "".join(deque(stream, maxlen=lines))
    except OSError:
        return ""


# --- lifetimes and long steps -------------------------------------------------------------------------------------------------------------


class Lifetime(ABC):
    """Runs for the duration of the context."""

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None:
        """Stops everything, even if it was started only in part."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.stop)
            await self.start()
            stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()


def current(text: str | Callable[[], str]) -> str:
    return text if isinstance(text, str) else text()


async def with_progress(work: Awaitable[T], text: str | Callable[[], str], *, say: Callable[[str], None], clock: Clock) -> T:
    """Awaits `work`, printing `text` at once and with the seconds passed from then on; a function returns the text of each moment."""
    started = clock.monotonic()
    say(f"{current(text)} …")

    async def tick() -> None:
        while True:
            await clock.sleep(TICK_SECONDS)
            say(f"{current(text)} … {clock.monotonic() - started:.0f} s")

    try:
        async with asyncio.TaskGroup() as group:
            ticker = group.create_task(tick())
            try:
                return await work
            finally:
                ticker.cancel()
    except ExceptionGroup as failures:
        # The caller does not know the ticker and expects the error of `work`.
        raise task_error(failures) from None
