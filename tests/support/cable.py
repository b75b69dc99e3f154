"""A line to an API server of this machine that a test cuts, silences, slows down or breaks in the middle, while the server itself lives on.

Invariant: it passes bytes on and knows nothing of them; it runs beside the test, so that a test that waits does not stop it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

from tests.support.beside import Beside

_CHUNK = 1 << 16


class Cable(Beside):
    """Use as a context manager; whoever connects to `port` of 127.0.0.1 is connected to `target`."""

    def __init__(self, target: int) -> None:
        super().__init__()
        self.port = 0
        self._target = target
        self._requests_flow, self._answers_flow = asyncio.Event(), asyncio.Event()
        self._whole = True
        self._delay = 0.0
        self._rate = 0.0
        self._left: int | None = None
        self._ends: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> Self:
        super().__enter__()
        self._mend()
        self._server = self.run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def lead_to(self, target: int) -> int:
        """New connections go to that port of 127.0.0.1; the port of this line."""
        self._target = target
        return self.port

    def silence(self) -> None:
        """From now on nothing passes, neither on old connections nor on new ones, and nobody is told."""
        self.do(self._requests_flow.clear)
        self.deafen()

    def deafen(self) -> None:
        """From now on requests arrive and take effect, and no answer comes back."""
        self.do(self._answers_flow.clear)

    def cut(self) -> None:
        """Reset all connections, and each new one."""
        self.do(self._cut)

    def break_once(self) -> None:
        """Reset all connections; new ones are served."""
        self.do(self._reset)

    def cut_after(self, count: int) -> None:
        """Reset all connections, and each new one, once so many more bytes of answers have passed: in the middle of one."""

        def set_left() -> None:
            self._left = count

        self.do(set_left)

    def slow(self, *, rate: float = 0.0, delay: float = 0.0) -> None:
        """Pass `rate` bytes per second of each connection on, and everything `delay` seconds late; 0 is without a limit."""

        def set_pace() -> None:
            self._rate, self._delay = rate, delay

        self.do(set_pace)

    def mend(self) -> None:
        """Pass everything on again, also what was held back."""
        self.do(self._mend)

    def _cut(self) -> None:
        self._whole = False
        self._reset()

    def _reset(self) -> None:
        for end in self._ends:
            end.transport.abort()

    def _mend(self) -> None:
        self._whole, self._left, self._rate, self._delay = True, None, 0.0, 0.0
        self._requests_flow.set()
        self._answers_flow.set()

    async def close(self) -> None:
        self._server.close()
        self._cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._whole:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        ends = {writer, far_writer}
        self._ends |= ends
        try:
            # `close` cancels it, which asyncio would report for each connection.
            with contextlib.suppress(asyncio.CancelledError):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass(reader, far_writer, self._requests_flow))
                    group.create_task(self._pass(far_reader, writer, self._answers_flow))
        finally:
            self._ends -= ends
            for end in ends:
                end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self._delay or self._rate:
                    await asyncio.sleep(self._delay + (len(data) / self._rate if self._rate else 0.0))
                await flowing.wait()
                if flowing is self._answers_flow and self._left is not None:
                    data = data[: self._left]
                    self._left -= len(data)
                writer.write(data)
                await writer.drain()
                if self._left == 0:
                    self._cut()
        writer.close()
