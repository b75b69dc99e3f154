"""What clients of exec, attach and port-forward get from a mock pod: a few scripted commands, a terminal, and services at its ports.

Invariant: a command runs in the task of its caller and in children of it, so a client that disconnects cancels it at any point.

Commands are `echo`, `cat`, `seq`, `sleep`, `hostname`, `stty size`, `true`, `false`, and what `kubectl cp` calls: `test -d` and `tar`.
`sh -c` runs commands separated by `;`, with `>&2`, `exit` and `kill -9 $$`; `sh` alone runs the lines of its standard input. It is not a
shell: pipes, variables and other redirections are refused.
"""

import asyncio
import posixpath
import re
import shlex
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from attrs import define, field

from vkubelet.clock import Clock
from vkubelet.errors import task_error
from vkubelet.provider import ByteStream, ContainerIO, TerminalSize
from vkubelet_providers.mock.files import LIMIT, Files, absolute

T = TypeVar("T")
Write = Callable[[bytes], Awaitable[None]]

KILLED: Final = 137
"""Exit code after SIGKILL."""
_NOT_FOUND: Final = 127
_USAGE: Final = 2
_SIZE_SECONDS: Final = 0.5
"""Seconds to wait for the size of a terminal, which clients send just after the start."""
_SHELLS: Final = ("sh", "bash", "ash")
_END_OF_INPUT: Final = re.compile(rb"[\x03\x04]")
"""Ctrl-C and Ctrl-D; both close standard input."""
_CHUNK: Final = 1 << 16
_LONGEST_HEAD: Final = 1 << 16
_HEAD_END: Final = b"\r\n\r\n"


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """Runs a TaskGroup that raises the error of its first task instead of a group: callers here wait for one result."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as errors:
        raise task_error(errors) from None


async def either(work: Coroutine[None, None, T], until: Coroutine[None, None, object]) -> T | None:
    """Returns the result of `work`; None when `until` finished first, and `work` was cancelled."""
    async with together() as group:
        working, waiting = group.create_task(work), group.create_task(until)
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        done = working.done()
        working.cancel()
        waiting.cancel()
    return working.result() if done else None


# --- exec ------------------------------------------------------------------------------------------------------------------------------


class _Exit(Exception):
    """Raised to exit from the shell that runs the command."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit {code}")
        self.code = code


class _Refused(Exception):
    """Raised for a script that is beyond the mock provider; the message is for standard error."""


@define(kw_only=True)
class Session:
    """One command of a client in a container, with its standard streams."""

    io: ContainerIO
    hostname: str
    files: Files
    clock: Clock
    _input: AsyncIterator[bytes] = field(init=False)
    _size: TerminalSize = field(init=False, default=TerminalSize(80, 24))
    _sized: asyncio.Event = field(init=False, factory=asyncio.Event)

    def __attrs_post_init__(self) -> None:
        self._input = _nothing() if self.io.stdin is None else self.io.stdin

    async def run(self, argv: Sequence[str]) -> int:
        """Runs a command, as a container engine would start it; returns its exit code."""
        if self.io.tty:
            self._input = _typed(self._input, self._out)
        elif _is_shell(argv) and len(argv) == 1:
            self._input = _lines(self._input)
        async with together() as group:
            following = group.create_task(self._follow_size())
            try:
                return await self._command(argv, self._out)
            except _Exit as end:
                return end.code
            finally:
                following.cancel()

    async def _command(self, argv: Sequence[str], out: Write) -> int:
        """Runs one command; returns its exit code. Raises _Exit when it exits from its shell."""
        name, *args = argv
        if _is_shell(argv):
            return await self._script(args[1]) if args[:1] == ["-c"] and len(args) > 1 else await self._interactive()
        match [posixpath.basename(name), *args]:
            case ["true"]:
                return 0
            case ["false"]:
                return 1
            case ["echo", *words]:
                await out(f"{' '.join(words)}\n".encode())
            case ["cat", *paths]:
                return await self._cat(paths, out)
            case ["seq", first, last] if first.isdecimal() and last.isdecimal():
                await out("".join(f"{number}\n" for number in range(int(first), int(last) + 1)).encode())
            case ["sleep", seconds] if re.fullmatch(r"[0-9]+(\.[0-9]+)?", seconds):
                await self.clock.sleep(float(seconds))
            case ["hostname"]:
                await out(f"{self.hostname}\n".encode())
            case ["stty", "size"] if self.io.tty:
                await either(self.clock.sleep(_SIZE_SECONDS), self._sized.wait())
                await out(f"{self._size.height} {self._size.width}\n".encode())
            case ["test", "-d", path]:
                return int(not self.files.is_directory(absolute(path)))
            case ["tar", *options]:
                return await self._tar(options, out)
            case ["exit"]:
                raise _Exit(0)
            case ["exit", code] if code.isdecimal():
                raise _Exit(int(code) % 256)
            case ["kill", "-9", "$$"]:
                raise _Exit(KILLED)
            case _:
                await self._err(f"sh: {name}: not found\n".encode())
                return _NOT_FOUND
        return 0

    # --- shells ---

    async def _script(self, text: str) -> int:
        try:
            return await self._steps(text)
        except _Exit as end:
            return end.code

    async def _interactive(self) -> int:
        """Runs the lines of standard input, with a prompt on a terminal."""
        code = 0
        while True:
            if self.io.tty:
                await self._out(b"/ # ")
            line = await anext(self._input, None)
            if line is None:
                return code
            code = await self._steps(line.decode(errors="replace"))

    async def _steps(self, text: str) -> int:
        """Runs the commands of a script; returns the code of the last one. Raises _Exit."""
        code = 0
        try:
            for words in _parse(text):
                to_errors = words[-1] in (">&2", "1>&2")
                command = words[:-1] if to_errors else words
                code = await self._command(command, self._err if to_errors else self._out) if command else 0
        except _Refused as error:
            await self._err(f"sh: {error}\n".encode())
            return _USAGE
        return code

    # --- files ---

    async def _cat(self, paths: Sequence[str], out: Write) -> int:
        if not paths or paths == ["-"]:
            async for data in self._input:
                await out(data)
        for path in paths if paths != ["-"] else ():
            try:
                await out(self.files.read(absolute(path)))
            except OSError as error:
                await self._err(f"cat: {path}: {error.strerror}\n".encode())
                return 1
        return 0

    async def _tar(self, options: Sequence[str], out: Write) -> int:
        """Serves the two forms of `kubectl cp`, whose archive is a stream: `tar cf - PATH` and `tar -xmf - [-C DIRECTORY]`."""
        try:
            match [option for option in options if not option.startswith("--")]:
                case ["cf", "-", path]:
                    archive = self.files.pack(absolute(path), mtime=self.clock.now().timestamp())
                    for start in range(0, len(archive), _CHUNK):
                        await out(archive[start : start + _CHUNK])
                    return 0
                case ["-xmf", "-"]:
                    self.files.unpack(await self._archive(), "/")
                    return 0
                case ["-xmf", "-", "-C", directory]:
                    self.files.unpack(await self._archive(), absolute(directory))
                    return 0
            reason = "only `tar cf - PATH` and `tar -xmf - -C DIRECTORY` are supported"
        except (FileNotFoundError, tarfile.TarError) as error:
            reason = getattr(error, "strerror", None) or str(error)
        await self._err(f"tar: {reason}\n".encode())
        return 1

    async def _archive(self) -> bytes:
        """Reads an archive from standard input. Raises TarError when it is too long."""
        archive = bytearray()
        async for data in self._input:
            archive += data
            if len(archive) > LIMIT:
                raise tarfile.TarError(f"the archive has more than {LIMIT} bytes")
        return bytes(archive)

    # --- streams ---

    async def _out(self, data: bytes) -> None:
        await self.io.write_stdout(data.replace(b"\n", b"\r\n") if self.io.tty else data)

    async def _err(self, data: bytes) -> None:
        await (self._out if self.io.tty else self.io.write_stderr)(data)

    async def _follow_size(self) -> None:
        async for size in self.io.resizes:
            # A client without a terminal sends zero by zero.
            if size.width and size.height:
                self._size = size
                self._sized.set()


def _is_shell(argv: Sequence[str]) -> bool:
    return posixpath.basename(argv[0]) in _SHELLS


def _parse(text: str) -> Iterator[list[str]]:
    """Yields the arguments of each command of a script. Raises _Refused."""
    parser = shlex.shlex(text.replace("\n", ";"), posix=True, punctuation_chars=";")
    parser.whitespace_split, parser.commenters = True, ""
    try:
        tokens = [*parser, ";"]
    except ValueError as error:
        raise _Refused(f"syntax error: {error}") from error
    words: list[str] = []
    for token in tokens:
        if token.strip(";"):
            words.append(token)
        elif words:
            beyond = next((word for word in words if re.match(r"[|&<(]|[12]?>(?!&2)", word)), None)
            if beyond is not None:
                raise _Refused(f"{beyond}: not supported by the mock provider, which has no shell")
            yield words
            words = []


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield


async def _lines(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for data in source:
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line + b"\n"
    if rest:
        yield rest


async def _typed(source: AsyncIterator[bytes], echo: Write) -> AsyncIterator[bytes]:
    """Yields the lines typed on a terminal, which echoes them, until Ctrl-C or Ctrl-D."""

    async def echoed() -> AsyncIterator[bytes]:
        async for data in source:
            text, *end = _END_OF_INPUT.split(data.replace(b"\r", b"\n"), maxsplit=1)
            await echo(text)
            yield text
            if end:
                return

    async for line in _lines(echoed()):
        yield line


# --- port-forward ----------------------------------------------------------------------------------------------------------------------


async def serve(answer: str, stream: ByteStream, *, name: str) -> None:
    """Serves a connection as `echo`, `discard` or `http`, until its client has sent everything; `name` is that of the pod."""
    if answer == "http":
        await _respond(stream, name)
    else:
        while data := await stream.read():
            if answer == "echo":
                await stream.write(data)
    await stream.close()


async def _respond(stream: ByteStream, name: str) -> None:
    """Serves one request of any type; the response names the pod and the path."""
    head = b""
    while _HEAD_END not in head and len(head) < _LONGEST_HEAD:
        data = await stream.read()
        if not data:
            return
        head += data
    words = head.partition(b"\r\n")[0].split()
    path = words[1].decode(errors="replace") if len(words) == 3 else "?"
    body = f"{name} answers at {path}\n".encode()
    fields = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    await stream.write(fields.encode() + body)
