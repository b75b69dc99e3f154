"""Shell for `kubectl exec` in a mock container: runs the programs of `commands.py`.

Invariant: a command runs in the task of its caller and in children of it, so a client that disconnects cancels it at any point.

Supported are `;`, `&&`, `||`, `|`, redirections and quotes; `sh`, `exit`, `cd` and `kill … $$` belong to the shell itself. Without `-c`,
the lines of standard input are commands.
"""

from __future__ import annotations

import posixpath
import signal
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from attrs import evolve

from vkubelet.provider import ContainerIO
from vkubelet_providers.mock.commands import PROGRAMS
from vkubelet_providers.mock.files import LIMIT, Files
from vkubelet_providers.mock.machine import BROKEN_PIPE, NOT_FOUND, Exit, Failed, Input, Machine, Pipe, Std, together
from vkubelet_providers.mock.reading import collect, source
from vkubelet_providers.mock.syntax import Command, Redirect, ShellSyntaxError, Step, parse
from vkubelet_providers.mock.terminal import Terminal

T = TypeVar("T")
SHELLS: Final = ("sh", "bash", "ash")
USAGE: Final = 2


async def run_with(io: ContainerIO, machine: Machine, argv: Sequence[str]) -> int:
    """Runs a command for a client, on a terminal if it requests one; returns the exit code."""
    if not io.tty:
        return await execute(machine, argv, Std(Input(io.stdin), io.write_stdout, io.write_stderr))
    terminal = Terminal(io, machine.clock)
    std = Std(Input(terminal), terminal.write, terminal.write)
    return await terminal.serve(execute(evolve(machine, size=terminal.size), argv, std, terminal=terminal))


async def execute(machine: Machine, argv: Sequence[str], std: Std, *, terminal: Terminal | None = None) -> int:
    """Executes one command, as a container engine would start it; returns its exit code."""
    return await _ending(Shell(machine, terminal).program(list(argv), std))


async def _ending(work: Awaitable[int]) -> int:
    try:
        return await work
    except Exit as end:
        return end.code


class Shell:
    """One shell: its directory and the code of its last command. `terminal` is that of an interactive one."""

    def __init__(self, machine: Machine, terminal: Terminal | None = None) -> None:
        self.machine = evolve(machine)
        self._terminal = terminal
        self._last = 0

    @property
    def variables(self) -> Mapping[str, str]:
        return {**self.machine.environment, "PWD": self.machine.directory, "?": str(self._last), "$": "1"}

    async def program(self, argv: Sequence[str], std: Std) -> int:
        """Runs a program. Raises Exit when it exits from this shell."""
        name, args = posixpath.basename(argv[0]), list(argv[1:])
        try:
            if name in SHELLS:
                return await _ending(Shell(self.machine, self._terminal)._main(args, std))
            if name in ("exit", "kill", "cd", "["):
                return await self._builtin(name, args, std)
            if name not in PROGRAMS:
                await std.complain(f"sh: {argv[0]}: not found\n")
                return NOT_FOUND
            return await PROGRAMS[name](self.machine, args, std)
        except Failed as error:
            await std.complain(f"{name}: {error}\n")
            return 1

    async def _builtin(self, name: str, args: list[str], std: Std) -> int:
        if name == "exit":
            if args and not args[0].isdecimal():
                raise Failed(f"Illegal number: {args[0]}")
            raise Exit(int(args[0]) % 256 if args else self._last)
        if name == "kill":
            raise Exit(128 + _signal_of(args))
        if name == "[":
            if args[-1:] != ["]"]:
                raise Failed("missing ]")
            return await PROGRAMS["test"](self.machine, args[:-1], std)
        path = Files.path(self.machine.directory, args[0] if args else "/")
        if not self.machine.files.is_directory(path):
            raise Failed(f"can't cd to {args[0]}: No such directory")
        self.machine.directory = path
        return 0

    # --- scripts ---

    async def _main(self, args: list[str], std: Std) -> int:
        if args[:1] == ["-c"] and len(args) > 1:
            return await self.script(args[1], std)
        if args and args[0].startswith("-"):
            args = args[1:]
        if args:
            return await self.script((await collect(source(self.machine, args[:1], Input()))).decode(errors="replace"), std)
        return await self._lines(std)

    async def _lines(self, std: Std) -> int:
        """Runs line by line; on a terminal it prints a prompt, and Ctrl-C cancels the command instead of the shell."""
        while True:
            if self._terminal is not None:
                await std.say(f"{self.machine.directory} # ")
            line = await self._interruptible(std.stdin.line())
            if line is None:
                return self._last
            code = line if isinstance(line, int) else await self._interruptible(self.script(line.decode(errors="replace"), std))
            self._last = code

    async def _interruptible(self, work: Coroutine[None, None, T]) -> T | int:
        return await work if self._terminal is None else await self._terminal.until_interrupt(work)

    async def script(self, text: str, std: Std) -> int:
        """Runs a script; returns the code of the last command. Raises Exit."""
        try:
            steps = parse(text)
        except ShellSyntaxError as error:
            await std.complain(f"sh: {error}\n")
            self._last = USAGE
            return USAGE
        for step in steps:
            if _is_due(step, self._last):
                self._last = await self._pipeline(step.pipeline, std)
        return self._last

    async def _pipeline(self, commands: Sequence[Command], std: Std) -> int:
        if len(commands) == 1:
            return await self._command(commands[0], std)
        pipes = [Pipe() for _ in commands[1:]]
        async with together() as group:
            tasks = [
                group.create_task(self._stage(command, std, before, after))
                for command, before, after in zip(commands, [None, *pipes], [*pipes, None], strict=True)
            ]
        return tasks[-1].result()

    async def _stage(self, command: Command, std: Std, before: Pipe | None, after: Pipe | None) -> int:
        stdin = std.stdin if before is None else Input(before)
        out = std.out if after is None else after.write
        try:
            # Each part of a pipe runs in a subshell: `exit` exits only from that part.
            return await _ending(Shell(self.machine)._command(command, std.with_(stdin=stdin, out=out)))
        except BrokenPipeError:
            return BROKEN_PIPE
        finally:
            if before is not None:
                before.break_off()
            if after is not None:
                after.end()

    async def _command(self, command: Command, std: Std) -> int:
        words = [word.expand(self.variables) for word in command.words]
        files = [_Target(self.machine, self.variables, redirect) for redirect in command.redirects]
        try:
            for target in files:
                std = target.open(std)
            return await self.program(words, std) if words else 0
        except Failed as error:
            await std.complain(f"sh: {error}\n")
            return 1
        finally:
            for target in files:
                target.close()


class _Target:
    """One redirection: `open` puts it into the streams, `close` writes the data."""

    def __init__(self, machine: Machine, variables: Mapping[str, str], redirect: Redirect) -> None:
        self._machine = machine
        self._operator = redirect.operator
        self._name = redirect.target.expand(variables) if redirect.target is not None else ""
        self._path = Files.path(machine.directory, self._name)
        self._chunks: list[bytes] = []
        self._size = 0
        self._opened = False

    def open(self, std: Std) -> Std:
        """Opens the target. Raises Failed."""
        match self._operator:
            case "2>&1":
                return std.with_(err=std.out)
            case ">&2" | "1>&2":
                return std.with_(out=std.err)
            case "<":
                return std.with_(stdin=Input(source(self._machine, [self._name], Input())))
            case _:
                write = self._write if self._name != "/dev/null" else _drop
                if write == self._write:
                    self._create()
                return std.with_(err=write) if self._operator == "2>" else std.with_(out=write)

    def _create(self) -> None:
        files = self._machine.files
        try:
            if self._operator == ">>" and files.is_file(self._path):
                self._chunks = [files.read(self._path)]
            files.write(self._path, b"".join(self._chunks))
        except OSError as error:
            raise Failed(f"can't create {self._name}: {error.strerror}") from error
        self._opened = True

    async def _write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > LIMIT:
            raise Failed("write error: No space left on device")
        self._chunks.append(data)

    def close(self) -> None:
        """Writes the buffered data; what exceeds the limit is dropped, as on a full disk."""
        if self._opened:
            with suppress(OSError):
                self._machine.files.write(self._path, b"".join(self._chunks))


async def _drop(data: bytes) -> None:
    """Discards data: `/dev/null`."""


def _is_due(step: Step, last: int) -> bool:
    return step.connector == ";" or (step.connector == "&&") == (last == 0)


def _signal_of(args: Sequence[str]) -> int:
    """Parses `kill [-SIGNAL] $$`: there are no other processes to signal. Raises Failed."""
    name = args[0].removeprefix("-").removeprefix("SIG") if len(args) == 2 else "TERM"
    known = {one.name.removeprefix("SIG"): int(one) for one in signal.Signals}
    number = int(name) if name.isdecimal() else known.get(name, 0)
    if args[-1:] != ["1"] or not 0 < number < 65:
        raise Failed("usage: kill [-SIGNAL] $$")
    return number
