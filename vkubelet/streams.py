"""Connects a client's streams to an asyncio process, terminal or socket, for providers that have one.

Invariant: nothing is read from one side before the other has accepted the data before it, and EOF on one side is forwarded to the other.

    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    await join(io, process.stdout, process.stdin, errors=process.stderr, ended=process.wait)

    await relay(stream, *await asyncio.open_connection(host, port))
"""

import asyncio
import errno
import os
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

from vkubelet.errors import first_error
from vkubelet.provider import ByteStream, ContainerIO, TerminalSize

CHUNK = 64 * 1024

Resize = Callable[[TerminalSize], None]
Ended = Callable[[], Awaitable[object]]


async def join(
    io: ContainerIO,
    reader: StreamReader,
    writer: StreamWriter | None,
    *,
    errors: StreamReader | None = None,
    resize: Resize | None = None,
    ended: Ended | None = None,
) -> None:
    """Copies the client's stdin to `writer`, and `reader` and `errors` to the client, until both are closed; then all of it was sent.

    `ended` is awaited where the outputs do not show termination, such as `process.wait`: a process may close them and still read. A client
    without stdin is forwarded as EOF; pass None for `writer` where that would be wrong. `resize` sets the size of a terminal. The writer
    receives EOF, but is not closed. Raises OSError when one side fails.
    """
    await _copy(io, (reader, errors), _feed(io.stdin, writer, last=True), resize=resize, ended=ended)


async def attach(
    io: ContainerIO,
    reader: StreamReader,
    writer: StreamWriter | None,
    *,
    errors: StreamReader | None = None,
    resize: Resize | None = None,
    ended: Ended | None = None,
) -> None:
    """Connects as `join`, for a process that outlives its clients: whatever a client does, the input stays open for the next one."""
    await _copy(io, (reader, errors), _feed(io.stdin, writer, last=False), resize=resize, ended=ended)


async def relay(stream: ByteStream, reader: StreamReader, writer: StreamWriter) -> None:
    """Copies between a forwarded connection and a socket, both ways, until both are closed; closing one direction leaves the other open.

    The writer is closed then, and whenever this is cancelled. Raises OSError when one side fails.
    """
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_receive(stream, writer))
            group.create_task(_send(reader, stream))
    except ExceptionGroup as several:
        raise first_error(several) from several
    finally:
        writer.close()


async def open_terminal(descriptor: int) -> tuple[StreamReader, StreamWriter]:
    """Opens both directions of the controlling side of a pseudo-terminal, the first of `os.openpty`; the descriptor stays the caller's.

    The reader is closed when the last program at the terminal exits. Both are closed by closing the writer.
    """
    loop = asyncio.get_running_loop()
    reader = StreamReader()
    reading, _ = await loop.connect_read_pipe(lambda: _TerminalProtocol(reader), os.fdopen(os.dup(descriptor), "rb", 0))
    try:
        writing, flow = await loop.connect_write_pipe(lambda: _Flow(reading), os.fdopen(os.dup(descriptor), "wb", 0))
    except OSError:
        reading.close()
        raise
    return reader, StreamWriter(writing, flow, None, loop)


class _TerminalProtocol(asyncio.StreamReaderProtocol):
    """A closed terminal is reported as an error, after which a StreamReader would drop its buffer."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(None if isinstance(exc, OSError) and exc.errno == errno.EIO else exc)


class _Flow(asyncio.streams.FlowControlMixin):
    """Flow control of the writing side, with which the reading side is closed."""

    def __init__(self, reading: asyncio.ReadTransport) -> None:
        super().__init__()
        self._reading = reading
        self._closed = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._reading.close()
        if not self._closed.done():
            self._closed.set_result(None)

    def _get_close_waiter(self, stream: StreamWriter) -> asyncio.Future[None]:
        return self._closed


async def _copy(
    io: ContainerIO,
    outputs: Sequence[StreamReader | None],
    feeding: Coroutine[object, object, None],
    *,
    resize: Resize | None,
    ended: Ended | None,
) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            inputs = [group.create_task(feeding), group.create_task(_resize(io.resizes, resize))]
            async with asyncio.TaskGroup() as output_group:
                for output, write in zip(outputs, (io.write_stdout, io.write_stderr), strict=True):
                    output_group.create_task(_drain(output, write))
            if ended is not None:
                await ended()
            for task in inputs:
                task.cancel()
    except ExceptionGroup as several:
        raise first_error(several) from several


async def _feed(stdin: AsyncIterator[bytes] | None, writer: StreamWriter | None, *, last: bool) -> None:
    if writer is None:
        return
    if stdin is not None:
        try:
            async for data in stdin:
                writer.write(data)
                await writer.drain()
        except (BrokenPipeError, ConnectionResetError):
            # It reads no more but may still write; the client's data must not pile up.
            async for _ in stdin:
                pass
    if last:
        _end(writer)


async def _drain(reader: StreamReader | None, write: Callable[[bytes], Awaitable[None]]) -> None:
    while reader is not None and (data := await reader.read(CHUNK)):
        await write(data)


async def _receive(stream: ByteStream, writer: StreamWriter) -> None:
    while data := await stream.read():
        writer.write(data)
        await writer.drain()
    _end(writer)


async def _send(reader: StreamReader, stream: ByteStream) -> None:
    while data := await reader.read(CHUNK):
        await stream.write(data)
    await stream.close()


async def _resize(sizes: AsyncIterator[TerminalSize], resize: Resize | None) -> None:
    async for size in sizes:
        if resize is not None:
            resize(size)


def _end(writer: StreamWriter) -> None:
    """Sends EOF, which TLS does not support for one direction."""
    if writer.can_write_eof() and not writer.is_closing():
        try:
            writer.write_eof()
        except OSError:
            # The other side is closed already.
            return
