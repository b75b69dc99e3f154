"""A line to an API server of this machine that a test can cut, or let fall silent, while the server itself lives on.

Invariant: it passes bytes on and knows nothing of them; it runs beside the test, so that a test that waits does not stop it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Cable:
    """Use as a context manager; whoever connects to `port` of 127.0.0.1 is connected to `target`."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._flowing = asyncio.Event()
        self._whole = True
        self._ends: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._flowing.set()
        self._server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def lead_to(self, target: int) -> int:
        """New connections go to that port of 127.0.0.1; the port of this line."""
        self._target = target
        return self.port

    def silence(self) -> None:
        """From now on nothing passes, neither on old connections nor on new ones, and nobody is told."""
        self._do(self._flowing.clear)

    def cut(self) -> None:
        """Reset all connections, and each new one."""
        self._do(self._cut)

    def mend(self) -> None:
        """Pass everything on again, also what was held back."""
        self._do(self._mend)

    def _do(self, step: Callable[[], None]) -> None:
        async def call() -> None:
            step()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def _cut(self) -> None:
        self._whole = False
        for end in self._ends:
            end.transport.abort()

    def _mend(self) -> None:
        self._whole = True
        self._flowing.set()

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks) if tasks else None
        self._cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._whole:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        ends = {writer, far_writer}
        self._ends |= ends
        try:
            # `_end` cancels it, which asyncio would report for each connection.
            with contextlib.suppress(asyncio.CancelledError):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass(reader, far_writer))
                    group.create_task(self._pass(far_reader, writer))
        finally:
            self._ends -= ends
            for end in ends:
                end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
