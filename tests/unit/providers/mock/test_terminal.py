"""A terminal echoes, edits, interrupts and has a size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from vkubelet.provider import TerminalSize
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.streams import MemoryIO
from vkubelet_providers.mock.files import Files
from vkubelet_providers.mock.machine import Machine
from vkubelet_providers.mock.shell import run_with

SIZE = TerminalSize(80, 24)


class Session:
    """Somebody at a terminal."""

    def __init__(self, io: MemoryIO, clock: ManualClock) -> None:
        self.io = io
        self.clock = clock
        self.code: int | None = None

    async def typed(self, data: str) -> str:
        """What it shows in answer."""
        before = len(self.io.stdout)
        self.io.type(data.encode())
        await self.clock.settle()
        return self.io.stdout[before:].decode()


@asynccontextmanager
async def session(argv: Sequence[str], *, size: TerminalSize | None = SIZE) -> AsyncIterator[Session]:
    clock = ManualClock()
    one = Session(MemoryIO(tty=True, open_stdin=True, size=size), clock)

    async def run() -> None:
        one.code = await run_with(one.io, Machine("web", Files(), clock), argv)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run())
        await clock.settle()
        yield one
        task.cancel()


async def test_what_is_typed_is_echoed_and_run_by_line() -> None:
    async with session(["sh"]) as one:
        assert one.io.stdout == b"/ # "
        assert await one.typed("echo a") == "echo a"
        assert await one.typed("\x7fbc\r") == "\b \bbc\r\nbc\r\n/ # "
        assert await one.typed("echo é\x7f\x7fx\r") == "echo é\b \b\b \bx\r\nechox: not found\r\n/ # ".replace("echox", "sh: echox")
        assert await one.typed("\x1b[A\x03") == "^[[A^C\r\n/ # "
        assert await one.typed("exit 3\r") == "exit 3\r\n" and one.code == 3


async def test_interrupt_ends_the_command_and_not_the_shell() -> None:
    async with session(["sh"]) as one:
        await one.typed("sleep 1000\r")
        assert await one.typed("\x03") == "^C\r\n/ # "
        assert await one.typed("echo $?\r") == "echo $?\r\n130\r\n/ # "
        assert (await one.typed("sleep 1000\recho never\r\x03")).endswith("^C\r\n/ # ")
        assert "never\r\n" not in (await one.typed("true\r"))
        await one.typed("sleep 1000 | cat\r")
        assert await one.typed("\x03") == "^C\r\n/ # "
    async with session(["sleep", "1000"]) as one:
        await one.typed("\x03")
        assert one.code == 130


async def test_end_of_input_is_for_who_reads() -> None:
    async with session(["sh"]) as one:
        await one.typed("cat\r")
        assert await one.typed("ab\r") == "ab\r\nab\r\n"
        assert await one.typed("\x04") == "/ # " and one.code is None
        await one.typed("\x04")
        assert one.code == 0


async def test_size_follows_the_client() -> None:
    async with session(["sh"]) as one:
        assert "24 80" in await one.typed("stty size\r")
        one.io.resize(0, 0)
        one.io.resize(120, 40)
        assert "40 120" in await one.typed("stty size; tty\r")
    async with session(["stty", "size"], size=None) as one:
        one.io.resize(100, 50)
        await one.clock.settle()
        assert one.io.stdout == b"50 100\r\n"
    async with session(["stty", "size"], size=None) as one:
        await one.clock.advance(1.0)
        assert one.io.stdout == b"24 80\r\n" and one.code == 0


async def test_a_client_that_ends_its_input_ends_the_shell() -> None:
    async with session(["sh"]) as one:
        await one.typed("echo last")
        one.io.end_stdin()
        await one.clock.settle()
        assert one.io.stdout.endswith(b"last\r\n/ # ") and one.code == 0


async def test_an_endless_line_is_stopped_by_a_bell() -> None:
    async with session(["cat"]) as one:
        shown = await one.typed("x" * 5000)
        assert shown == "x" * 4096 + "\a" * 904
