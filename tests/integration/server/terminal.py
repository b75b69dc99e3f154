"""A terminal for kubectl, with somebody in front of it.

Invariant: the program has this terminal as its own, so that it is told of sizes and of Ctrl-C as at a real one.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import struct
import termios
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from attrs import define, field

from tests.integration.server.shells import Shells
from tests.support.program import PATIENCE

CTRL_C = b"\x03"


@define
class Terminal:
    """`seen` is all that was shown so far."""

    process: Process
    _master: int
    seen: bytearray = field(factory=bytearray)
    _news: asyncio.Event = field(factory=asyncio.Event)
    _looked_at: int = 0

    def type(self, data: bytes) -> None:
        os.write(self._master, data)

    def resize(self, *, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def expect(self, pattern: bytes, *, within: float = PATIENCE) -> None:
        """Wait until it is shown, behind what was waited for before."""
        try:
            async with asyncio.timeout(within):
                while (match := re.search(pattern, self.seen[self._looked_at :])) is None:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{pattern!r} is not shown, but {bytes(self.seen)!r}") from None
        self._looked_at += match.end()

    async def prompted(self, prompt: bytes, *, within: float = PATIENCE) -> None:
        """Press Enter until a shell answers: what is typed at one that was there before may come while nobody shows what it says."""
        async with asyncio.timeout(within):
            while re.search(prompt, self.seen[self._looked_at :]) is None:
                self.type(b"\r")
                self._news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await self._news.wait()
        await self.expect(prompt)

    def show(self) -> None:
        try:
            self.seen += os.read(self._master, 65536)
        except OSError:
            # The last program of the terminal has ended.
            asyncio.get_running_loop().remove_reader(self._master)
        self._news.set()


async def interrupt(terminal: Terminal) -> None:
    """Ctrl-C at a program that a shell has started; what is typed before the prompt is back may be lost with it."""
    terminal.type(CTRL_C)
    await terminal.expect(rb"\^C")
    await terminal.expect(rb"[#$] ")


@asynccontextmanager
async def kubectl_at_terminal(shells: Shells, *args: str, websockets: bool) -> AsyncIterator[Terminal]:
    """A kubectl at a terminal of 24 rows and 80 columns."""
    master, slave = os.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    loop = asyncio.get_running_loop()
    options = {
        "stdout": slave,
        "stderr": slave,
        "start_new_session": True,
        "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    }
    try:
        async with shells.kubectl(*args, websockets=websockets, stdin=slave, **options) as process:
            os.close(slave)
            terminal = Terminal(process, master)
            loop.add_reader(master, terminal.show)
            yield terminal
    finally:
        loop.remove_reader(master)
        os.close(master)
