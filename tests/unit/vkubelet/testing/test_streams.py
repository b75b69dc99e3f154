"""Streams in memory wait as real ones do."""

from __future__ import annotations

import asyncio

from vkubelet.provider import ByteStream, ContainerIO, TerminalSize
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.streams import MemoryIO, MemoryStream


async def test_stdin_is_what_was_given_and_then_what_is_typed() -> None:
    io: ContainerIO = MemoryIO(b"hello")
    assert io.stdin is not None
    assert [data async for data in io.stdin] == [b"hello"]
    assert MemoryIO().stdin is None
    typing = MemoryIO(b"a", open_stdin=True)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(read_all(typing))
        await ManualClock().settle()
        assert not task.done()
        typing.type(b"b")
        typing.end_stdin()
    assert task.result() == b"ab"


async def read_all(io: ContainerIO) -> bytes:
    assert io.stdin is not None
    return b"".join([data async for data in io.stdin])


async def test_sizes_come_in_order() -> None:
    io = MemoryIO(tty=True, size=TerminalSize(80, 24))
    io.resize(100, 50)
    assert [await anext(io.resizes), await anext(io.resizes)] == [TerminalSize(80, 24), TerminalSize(100, 50)]


async def test_writers_wait_while_the_client_takes_nothing() -> None:
    clock, io = ManualClock(), MemoryIO(room=4)

    async def write() -> None:
        for _ in range(10):
            await io.write_stdout(b"xx")
        await io.write_stderr(b"end")

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        await clock.settle()
        assert io.stdout == b"xxxx"
        io.out.release(room=2)
        await clock.settle()
        assert io.stdout == b"xxxxxx" and io.stderr == b""
        io.out.hold()
        await clock.settle()
        assert len(io.stdout) == 6
        io.out.release()
    assert len(io.stdout) == 20 and io.stderr == b"end"


async def test_a_stream_ends_after_what_was_sent() -> None:
    stream = MemoryStream(b"first")
    side: ByteStream = stream
    stream.send(b"second")
    stream.end()
    assert [await side.read() for _ in range(3)] == [b"first", b"second", b""]
    await side.write(b"answer")
    await side.close()
    assert stream.received == b"answer" and stream.closed
