"""What a stream makes of the many small pieces in which an API server sends a log, over a real connection with TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from attrs import define, field

from tests.integration.client.encrypted import Loop, encrypted, loops, play
from tests.support.program import eventually
from vkubelet.client.rest import Client
from vkubelet.clock import SystemClock

PIECE, PIECES = 4096, 40
MOST = 6
"""Reads of so many pieces that the kernel has; the TLS layer of asyncio, unlike that of uvloop, reads 32 KiB at a time."""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


@define
class Standing(SystemClock):
    """Time passes only by `pass_by`, so that nothing depends on how fast the machine is."""

    seconds: float = 0.0
    sleeping: int = 0
    _woken: asyncio.Event = field(factory=asyncio.Event)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.sleeping += 1
        await self._woken.wait()
        self.sleeping -= 1

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds
        self._woken.set()
        self._woken = asyncio.Event()


@define
class Log:
    """The server's side of one response."""

    _server: asyncio.StreamWriter

    def write(self, letter: str, pieces: int = 1) -> None:
        """Send pieces, each as an API server does: with a write of its own, and so with a record of TLS."""
        for _ in range(pieces):
            self._server.write(f"{PIECE:x}\r\n{letter * PIECE}\r\n".encode())

    @property
    def sent(self) -> bool:
        return not self._server.transport.get_write_buffer_size()

    def end(self) -> None:
        """End the response, and the connection with it."""
        self._server.write(END)
        self._server.close()


Scene = Callable[[Log, AsyncIterator[bytes], Standing], Awaitable[None]]


def _play(scene: Scene, directory: Path, loop: Loop) -> None:
    asked: asyncio.Queue[Log] = asyncio.Queue()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        asked.put_nowait(Log(writer))

    async def run() -> None:
        clock = Standing()
        async with encrypted(directory, answer) as connection, Client(connection, clock=clock) as client, client.stream("/log") as pieces:
            await scene(await asked.get(), pieces, clock)

    play(run(), loop)


@loops
def test_fast_pieces_are_gathered_and_complete_when_the_server_hangs_up(tmp_path: Path, loop: Loop) -> None:
    async def scene(log: Log, pieces: AsyncIterator[bytes], clock: Standing) -> None:
        found: list[bytes] = []

        async def rest() -> None:
            found.extend([piece async for piece in pieces])

        for letter in "ab":
            log.write(letter)
            assert await anext(pieces) == letter.encode() * PIECE
        async with asyncio.TaskGroup() as group:
            following = group.create_task(rest())
            await eventually(lambda: clock.sleeping, "the client gathers", every=0.01)
            log.write("c", PIECES)
            log.end()
            await eventually(lambda: log.sent, "the kernel has everything", every=0.01)
            while not following.done():
                clock.pass_by(0.001)
                await asyncio.sleep(0.01)
        assert b"".join(found) == b"c" * PIECE * PIECES
        # Each is one write to the caller, with as few records of TLS as hold it.
        assert len(found) <= MOST, [len(piece) for piece in found]

    _play(scene, tmp_path, loop)


@loops
def test_a_piece_after_a_moment_of_silence_is_passed_on_at_once(tmp_path: Path, loop: Loop) -> None:
    async def scene(log: Log, pieces: AsyncIterator[bytes], clock: Standing) -> None:
        for letter in "abcd":
            clock.pass_by(0.01)
            log.write(letter)
            assert await anext(pieces) == letter.encode() * PIECE
        assert not clock.sleeping

    _play(scene, tmp_path, loop)
