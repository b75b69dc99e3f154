"""Starts keepers, and communicates with running ones.

Invariant: a keeper may exit at any moment; a missing one is NoSuchContainer here, and its exit is reported elsewhere.
"""

import asyncio
import fcntl
import json
import os
import socket
import sys
import termios
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from vkubelet.errors import task_error
from vkubelet.provider import BadRequest, ContainerIO, NoSuchContainer, TerminalSize, Unavailable
from vkubelet.streams import CHUNK, attach, join, open_terminal
from vkubelet_providers.process.keeper import frames
from vkubelet_providers.process.keeper.child import Order

_PROGRAM: Final = "import sys; sys.path.append(sys.argv[1]); from keeper.main import main; main()"
_FOLDER: Final = str(Path(__file__).parent)
_TRIES: Final = 2
_SIZE_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 10.0
_END_SECONDS: Final = 1.0


class Nursery:
    """Starter of keepers: a small process that runs as long as we do."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None
        self._sending = asyncio.Lock()

    async def launch(self, order: Order, lock: int) -> None:
        """Starts a keeper, which inherits the lock; when this returns its process runs. Raises Unavailable (RunContainerError).

        When it raises, the process does not run and never will, except that a keeper which has the lock may still be starting it.
        """
        reading, writing = os.pipe()
        with ExitStack() as stack:
            stack.callback(os.close, reading)
            try:
                await self._send(frames.frame(frames.ASK, json.dumps(order).encode()), [lock, writing])
            except OSError as error:
                raise Unavailable(f"cannot start a keeper: {error.strerror}", event="Failed", waiting="RunContainerError") from error
            finally:
                os.close(writing)
            stack.pop_all()
        reader, transport = await _reader(reading)
        try:
            async with asyncio.timeout(order["start_timeout"] + _ANSWER_SECONDS):
                answer = await reader.readline()
            told = json.loads(answer) if answer else {"failed": "the keeper has gone without an answer"}
            if "failed" in told:
                # It exits then, unless its process hangs where no signal reaches it.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_END_SECONDS):
                        await reader.read()
        except TimeoutError as error:
            raise Unavailable("the keeper of the container does not respond", event="Failed", waiting="RunContainerError") from error
        finally:
            transport.close()
        if "failed" in told:
            raise Unavailable(told["failed"], event="Failed", waiting="RunContainerError")

    async def _send(self, order: bytes, descriptors: Sequence[int]) -> None:
        """Sends an order. Raises OSError."""
        loop = asyncio.get_running_loop()
        async with self._sending:
            for tries_left in range(_TRIES - 1, -1, -1):
                connected = self._socket or await self._begin()
                try:
                    sent = socket.send_fds(connected, [order], descriptors)
                    await loop.sock_sendall(connected, order[sent:])
                    return
                except OSError:
                    # It has exited: another one replaces it.
                    await self._end()
                    if not tries_left:
                        raise
                except asyncio.CancelledError:
                    # It may have received half an order, after which none can follow.
                    self._close()
                    raise

    async def begin(self) -> None:
        """Starts the nursery before the first start, which may be cancelled."""
        async with self._sending:
            await self._begin()

    async def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ExitStack() as stack:
            stack.enter_context(ours)
            with theirs:
                # It gets nothing of our environment, and so nothing of that reaches a container.
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", "-c", _PROGRAM, _FOLDER), stdin=theirs.fileno(), env={}, start_new_session=True
                )
            stack.pop_all()
        self._socket = ours
        return ours

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def _end(self) -> None:
        self._close()
        if self._process is not None:
            await self._process.wait()
            self._process = None

    async def close(self) -> None:
        """Stops the nursery; keepers continue."""
        async with self._sending:
            await self._end()


@asynccontextmanager
async def connection(directory: Path) -> AsyncIterator[socket.socket]:
    """Connects to the keeper whose files are in `directory`. Raises NoSuchContainer."""
    loop = asyncio.get_running_loop()
    try:
        # The name of a socket must be short, whatever the directory is called.
        folder = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise NoSuchContainer("the container is not running") from error
    with socket.socket(socket.AF_UNIX) as connected:
        connected.setblocking(False)
        try:
            await loop.sock_connect(connected, f"/proc/self/fd/{folder}/{frames.SOCKET}")
        except OSError as error:
            raise NoSuchContainer("the container is not running") from error
        finally:
            os.close(folder)
        yield connected


async def stop(directory: Path, grace: float, *, patience: float = _ANSWER_SECONDS) -> None:
    """Stops a container. Raises NoSuchContainer when it has terminated, Unavailable when its keeper does not respond within `patience`
    seconds."""
    try:
        async with asyncio.timeout(patience), connection(directory) as connected:
            await _ask(connected, _question(do="stop", grace=grace))
            await _answer(connected)
    except TimeoutError as error:
        raise Unavailable("the keeper of the container does not respond") from error


# --- attach ------------------------------------------------------------------------------------------------------------------------------


async def attach_to(directory: Path, io: ContainerIO) -> None:
    """Attaches until the container terminates. Raises NoSuchContainer."""
    async with connection(directory) as connected:
        await _ask(connected, _question(do="attach", stdin=io.stdin is not None))
        ours = connected.dup()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            async with asyncio.TaskGroup() as group:
                inputs = [group.create_task(_give_input(io, writer)), group.create_task(_give_sizes(io, writer))]
                await _show(io, reader)
                for task in inputs:
                    task.cancel()
        except ExceptionGroup as several:
            # A keeper that exits meanwhile is no failure.
            if several.split((ConnectionResetError, BrokenPipeError))[1] is not None:
                raise task_error(several) from several
        finally:
            writer.close()


async def _show(io: ContainerIO, reader: StreamReader) -> None:
    cut = frames.Frames()
    while data := await reader.read(CHUNK):
        for kind, body in cut.feed(data):
            if kind == frames.STDOUT:
                await io.write_stdout(body)
            elif kind == frames.STDERR:
                await io.write_stderr(body)


async def _give_input(io: ContainerIO, writer: StreamWriter) -> None:
    if io.stdin is None:
        return
    async for data in io.stdin:
        writer.write(frames.frame(frames.STDIN, data))
        await writer.drain()
    writer.write(frames.frame(frames.STDIN_END))
    await writer.drain()


async def _give_sizes(io: ContainerIO, writer: StreamWriter) -> None:
    async for size in io.resizes:
        if size.width and size.height:
            writer.write(frames.frame(frames.SIZE, frames.window(width=size.width, height=size.height)))
            await writer.drain()


# --- exec --------------------------------------------------------------------------------------------------------------------------------


async def execute(directory: Path, command: Sequence[str], io: ContainerIO) -> int:
    """Executes a command; returns the exit code, or minus the signal. A client that disconnects kills it. Raises NoSuchContainer,
    BadRequest."""
    run = _at_terminal if io.tty else _with_pipes
    async with connection(directory) as connected:
        return await run(connected, command, io)


async def _at_terminal(connected: socket.socket, command: Sequence[str], io: ContainerIO) -> int:
    master, slave = os.openpty()
    writer: StreamWriter | None = None
    try:
        async with asyncio.TaskGroup() as group:
            sized = asyncio.Event()
            sizes = group.create_task(_follow_sizes(io, master, sized))
            try:
                # Clients send the first size just after the start, and a program that reads it early should get it.
                with suppress(TimeoutError):
                    await asyncio.wait_for(sized.wait(), _SIZE_SECONDS)
                await _begin(connected, command, [slave] * 3, tty=True)
            finally:
                os.close(slave)
            reader, writer = await open_terminal(master)
            ended = _Ended(connected)
            await attach(_WithoutSizes(io), reader, writer, ended=ended)
            sizes.cancel()
        return ended.code
    except ExceptionGroup as several:
        raise task_error(several) from several
    finally:
        if writer is not None:
            writer.close()
        os.close(master)


async def _follow_sizes(io: ContainerIO, terminal: int, sized: asyncio.Event) -> None:
    async for size in io.resizes:
        if size.width and size.height:
            window = frames.for_terminal(frames.window(width=size.width, height=size.height))
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, window)
            sized.set()


class _WithoutSizes:
    """A client whose sizes are read elsewhere."""

    def __init__(self, io: ContainerIO) -> None:
        self.tty, self.stdin = io.tty, io.stdin
        self.resizes = _nothing()
        self.write_stdout, self.write_stderr = io.write_stdout, io.write_stderr


async def _nothing() -> AsyncIterator[TerminalSize]:
    return
    yield


async def _with_pipes(connected: socket.socket, command: Sequence[str], io: ContainerIO) -> int:
    theirs: list[int] = []
    ours: list[int] = []
    writer: StreamWriter | None = None
    transports: list[asyncio.BaseTransport] = []
    try:
        for number in range(3):
            reading, writing = os.pipe()
            theirs.append(reading if number == 0 else writing)
            ours.append(writing if number == 0 else reading)
        if io.stdin is None:
            os.close(theirs[0])
            theirs[0] = os.open(os.devnull, os.O_RDONLY)
        try:
            await _begin(connected, command, theirs, tty=False)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        writer = await _writer(ours.pop(0))
        transports.append(writer.transport)
        readers = []
        while ours:
            reader, transport = await _reader(ours.pop(0))
            readers.append(reader)
            transports.append(transport)
        ended = _Ended(connected)
        await join(io, readers[0], writer, errors=readers[1], ended=ended)
        return ended.code
    finally:
        for each in transports:
            each.close()
        for descriptor in ours:
            os.close(descriptor)


class _Pipe:
    """A descriptor that a transport closes, once.

    uvloop closes the number by itself, and then the file object, when the number may already be in use again.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._closes_itself = type(asyncio.get_running_loop()).__module__.startswith("uvloop")

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0 and not self._closes_itself:
            os.close(descriptor)


async def _reader(descriptor: int) -> tuple[StreamReader, asyncio.BaseTransport]:
    reader = StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), _Pipe(descriptor))
    return reader, transport


async def _writer(descriptor: int) -> StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, _Pipe(descriptor))
    return StreamWriter(transport, protocol, None, loop)


async def _begin(connected: socket.socket, command: Sequence[str], descriptors: Sequence[int], *, tty: bool) -> None:
    """Sends the command. Raises BadRequest, NoSuchContainer."""
    await _ask(connected, _question(do="exec", command=list(command), tty=tty), descriptors)
    answer = await _answer(connected)
    if "failed" in answer:
        raise BadRequest(f"failed to exec in container: {answer['failed']}")


class _Ended:
    """Waits for the exit of a command, and then knows its exit code."""

    def __init__(self, connected: socket.socket) -> None:
        self._connected = connected
        self.code = 0

    async def __call__(self) -> None:
        self.code = int((await _answer(self._connected))["exit"])


async def _answer(connected: socket.socket) -> dict[str, Any]:
    """Reads the next response. Raises NoSuchContainer when the keeper exits instead."""
    cut, loop = frames.Frames(), asyncio.get_running_loop()
    while True:
        # A response must not consume bytes of the next one.
        head = await _exactly(connected, 5, loop)
        for _, body in cut.feed(head + await _exactly(connected, int.from_bytes(head[1:], "big"), loop)):
            answer: dict[str, Any] = json.loads(body)
            return answer


async def _exactly(connected: socket.socket, count: int, loop: asyncio.AbstractEventLoop) -> bytes:
    data = b""
    while len(data) < count:
        try:
            more = await loop.sock_recv(connected, count - len(data))
        except ConnectionResetError:
            more = b""
        if not more:
            raise NoSuchContainer("the container has terminated")
        data += more
    return data


async def _ask(connected: socket.socket, question: bytes, descriptors: Sequence[int] = ()) -> None:
    """Sends a request. Raises NoSuchContainer when the keeper exits meanwhile."""
    try:
        sent = socket.send_fds(connected, [question], descriptors)
        await asyncio.get_running_loop().sock_sendall(connected, question[sent:])
    except (BrokenPipeError, ConnectionResetError) as error:
        raise NoSuchContainer("the container has terminated") from error


def _question(**values: object) -> bytes:
    return frames.frame(frames.ASK, json.dumps(values).encode())
