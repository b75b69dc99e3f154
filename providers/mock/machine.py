"""Environment of a command in the mock shell: its streams, its container, and the time.

Invariant: a pipe buffers a few chunks at most; a writer waits for its reader, and is notified when there is no reader any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Final, Self, TypeVar

from attrs import define, evolve, field, frozen

from vkubelet.clock import Clock
from vkubelet.provider import TerminalSize
from vkubelet_providers.mock.files import Files

T = TypeVar("T")
Write = Callable[[bytes], Awaitable[None]]
_CHUNKS: Final = 4
_LONGEST_LINE: Final = 1 << 16
INTERRUPTED: Final = 130
KILLED: Final = 137
BROKEN_PIPE: Final = 141
NOT_FOUND: Final = 127


class Exit(Exception):
    """Raised to exit with this code from the shell that runs the command."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit {code}")
        self.code = code


class Failed(Exception):
    """Raised by a command that exits with code 1 and this message."""


class Pipe:
    """Pipe between two commands; reading it stops after `end`, writing it raises BrokenPipeError after `break_off`."""

    def __init__(self, size: int = _CHUNKS) -> None:
        self._size = size
        self._chunks: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._broken = False

    @property
    def full(self) -> bool:
        return len(self._chunks) >= self._size

    async def write(self, data: bytes) -> None:
        while self.full and not self._broken:
            await self._changed.wait()
        if self._broken:
            raise BrokenPipeError
        self.put(data)

    def put(self, data: bytes) -> None:
        """Appends without waiting: for a caller that has checked whether it is full."""
        self._chunks.append(data)
        self._notify()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._chunks:
            if self._ended:
                raise StopAsyncIteration
            await self._changed.wait()
        data = self._chunks.popleft()
        self._notify()
        return data

    def end(self) -> None:
        self._ended = True
        self._notify()

    def clear(self) -> None:
        """Drops what has not been read."""
        self._chunks.clear()
        self._notify()

    def break_off(self) -> None:
        self._broken = True
        self.clear()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Input:
    """Standard input, by chunks or by lines; commands that run one after another share the rest."""

    def __init__(self, source: AsyncIterator[bytes] | None = None) -> None:
        self._source = source
        self._rest = b""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._rest:
            data, self._rest = self._rest, b""
            return data
        if self._source is None:
            raise StopAsyncIteration
        return await anext(self._source)

    async def line(self) -> bytes | None:
        """Reads one line with its newline; None at EOF."""
        line = b""
        async for data in self:
            head, newline, self._rest = data.partition(b"\n")
            line += head + newline
            if newline or len(line) > _LONGEST_LINE:
                break
        return line or None


@frozen
class Std:
    """The three streams of a command."""

    stdin: Input
    out: Write
    err: Write

    def with_(self, *, stdin: Input | None = None, out: Write | None = None, err: Write | None = None) -> Std:
        return evolve(self, stdin=stdin or self.stdin, out=out or self.out, err=err or self.err)

    async def say(self, text: str) -> None:
        await self.out(text.encode())

    async def complain(self, text: str) -> None:
        await self.err(text.encode())


@define
class Machine:
    """One container, as its commands see it; `size` returns that of the terminal, and is None without one."""

    hostname: str
    files: Files
    clock: Clock
    environment: Mapping[str, str] = field(factory=dict)
    directory: str = "/"
    size: Callable[[], Awaitable[TerminalSize]] | None = None


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """Runs a TaskGroup that raises the error of its first task instead of a group: callers here wait for one result."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def either(work: Coroutine[None, None, T], until: Coroutine[None, None, object]) -> T | None:
    """Returns the result of `work`; None when `until` finished first, and `work` was cancelled."""
    async with together() as group:
        working, waiting = group.create_task(work), group.create_task(until)
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        done = working.done()
        working.cancel()
        waiting.cancel()
    return working.result() if done else None
