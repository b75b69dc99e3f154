"""A backend whose containers are processes of this machine: exec, attach and port-forward with real pipes, terminals and sockets.

Invariant: when a call has ended, however it ended, nothing that it started is left.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import termios
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from attrs import define, field

from tests.integration.server.backend import Backend
from tests.support.program import eventually
from vkubelet.api.objects import PodRef
from vkubelet.errors import BadRequest
from vkubelet.provider import ByteStream, ContainerIO, TerminalSize
from vkubelet.streams import attach, join, open_terminal, relay

SHELL = "/bin/sh"


@define
class Started:
    """The process of a container, which `attached` calls speak to; a terminal's is read and written by its `master`."""

    process: Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    errors: asyncio.StreamReader | None = None
    master: int | None = None
    attached: int = 0


@define
class Calls:
    """What the server asked for and how it ended; `running` is by kind, `terminals` tells which calls were told to have one."""

    running: Counter[str] = field(factory=Counter)
    cancelled: Counter[str] = field(factory=Counter)
    terminals: list[bool] = field(factory=list)
    sizes: list[TerminalSize] = field(factory=list)


class ProcessBackend(Backend):
    """Commands run in `directory`. `failure`, when set, is raised by every call instead."""

    def __init__(self, directory: Path, *, path: str = "") -> None:
        super().__init__()
        self.directory = directory
        self.calls = Calls()
        self.started: dict[tuple[str, str], Started] = {}
        self.processes: set[int] = set()
        self._environment: Mapping[str, str] = {**os.environ, "PATH": os.pathsep.join(filter(None, (path, os.environ["PATH"])))}

    async def exec(self, pod: PodRef, container: str, command: Sequence[str], io: ContainerIO) -> int:
        with self._counted("exec"):
            self.calls.terminals.append(io.tty)
            if io.tty:
                async with self.terminal(command) as started:
                    await attach(io, started.reader, started.writer, resize=self._resizer(started), ended=started.process.wait)
                    return started.process.returncode or 0
            async with self.spawned(command, stdin=PIPE if io.stdin is not None else DEVNULL) as process:
                assert process.stdout is not None
                await join(io, process.stdout, process.stdin, errors=process.stderr, ended=process.wait)
                return process.returncode or 0

    async def attach(self, pod: PodRef, container: str, io: ContainerIO) -> None:
        with self._counted("attach"):
            self.calls.terminals.append(io.tty)
            started = self.started[pod.uid, container]
            writer = started.writer if io.stdin is not None else None
            started.attached += 1
            try:
                await attach(io, started.reader, writer, errors=started.errors, resize=self._resizer(started), ended=started.process.wait)
            finally:
                started.attached -= 1

    async def port_forward(self, pod: PodRef, port: int, stream: ByteStream) -> None:
        with self._counted("portforward"):
            await relay(stream, *await asyncio.open_connection("127.0.0.1", port))

    # --- Processes -----------------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def container(self, uid: str, name: str, command: Sequence[str], *, tty: bool = False) -> AsyncIterator[Started]:
        """Run a container's own process for as long as the block lasts."""
        if tty:
            async with self.terminal(command) as started:
                self.started[uid, name] = started
                yield started
        else:
            async with self.spawned(command, stdin=PIPE) as process:
                assert process.stdin is not None and process.stdout is not None
                started = self.started[uid, name] = Started(process, process.stdout, process.stdin, process.stderr)
                try:
                    yield started
                finally:
                    # Only one may read a pipe at a time: the calls that still do end with the process.
                    self._kill(process)
                    await eventually(lambda: started.attached == 0, "no call is attached", every=0.01)

    @asynccontextmanager
    async def spawned(self, command: Sequence[str], *, stdin: int) -> AsyncIterator[Process]:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=stdin, stdout=PIPE, stderr=PIPE, cwd=self.directory, env=self._environment, start_new_session=True
            )
        except FileNotFoundError as error:
            raise BadRequest(f'exec: "{command[0]}": executable file not found in $PATH') from error
        self.processes.add(process.pid)
        try:
            yield process
        finally:
            await self._end(process)

    @asynccontextmanager
    async def terminal(self, command: Sequence[str]) -> AsyncIterator[Started]:
        """A process with a terminal of its own."""
        master, slave = os.openpty()
        process: Process | None = None
        writer: asyncio.StreamWriter | None = None
        try:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=slave,
                    stdout=slave,
                    stderr=slave,
                    cwd=self.directory,
                    env=self._environment,
                    start_new_session=True,
                    preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
                )
            finally:
                os.close(slave)
            reader, writer = await open_terminal(master)
            self.processes.add(process.pid)
            yield Started(process, reader, writer, master=master)
        finally:
            if writer is not None:
                writer.close()
            os.close(master)
            if process is not None:
                await self._end(process)

    async def _end(self, process: Process) -> None:
        """The process and everything it has started."""
        self._kill(process)
        self.processes.discard(process.pid)
        # What was not read yet keeps the pipes open.
        await process.communicate()

    def _kill(self, process: Process) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def _resizer(self, started: Started) -> Resizer | None:
        return None if started.master is None else Resizer(started.master, self.calls.sizes)

    @contextmanager
    def _counted(self, kind: str) -> Iterator[None]:
        self.calls.running[kind] += 1
        try:
            if self.failure is not None:
                raise self.failure
            yield
        except asyncio.CancelledError:
            self.calls.cancelled[kind] += 1
            raise
        finally:
            self.calls.running[kind] -= 1


class Resizer:
    """Sets the size of a terminal, and keeps it."""

    def __init__(self, master: int, sizes: list[TerminalSize]) -> None:
        self._master = master
        self._sizes = sizes

    def __call__(self, size: TerminalSize) -> None:
        self._sizes.append(size)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", size.height, size.width, 0, 0))


def children() -> set[int]:
    """Processes of this one that have not been waited for."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        # A thread may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            found.update(map(int, (task / "children").read_text().split()))
    return found


def descriptors() -> int:
    """Open files and sockets of this process."""
    return len(os.listdir("/proc/self/fd"))
