"""Both sides of a stream in memory, to test a provider's exec, attach and port-forward without a server.

Invariant: as with a real client, a write waits while the client does not read (`hold`, `room`), and every wait yields to other tasks.

    io = MemoryIO(b"hello")
    assert await provider.exec(pod, "main", ["cat"], io) == 0
    assert io.stdout == b"hello"
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Generic, TypeVar

from vkubelet.clock import SystemClock
from vkubelet.provider import TerminalSize

T = TypeVar("T")


class Feed(Generic[T]):
    """Input that a test sends piece by piece, as an async iterator."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = deque(items)
        self._ended = False
        self._changed = asyncio.Event()

    def put(self, item: T) -> None:
        self._items.append(item)
        self._changed.set()

    def end(self) -> None:
        """Closes the input."""
        self._ended = True
        self._changed.set()

    @property
    def empty(self) -> bool:
        """Whether everything that was sent has been read."""
        return not self._items

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        await SystemClock().sleep(0)
        while not self._items:
            if self._ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._items.popleft()


class Sink:
    """Received output, and how fast the client reads it: after `room` bytes, or while paused, the writer waits."""

    def __init__(self, room: int | None = None) -> None:
        self.data = bytearray()
        self._room = room
        self._held = False
        self._changed = asyncio.Event()

    def hold(self) -> None:
        self._held = True

    def release(self, room: int | None = None) -> None:
        """Resumes reading, without a limit or with this number of further bytes."""
        self._held, self._room = False, None if room is None else len(self.data) + room
        self._changed.set()

    async def write(self, data: bytes) -> None:
        await SystemClock().sleep(0)
        while self._held or (self._room is not None and len(self.data) >= self._room):
            self._changed.clear()
            await self._changed.wait()
        self.data += data


class MemoryIO:
    """A `ContainerIO` whose client is a test. With `stdin` given the client sends that and closes it; with None it has no standard
    input, and with `open_stdin` it continues to `type` until `end_stdin`."""

    def __init__(
        self,
        stdin: bytes | None = None,
        *,
        tty: bool = False,
        open_stdin: bool = False,
        size: TerminalSize | None = None,
        room: int | None = None,
    ) -> None:
        self.tty = tty
        self._typed: Feed[bytes] = Feed([stdin] if stdin else [])
        self._sizes: Feed[TerminalSize] = Feed([size] if size is not None else [])
        self.stdin: AsyncIterator[bytes] | None = self._typed if open_stdin or stdin is not None else None
        self.resizes: AsyncIterator[TerminalSize] = self._sizes
        self.out = Sink(room)
        self.err = Sink()
        if not open_stdin:
            self._typed.end()

    @property
    def stdout(self) -> bytes:
        return bytes(self.out.data)

    @property
    def stderr(self) -> bytes:
        return bytes(self.err.data)

    def type(self, data: bytes) -> None:
        """Sends data as the client."""
        self._typed.put(data)

    def end_stdin(self) -> None:
        self._typed.end()

    def resize(self, width: int, height: int) -> None:
        self._sizes.put(TerminalSize(width, height))

    async def write_stdout(self, data: bytes) -> None:
        await self.out.write(data)

    async def write_stderr(self, data: bytes) -> None:
        await self.err.write(data)


class MemoryStream:
    """A `ByteStream`, one forwarded connection: `send` and `end` act for the client, `received` is what it got."""

    def __init__(self, data: bytes = b"", *, room: int | None = None) -> None:
        self._sent: Feed[bytes] = Feed([data] if data else [])
        self.sink = Sink(room)
        self.closed = False

    @property
    def received(self) -> bytes:
        return bytes(self.sink.data)

    def send(self, data: bytes) -> None:
        self._sent.put(data)

    def end(self) -> None:
        """Closes the client's side for sending; it still reads."""
        self._sent.end()

    async def read(self) -> bytes:
        return await anext(self._sent, b"")

    async def write(self, data: bytes) -> None:
        await self.sink.write(data)

    async def close(self) -> None:
        self.closed = True
