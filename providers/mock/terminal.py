"""Terminal between a client in raw mode and the mock shell: echo, line editing, Ctrl-C, Ctrl-D, and the size.

Invariant: input reaches a command only as complete lines, or by Ctrl-D; output of a command gets carriage returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Self, TypeVar

from vkubelet.clock import Clock
from vkubelet.provider import ContainerIO, TerminalSize
from vkubelet_providers.mock.machine import INTERRUPTED, Pipe, either, together

T = TypeVar("T")
_TYPED_AHEAD: Final = 1024
_LONGEST_LINE: Final = 4096
_SIZE_SECONDS: Final = 0.5
_INTERRUPT, _END, _BELL, _ERASE = 0x03, 0x04, b"\a", (0x08, 0x7F)


class Terminal:
    """Input of the commands that run while `serve` runs; Ctrl-D is EOF for the command that reads, not for the next one."""

    def __init__(self, io: ContainerIO, clock: Clock) -> None:
        self._io = io
        self._clock = clock
        self._lines = Pipe(_TYPED_AHEAD)
        self._line = bytearray()
        self._size = TerminalSize(80, 24)
        self._sized = asyncio.Event()
        self._foreground: list[asyncio.Task[Any]] = []

    async def serve(self, work: Coroutine[None, None, int]) -> int:
        """Runs a command on this terminal; returns its exit code."""
        async with together() as group:
            others = [group.create_task(self._listen()), group.create_task(self._follow_size())]
            code = await self.until_interrupt(work)
            for task in others:
                task.cancel()
        return code

    async def until_interrupt(self, work: Coroutine[None, None, T]) -> T | int:
        """Returns the result of the work, or 130 when Ctrl-C cancelled it; of nested ones the innermost is cancelled."""
        async with together() as group:
            task = group.create_task(work)
            self._foreground.append(task)
            try:
                await asyncio.wait({task})
            finally:
                self._foreground.remove(task)
        return INTERRUPTED if task.cancelled() else task.result()

    async def size(self) -> TerminalSize:
        """Returns the latest size; clients send the first one just after the start, which is awaited for a moment."""
        await either(self._clock.sleep(_SIZE_SECONDS), self._sized.wait())
        return self._size

    async def write(self, data: bytes) -> None:
        await self._io.write_stdout(data.replace(b"\n", b"\r\n"))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        data = await anext(self._lines)
        if not data:
            raise StopAsyncIteration
        return data

    async def _follow_size(self) -> None:
        async for size in self._io.resizes:
            # A client without a terminal sends zero by zero.
            if size.width and size.height:
                self._size = size
                self._sized.set()

    async def _listen(self) -> None:
        if self._io.stdin is not None:
            async for data in self._io.stdin:
                shown = bytearray()
                for key in data:
                    shown += self._key(key)
                await self._io.write_stdout(bytes(shown))
        self._push()
        self._lines.end()

    def _key(self, key: int) -> bytes:
        """Handles one byte; returns its echo."""
        if key in (0x0D, 0x0A):
            self._line.append(0x0A)
            self._push()
            return b"\r\n"
        if key == _INTERRUPT:
            # Input typed ahead is dropped, as on every terminal.
            self._line.clear()
            self._lines.clear()
            if self._foreground:
                self._foreground[-1].cancel()
            return b"^C\r\n"
        if key == _END:
            self._push(end=not self._line)
            return b""
        if key in _ERASE:
            return self._erase()
        if key < 0x20 and key != 0x09:
            return bytes([0x5E, key + 0x40])
        if len(self._line) >= _LONGEST_LINE:
            return _BELL
        self._line.append(key)
        return bytes([key])

    def _erase(self) -> bytes:
        """Erases the last character, which may be several bytes of UTF-8."""
        if not self._line:
            return b""
        while len(self._line) > 1 and self._line[-1] & 0xC0 == 0x80:
            self._line.pop()
        self._line.pop()
        return b"\b \b"

    def _push(self, *, end: bool = False) -> None:
        if (self._line or end) and not self._lines.full:
            self._lines.put(bytes(self._line))
        self._line.clear()
