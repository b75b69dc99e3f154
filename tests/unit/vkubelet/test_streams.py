"""Copying between a client and a process or socket, with readers that are fed by hand and writers that keep what they get."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.support.memory_transport import MemoryTransport
from vkubelet.provider import TerminalSize
from vkubelet.streams import CHUNK, attach, join, open_terminal, relay
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.streams import MemoryIO, MemoryStream


class Pipe(MemoryTransport):
    """The other end of a process or socket: what was written, and whether the end was told."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = False
        self.broken = False
        self.flow = asyncio.streams.FlowControlMixin()
        self.flow.connection_lost = lambda exc: None  # type: ignore[method-assign]
        self.writer = asyncio.StreamWriter(self, self.flow, None, asyncio.get_running_loop())
        self.reader = asyncio.StreamReader()

    def write(self, data: bytes | bytearray | memoryview) -> None:  # type: ignore[type-arg]
        if self.broken:
            raise BrokenPipeError
        super().write(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True


def output(data: bytes, *, end: bool = True) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    if end:
        reader.feed_eof()
    return reader


async def settled(work: Callable[[], Awaitable[object]]) -> asyncio.Task[object]:
    task = asyncio.ensure_future(work())
    await ManualClock().settle()
    return task


async def test_everything_is_copied_both_ways_and_the_end_of_input_is_told() -> None:
    io, pipe = MemoryIO(b"typed"), Pipe()
    ended = asyncio.Event()
    task = await settled(lambda: join(io, output(b"out" * CHUNK), pipe.writer, errors=output(b"err"), ended=ended.wait))
    assert (io.stdout, io.stderr, bytes(pipe.sent), pipe.ended) == (b"out" * CHUNK, b"err", b"typed", True)
    assert not task.done(), "the outputs have ended, the process has not"
    ended.set()
    await task


async def test_a_process_that_closed_its_outputs_gets_the_rest_of_its_input() -> None:
    io, pipe, ended = MemoryIO(open_stdin=True), Pipe(), asyncio.Event()
    task = await settled(lambda: join(io, output(b""), pipe.writer, ended=ended.wait))
    io.type(b"late")
    await ManualClock().settle()
    assert bytes(pipe.sent) == b"late"
    ended.set()
    await task


async def test_without_anything_else_to_wait_for_the_end_of_the_outputs_is_the_end() -> None:
    io, pipe = MemoryIO(open_stdin=True), Pipe()
    await join(io, output(b"all"), pipe.writer)
    assert io.stdout == b"all"
    assert not pipe.ended


async def test_a_client_without_stdin_is_an_end_of_input_unless_there_is_no_writer() -> None:
    pipe, reader = Pipe(), output(b"", end=False)
    task = await settled(lambda: join(MemoryIO(), reader, pipe.writer))
    assert pipe.ended
    reader.feed_eof()
    await task
    await join(MemoryIO(b"nobody reads this"), output(b"x"), None)


async def test_input_for_a_process_that_reads_no_more_is_dropped_and_its_output_arrives() -> None:
    io, pipe, reader, typed = MemoryIO(), Pipe(), output(b"", end=False), list(range(100))

    async def typing() -> AsyncIterator[bytes]:
        while typed:
            typed.pop()
            yield b"unwanted"

    io.stdin = typing()
    pipe.broken = True
    task = await settled(lambda: join(io, reader, pipe.writer))
    assert not typed
    reader.feed_data(b"still writing")
    reader.feed_eof()
    await task
    assert io.stdout == b"still writing"


async def test_a_terminal_is_read_up_to_the_last_word_of_its_last_program() -> None:
    master, slave = os.openpty()
    try:
        reader, writer = await open_terminal(master)
        io = MemoryIO(b"typed\n", tty=True)
        os.write(slave, b"last words")
        os.close(slave)
        await join(io, reader, writer)
        assert io.stdout.startswith(b"last words")
        writer.close()
        await writer.wait_closed()
    finally:
        os.close(master)


async def test_after_an_attach_the_input_is_still_open() -> None:
    pipe, reader = Pipe(), output(b"", end=False)
    for word in (b"one", b"two"):
        task = await settled(lambda word=word: attach(MemoryIO(word), reader, pipe.writer))  # type: ignore[misc]
        task.cancel()
        await asyncio.wait([task])
    assert (bytes(pipe.sent), pipe.ended) == (b"onetwo", False)


async def test_sizes_are_set_while_it_runs() -> None:
    sizes: list[TerminalSize] = []
    io, reader = MemoryIO(tty=True, open_stdin=True, size=TerminalSize(80, 24)), output(b"", end=False)
    task = await settled(lambda: join(io, reader, None, resize=sizes.append))
    io.resize(100, 30)
    await ManualClock().settle()
    reader.feed_eof()
    await task
    assert sizes == [TerminalSize(80, 24), TerminalSize(100, 30)]


async def test_errors_are_raised_as_they_are_and_end_everything() -> None:
    reader = output(b"", end=False)
    task = await settled(lambda: join(MemoryIO(open_stdin=True), reader, Pipe().writer))
    reader.set_exception(ConnectionResetError("the backend"))
    with pytest.raises(ConnectionResetError, match="the backend"):
        await task


async def test_a_slow_client_is_waited_for() -> None:
    io = MemoryIO(room=10)
    task = await settled(lambda: join(io, output(bytes(3 * CHUNK)), None))
    assert not task.done()
    assert len(io.stdout) <= CHUNK
    io.out.release()
    await task
    assert len(io.stdout) == 3 * CHUNK


async def test_relay_passes_each_end_on_and_goes_on_in_the_other_direction() -> None:
    stream, pipe = MemoryStream(b"question"), Pipe()
    task = await settled(lambda: relay(stream, pipe.reader, pipe.writer))
    assert bytes(pipe.sent) == b"question"
    stream.end()
    await ManualClock().settle()
    assert pipe.ended and not stream.closed
    pipe.reader.feed_data(b"answer")
    await ManualClock().settle()
    assert stream.received == b"answer"
    pipe.reader.feed_eof()
    await task
    assert stream.closed and pipe.is_closing()


async def test_relay_hears_the_client_after_the_socket_has_said_all() -> None:
    stream, pipe = MemoryStream(), Pipe()
    pipe.reader.feed_eof()
    task = await settled(lambda: relay(stream, pipe.reader, pipe.writer))
    assert stream.closed and not task.done()
    stream.send(b"still talking")
    stream.end()
    await task
    assert bytes(pipe.sent) == b"still talking"


async def test_relay_closes_the_socket_when_it_fails_or_is_cancelled() -> None:
    stream, pipe = MemoryStream(), Pipe()
    task = await settled(lambda: relay(stream, pipe.reader, pipe.writer))
    pipe.reader.set_exception(ConnectionResetError("the pod"))
    with pytest.raises(ConnectionResetError, match="the pod"):
        await task
    assert pipe.is_closing()
    pipe = Pipe()
    task = await settled(lambda: relay(stream, pipe.reader, pipe.writer))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pipe.is_closing()
